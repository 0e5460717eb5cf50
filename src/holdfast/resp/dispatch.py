"""Dispatch: from a request to its reply. Whether the client may call it is decided here, for every command.

An error is a reply, and the connection continues; only what is not a request at all ends it. A caller without a key
learns nothing but that it needs one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from holdfast.errors import HoldfastError, StoreRefused, Unavailable, UsageError
from holdfast.resp.call import CallRefused, Command, CommandCall
from holdfast.resp.client import Client
from holdfast.resp.commands import connecting, data, jobs, keyspace, leases, lists, plans, runs, workers
from holdfast.resp.frames import AFTER_AUTH, Failure, Reply, Simple
from holdfast.resp.gateway import RespGateway
from holdfast.resp.keyspace import WrongKind
from holdfast.text import plural

# The table of commands: everything that the gateway understands. COMMAND, the arity checks and the reference page
# come
# from it.


GROUPS: Mapping[str, tuple[Command, ...]] = {
    "Connections": (*connecting.COMMANDS, *connecting.commands(lambda: TABLE)),
    "Workers": workers.COMMANDS,
    "Jobs": jobs.COMMANDS,
    "Leases": leases.COMMANDS,
    "Queues": jobs.QUEUE_COMMANDS,
    "Plans and actions": (*plans.COMMANDS, *plans.ACTION_COMMANDS),
    "Runs of agents": runs.COMMANDS,
    "Lists": lists.COMMANDS,
    "Keys": keyspace.COMMANDS,
    "Strings": data.COMMANDS,
    "Hashes": data.HASH_COMMANDS,
    "Sorted sets": data.SORTED_SET_COMMANDS,
}
TABLE: Mapping[str, Command] = {command.name: command for group in GROUPS.values() for command in group}


log = logging.getLogger("holdfast.resp")

NOAUTH = Failure("NOAUTH Authentication required")
_IN_MULTI = {"EXEC", "DISCARD", "MULTI", "WATCH", "QUIT"}  # what MULTI does not queue
_NOT_IN_MULTI = {"AUTH", "HELLO", "RESET"}  # what was queued under one key is not called under another
_MOST_QUEUED = 1_024
_POINTER = 8  # bytes that an argument takes besides its own
_REFUSALS = 32  # commands before a key was shown, after which the connection is closed
_SHOWN = 64
_FOREIGN = (  # how keys begin that the first refused command of such a library names
    (b"_kombu.", "Celery"),
    (b"unacked", "Celery"),
    (b"celery", "Celery"),
    (b"rq:", "RQ"),
    (b"bull:", "BullMQ"),
)


async def dispatch(request: list[bytes], client: Client, gateway: RespGateway) -> Reply:
    name = request[0].decode("utf-8", "replace").upper()
    command = TABLE.get(name)
    if client.principal is None and (command is None or not command.before_auth):
        _count_refusal(client)
        return NOAUTH
    gateway.counts["commands"] += 1
    problem = _problem(command, request, client, gateway)
    if problem is not None:
        client.refused = client.queued is not None
        return problem
    assert command is not None
    if client.queued is not None and name in _NOT_IN_MULTI:
        client.refused = True
        return Failure("Command not allowed inside a transaction")
    if client.queued is not None and name not in _IN_MULTI:
        client.queued_size += sum(_POINTER + len(each) for each in request)
        if len(client.queued) >= _MOST_QUEUED or client.queued_size > AFTER_AUTH.request:
            client.queued.clear()
            client.refused = True
            return Failure(f"MULTI takes at most {_MOST_QUEUED} commands, of {AFTER_AUTH.request} bytes together")
        client.queued.append(request)
        return Simple("QUEUED")
    if name == "EXEC":
        return await _execute(client, gateway)
    reply = await answer(command, request, client, gateway)
    if client.principal is None and command.before_auth:
        _count_refusal(client)
    return reply


def _count_refusal(client: Client) -> None:
    client.refusals += 1
    client.leaving = client.leaving or client.refusals >= _REFUSALS


def is_waiting(request: list[bytes]) -> bool:
    """Whether the reply may take long."""
    command = TABLE.get(request[0].decode("utf-8", "replace").upper())
    return command is not None and command.waits


def is_together(first: list[bytes], other: list[bytes], client: Client) -> bool:
    """Whether two requests that follow each other may be answered together: both are calls of one command, and neither
    waits or depends on the other."""
    command = TABLE.get(first[0].decode("utf-8", "replace").upper())
    if command is None or command.together is None or client.principal is None or client.queued is not None:
        return False
    return first[0] == other[0] and command.together(first[1:]) and command.together(other[1:])


async def dispatch_together(requests: list[list[bytes]], client: Client, gateway: RespGateway) -> list[Reply]:
    """The replies to requests of which each may be answered together with the first, in their order."""
    command = TABLE[requests[0][0].decode("utf-8", "replace").upper()]
    problems = (_problem(command, each, client, gateway) for each in requests)
    if command.many is None or command.rate is not None or any(problems):
        return await asyncio.gather(*(dispatch(each, client, gateway) for each in requests))
    gateway.counts["commands"] += len(requests)
    try:
        answers = await command.many([CommandCall(command.name, each[1:], client, gateway) for each in requests])
    except Exception as problem:  # noqa: BLE001  the edge of a connection, as in `answer`
        return [_failure(command, problem, gateway)] * len(requests)
    return [_failure(command, each, gateway) if isinstance(each, Exception) else each for each in answers]


async def answer(command: Command, request: list[bytes], client: Client, gateway: RespGateway) -> Reply:
    """Call the command; what it or the store refuses is a reply."""
    try:
        return await command.answer(CommandCall(command.name, request[1:], client, gateway))
    except Exception as problem:  # noqa: BLE001  the edge of a connection: the others continue, and so does this one
        return _failure(command, problem, gateway)


def _failure(command: Command, problem: Exception, gateway: RespGateway) -> Failure:
    """What a client is told."""
    match problem:
        case CallRefused():
            return Failure(problem.message, problem.code)
        case WrongKind():
            return Failure(str(problem), "WRONGTYPE")
        case UsageError() | StoreRefused():
            return Failure(str(problem))
        case Unavailable():
            gateway.core.ports.try_again(problem)  # its client does
            return Failure(str(problem), "TRYAGAIN")
        case HoldfastError():
            log.error("%s failed: %s", command.name, problem)
            return Failure("Internal error")
        case _:
            log.error("%s failed", command.name, exc_info=problem)
            return Failure("Internal error")


def _problem(command: Command | None, request: list[bytes], client: Client, gateway: RespGateway) -> Failure | None:
    if command is None:
        gateway.counts["refused"] += 1
        return _unknown(request)
    if not command.takes(len(request) - 1):
        return Failure(command.wrong_number)
    if client.principal is None or command.always:
        return None
    if (problem := _forbidden(command, client, gateway)) is not None:
        return problem
    if command.rate is not None and not gateway.rates.allows(client.who, command.name, command.rate):
        limit = plural(command.rate, "call")
        return Failure(f"{command.name} is limited to {limit} a minute for each key; try again later")
    return None


def _unknown(request: list[bytes]) -> Failure:
    """Somebody may have taken this for a Redis: who uses a known library learns it from the first error."""
    said = f"unknown command '{_shown(request[0].decode('utf-8', 'replace').upper())}'"
    used = next((library for key in request[1:6] for begin, library in _FOREIGN if key.startswith(begin)), None)
    if used is None:
        return Failure(said)
    return Failure(f"{said}: this is Holdfast's gateway for workers, not a Redis for {used}; see docs/resp.md")


def _forbidden(command: Command, client: Client, gateway: RespGateway) -> Failure | None:
    """Why the key of this connection may not call it, if it may not."""
    if command.always or (client.principal is not None and client.principal.may_call(command.name)):
        return None
    gateway.counts["refused"] += 1
    return Failure(f"this key may not call {command.name}", "NOPERM")


async def _execute(client: Client, gateway: RespGateway) -> Reply:
    """Call what was queued, one after the other. Each commits by itself, and a pop does not wait."""
    queued, refused = client.queued, client.refused
    client.queued, client.refused = None, False
    if queued is None:
        return Failure("EXEC without MULTI")
    if refused:
        return Failure("Transaction discarded because of previous errors.", "EXECABORT")
    client.executing = True
    try:
        return [await _call_queued(request, client, gateway) for request in queued]
    finally:
        client.executing = False


async def _call_queued(request: list[bytes], client: Client, gateway: RespGateway) -> Reply:
    """What the key may call is asked again: it decides when something is done, not when it was queued."""
    command = TABLE[request[0].decode().upper()]
    return _forbidden(command, client, gateway) or await answer(command, request, client, gateway)


def _shown(name: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in name[:_SHOWN])
