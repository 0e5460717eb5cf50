"""Commands and options of earlier releases. They still work, help does not list them, and stderr says what to write."""

from __future__ import annotations

from typing import Any

import click


def add_earlier_name(group: click.Group, earlier: str, command: click.Command) -> None:
    """Let a command of a group answer to the name it had before."""

    @click.pass_context
    def call(ctx: click.Context, /, **options: Any) -> Any:
        noun = ctx.parent.info_name if ctx.parent is not None else ""
        warn(f"`{noun} {earlier}`", f"`{noun} {command.name}`")
        return ctx.invoke(command, **options)

    group.add_command(click.Command(earlier, callback=call, params=command.params, help=command.help, hidden=True))


def warn(earlier: str, now: str) -> None:
    click.echo(f"holdfast: {earlier} is now {now}; the old name will be removed.", err=True)
