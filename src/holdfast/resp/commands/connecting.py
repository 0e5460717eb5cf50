"""AUTH, HELLO and what else a client says about itself."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from holdfast.errors import VERSION
from holdfast.resp.call import CallRefused, Command, CommandCall, integer
from holdfast.resp.client import Client
from holdfast.resp.commands import published
from holdfast.resp.frames import OK, NoArray, Pairs, Reply, Simple
from holdfast.resp.gateway import DELAY, RespGateway

_REDIS_VERSION = "7.0.0"  # whose commands clients may expect
_TYPES = (b"normal", b"master", b"replica", b"pubsub")  # of connections; there are only normal ones
_STOCK = ("redis-py", "go-redis", "ioredis", "redis-rs", "lettuce", "jedis")


async def auth(call: CommandCall) -> Reply:
    *name, key = call.arguments
    await _authenticate(call, key, call.text(0, "a user name") if name else None)
    return OK


async def _authenticate(call: CommandCall, key: bytes, name: str | None) -> None:
    gateway, client = call.gateway, call.client
    if not key:
        raise CallRefused("AUTH key cannot be empty")
    async with gateway.failed_keys.turn(client.address):
        principal = await gateway.principal_of(key, name)
    if principal is None:
        await _refuse_key(call)
    if client.principal not in (None, principal):
        _forget_worker(call)
    client.principal = principal


async def _refuse_key(call: CommandCall) -> NoReturn:
    """The key was judged first: many share an address, and the wrong keys of one must not bar the right keys of others.

    Who has shown too many waits for each answer, and then needs another connection.
    """
    gateway, client = call.gateway, call.client
    gateway.counts["wrong keys"] += 1
    if gateway.failed_keys.is_barred(client.address):
        client.leaving = True
        await gateway.clock.sleep(DELAY)
        raise CallRefused("Too many authentication failures; try again in a minute")
    gateway.failed_keys.note(client.address)
    raise CallRefused("Invalid authentication key")


def _forget_worker(call: CommandCall) -> None:
    """The connection acts for somebody else from now on: nothing that it did for another may be done under that key."""
    client, pops = call.client, call.gateway.pops
    client.forget_worker()
    pops.give_back(client.unstarted())
    client.undelivered, client.unread = [], None
    pops.delivered.lose_client(client.id)


async def hello(call: CommandCall) -> Reply:
    rest = list(call.arguments)
    protocol = rest.pop(0) if rest else b"%d" % call.client.protocol
    if protocol not in (b"2", b"3"):
        raise CallRefused("unsupported protocol version", "NOPROTO")
    name: str | None = None
    while rest:
        option = rest.pop(0).upper()
        if option == b"AUTH" and len(rest) >= 2:
            user, key = rest.pop(0), rest.pop(0)
            await _authenticate(call, key, user.decode(errors="replace"))
        elif option == b"SETNAME" and rest:
            name = _client_name(rest.pop(0))
        else:
            raise CallRefused(f"Syntax error in HELLO option '{option.decode(errors='replace').lower()}'")
    if call.client.principal is None:
        raise CallRefused("NOAUTH Authentication required")
    call.client.protocol = int(protocol)
    call.client.name = call.client.name if name is None else name
    return Pairs(
        {
            "server": "redis",
            "version": _REDIS_VERSION,
            "proto": call.client.protocol,
            "id": call.client.id,
            "mode": "standalone",
            "role": "master",
            "modules": [],
        }
    )


async def ping(call: CommandCall) -> Reply:
    if call.arguments:
        await published.hear(call)
    return call.arguments[0] if call.arguments else Simple("PONG")


async def echo(call: CommandCall) -> Reply:
    return call.arguments[0]


async def quit(call: CommandCall) -> Reply:
    call.client.leaving = True
    return OK


async def reset(call: CommandCall) -> Reply:
    _forget_worker(call)
    call.client.reset(call.gateway.options.pop_form)
    return Simple("RESET")


async def select(call: CommandCall) -> Reply:
    if call.arguments[0] != b"0":
        raise CallRefused("DB index is out of range")
    return OK


async def client(call: CommandCall) -> Reply:
    what, *rest = call.arguments
    match what.upper(), rest:
        case b"SETNAME", [name]:
            call.client.name = _client_name(name)
            return OK
        case b"GETNAME", []:
            return call.client.name or None
        case b"ID", []:
            return call.client.id
        case b"SETINFO", [attribute, value]:
            return _set_info(call, attribute.upper(), value)
        case b"INFO", []:
            return _described(call.client, call.gateway)
        case b"LIST", _:
            return _listed(call, rest)
        case b"POPFORM", [form]:
            return _set_pop_form(call, form.lower())
        case ((b"NO-EVICT" | b"NO-TOUCH"), [_]):
            return OK
        case _:
            raise CallRefused(f"unknown subcommand '{what.decode(errors='replace')}' of CLIENT")


def _set_info(call: CommandCall, attribute: bytes, value: bytes) -> Reply:
    text = _client_name(value)
    if attribute == b"LIB-NAME":
        call.client.library = text
        if text.lower().startswith(_STOCK):  # a client library that expects what Redis answers
            call.client.pop_form = "array"
    elif attribute == b"LIB-VER":
        call.client.library_version = text
    else:
        raise CallRefused(f"Unrecognized option '{attribute.decode(errors='replace')}'")
    return OK


def _set_pop_form(call: CommandCall, form: bytes) -> Reply:
    if form == b"bulk":
        call.client.pop_form = "bulk"
    elif form == b"array":
        call.client.pop_form = "array"
    else:
        raise CallRefused("CLIENT POPFORM is BULK or ARRAY")
    return OK


def _listed(call: CommandCall, filters: list[bytes]) -> str:
    """The connections that a key may know of: those of its tenant, or its own if it may not call everything."""
    gateway, asking = call.gateway, call.client.principal
    assert asking is not None
    shown = [
        each
        for each in gateway.clients.values()
        if (who := each.principal) is not None
        and who.tenant == asking.tenant
        and (asking.may_call("CLIENT") or who == asking)
    ]
    match [each.upper() for each in filters[:1]], filters[1:]:
        case [], []:
            pass
        case [b"TYPE"], [kind] if kind.lower() in _TYPES:
            shown = shown if kind.lower() == b"normal" else []
        case [b"ID"], [_, *_] as ids:
            wanted = {integer(each) for each in ids}
            shown = [each for each in shown if each.id in wanted]
        case _:
            raise CallRefused("syntax error")
    return "".join(_described(each, gateway) for each in shown)


def _described(client: Client, gateway: RespGateway) -> str:
    age = int(gateway.clock.monotonic() - client.connected_at)
    queued = -1 if client.queued is None else len(client.queued)
    return (
        f"id={client.id} addr={client.address} name={client.name} age={age} flags={'N' if queued < 0 else 'x'} db=0 "
        f"multi={queued} user={client.who} lib-name={client.library} lib-ver={client.library_version} "
        f"resp={client.protocol}\n"
    )


async def acl(call: CommandCall) -> Reply:
    if call.arguments[0].upper() != b"WHOAMI" or len(call.arguments) > 1:
        raise CallRefused(
            "ACL has WHOAMI alone: what a key may do is decided where it is made, by `holdfast resp keys add`"
        )
    return call.client.who


async def info(call: CommandCall) -> Reply:
    gateway = call.gateway
    uptime = int(gateway.clock.monotonic() - gateway.started)
    sections: dict[str, dict[str, object]] = {
        "Server": {
            "redis_version": _REDIS_VERSION,
            "holdfast_version": VERSION,
            "redis_mode": "standalone",
            "uptime_in_seconds": uptime,
        },
        "Clients": {
            "connected_clients": len(gateway.clients),
            "authenticated_clients": sum(1 for each in gateway.clients.values() if each.principal is not None),
            "blocked_clients": len(gateway.pops),
        },
        "Memory": _memory(),
        "Persistence": {"loading": 0},
        "Stats": {
            "total_connections_received": gateway.counts["connections"],
            "rejected_connections": gateway.counts["rejected"],
            "total_commands_processed": gateway.counts["commands"],
            "wrong_keys": gateway.counts["wrong keys"],
            "protocol_errors": gateway.counts["bad frames"],
        },
        "Replication": {"role": "master", "connected_slaves": 0},
    }
    wanted = {each.decode(errors="replace").lower() for each in call.arguments}
    return "\r\n".join(
        f"# {title}\r\n" + "".join(f"{name}:{value}\r\n" for name, value in pairs.items())
        for title, pairs in sections.items()
        if not wanted or title.lower() in wanted or wanted & {"all", "default", "everything"}
    )


def _memory() -> dict[str, object]:
    """What this process uses. The data is in the database, and nothing is ever evicted."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1_024)
    try:
        used = int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize()
    except OSError:  # there is no /proc
        used = peak
    sizes = {"used_memory": used, "used_memory_rss": used, "used_memory_peak": max(used, peak), "maxmemory": 0}
    shown = {f"{name}_human": _human(size) for name, size in sizes.items()}
    return {**sizes, **shown, "maxmemory_policy": "noeviction", "mem_fragmentation_ratio": "1.00"}


def _human(size: float) -> str:
    """A size as Redis writes it."""
    if size < 1_024:
        return f"{size}B"
    power = 3 if size >= 1 << 30 else 2 if size >= 1 << 20 else 1
    return f"{size / 1_024**power:.2f}{' KMG'[power]}"


async def multi(call: CommandCall) -> Reply:
    if call.client.queued is not None:
        raise CallRefused("MULTI calls can not be nested")
    call.client.queued, call.client.queued_size, call.client.refused = [], 0, False
    return OK


async def discard(call: CommandCall) -> Reply:
    if call.client.queued is None:
        raise CallRefused("DISCARD without MULTI")
    call.client.queued, call.client.refused = None, False
    return OK


async def execute(call: CommandCall) -> Reply:
    """The dispatcher does it."""
    return NoArray()


def _client_name(value: bytes) -> str:
    if len(value) > 256 or any(byte <= 0x20 or byte >= 0x7F for byte in value):
        raise CallRefused("Client names cannot contain spaces, newlines or special characters.")
    return value.decode()


COMMANDS = (
    Command(
        "AUTH",
        "[user] key",
        "Show a key. The reply to everything before it is an error.",
        auth,
        misuse="AUTH requires exactly one argument",
        before_auth=True,
        always=True,
    ),
    Command(
        "HELLO",
        "[protocol [AUTH user key] [SETNAME name] ...]",
        "Choose RESP2 or RESP3, and show a key in the same request.",
        hello,
        before_auth=True,
        always=True,
    ),
    Command(
        "PING",
        "[message]",
        "Answer; with the id of its worker, WORKER.HEARTBEAT of the published AGW.",
        ping,
        misuse="PING accepts 0 or 1 arguments",
        always=True,
    ),
    Command("ECHO", "message", "Answer with the message.", echo, always=True),
    Command("QUIT", "", "Close the connection.", quit, before_auth=True, always=True),
    Command("RESET", "", "Forget everything about this connection, the key too.", reset, always=True),
    Command("SELECT", "index", "Choose database 0, the only one.", select, always=True),
    Command(
        "CLIENT",
        "subcommand [argument ...]",
        "SETNAME, GETNAME, ID, INFO, LIST, SETINFO, and POPFORM BULK or ARRAY: how BRPOP replies here.",
        client,
        always=True,
    ),
    Command("ACL", "subcommand [argument ...]", "WHOAMI: whose key this connection has shown.", acl, always=True),
    Command("INFO", "[section ...]", "Show the server's version and counters.", info),
    Command("MULTI", "", "Queue the commands that follow.", multi, always=True),
    Command("EXEC", "", "Call the queued commands in order; each commits by itself.", execute, always=True),
    Command("DISCARD", "", "Forget the queued commands.", discard, always=True),
)


# COMMAND: the table of commands, as clients ask for it.


def commands(table: Callable[[], Mapping[str, Command]]) -> tuple[Command, ...]:
    """The command that shows this table, in which it stands itself."""

    async def command(call: CommandCall) -> Reply:
        what, *names = [each.decode(errors="replace").upper() for each in call.arguments] or ["ALL"]
        known = table()
        match what:
            case "ALL":
                return [_described_command(each) for each in known.values()]
            case "COUNT":
                return len(known)
            case "LIST":
                return [each.lower() for each in known]
            case "INFO":
                return [_described_command(known[name]) if name in known else None for name in names or known]
            case "DOCS":
                return Pairs({name.lower(): _documented(known[name]) for name in names or known if name in known})
            case _:
                raise CallRefused(f"unknown subcommand '{what}' of COMMAND")

    summary = "List the commands: COUNT, LIST, INFO and DOCS."
    return (Command("COMMAND", "[subcommand [name ...]]", summary, command, always=True),)


def _described_command(command: Command) -> Reply:
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
