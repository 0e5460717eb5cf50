"""COMMAND: the table of commands, as clients ask for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.resp.call import CallRefused, Command, CommandCall
from holdfast.resp.replies import Pairs, Reply, Simple


def commands(table: Callable[[], Mapping[str, Command]]) -> tuple[Command, ...]:
    """The command that shows this table, in which it stands itself."""

    async def command(call: CommandCall) -> Reply:
        what, *names = [each.decode(errors="replace").upper() for each in call.arguments] or ["ALL"]
        known = table()
        match what:
            case "ALL":
                return [_described(each) for each in known.values()]
            case "COUNT":
                return len(known)
            case "LIST":
                return [each.lower() for each in known]
            case "INFO":
                return [_described(known[name]) if name in known else None for name in names or known]
            case "DOCS":
                return Pairs({name.lower(): _documented(known[name]) for name in names or known if name in known})
            case _:
                raise CallRefused(f"unknown subcommand '{what}' of COMMAND")

    summary = "List the commands: COUNT, LIST, INFO and DOCS."
    return (Command("COMMAND", "[subcommand [name ...]]", summary, command, always=True),)


def _described(command: Command) -> Reply:
    flags = [
        Simple(flag)
        for flag, holds in (
            ("write", command.writes),
            ("readonly", not command.writes),
            ("blocking", command.waits),
            ("no_auth", command.before_auth),
        )
        if holds
    ]
    return [command.name.lower(), command.arity, flags, *command.keys, [], [], [], []]


def _documented(command: Command) -> Reply:
    return Pairs({"summary": command.summary, "since": "1.0.0", "group": "holdfast", "syntax": command.arguments})
