"""Plain lists: LPUSH, RPOP and what else Redis does with them. Lists called queue:<name> are queues of jobs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from holdfast.resp import keyspace, queued
from holdfast.resp.call import CallRefused, Command, CommandCall, integer, is_queue, name_of, score
from holdfast.resp.frames import NoArray, Reply
from holdfast.resp.keyspace import whole_number

T = TypeVar("T")

LONGEST_WAIT = 3_600.0
_LOOK = 0.5  # seconds between two looks of somebody who waits


async def lpush(call: CommandCall) -> Reply:
    if is_queue(call.arguments[0]):
        return await queued.enqueue(call)
    return await _push(call, left=True)


async def rpush(call: CommandCall) -> Reply:
    return await _push(call, left=False)


async def _push(call: CommandCall, *, left: bool) -> Reply:
    count = await call.gateway.transact(keyspace.push, name_of(call), call.arguments[1:], left=left)
    call.gateway.pushed.set()
    return count


async def rpop(call: CommandCall) -> Reply:
    if is_queue(call.arguments[0]):
        return await queued.pop(call, [call.arguments[0]], 0)
    return await call.gateway.transact(keyspace.pop, name_of(call), left=False)


async def lpop(call: CommandCall) -> Reply:
    return await call.gateway.transact(keyspace.pop, name_of(call), left=True)


async def llen(call: CommandCall) -> Reply:
    if is_queue(call.arguments[0]):
        return await queued.length(call, call.arguments[0])
    return await call.gateway.transact(keyspace.count, name_of(call), "list")


async def lrange(call: CommandCall) -> Reply:
    if is_queue(call.arguments[0]):
        return await queued.look(call, integer(call.arguments[1]), integer(call.arguments[2]))
    asked, name = [integer(each) for each in call.arguments[1:]], name_of(call)
    length = await call.gateway.transact(keyspace.count, name, "list")
    first, last = (each + length if each < 0 else each for each in asked)
    first = max(first, 0)
    limit = min(last, length - 1) - first + 1
    if limit <= 0:
        return []
    return [row.value for row in await call.gateway.transact(keyspace.parts, name, "list", skipped=first, limit=limit)]


async def lrem(call: CommandCall) -> Reply:
    count = integer(call.arguments[1])
    if is_queue(call.arguments[0]):
        return await queued.acknowledge(call)
    return await call.gateway.transact(keyspace.remove_elements, name_of(call), count, call.arguments[2])


async def rpoplpush(call: CommandCall) -> Reply:
    if is_queue(call.arguments[0]):
        queued.check_processing(call, call.arguments[1])
        return await queued.pop(call, [call.arguments[0]], 0)
    return await call.gateway.transact(keyspace.move, name_of(call), name_of(call, 1))


async def brpop(call: CommandCall) -> Reply:
    *keys, last = call.arguments
    seconds = _seconds(call, last)
    if is_queue(keys[0]):
        reply, key = await queued.pop_with_key(call, keys, seconds)
        return _popped(call, key, reply)
    names = [name_of(call, at) for at in range(len(keys))]

    async def attempt() -> tuple[bytes, bytes] | None:
        for name in names:
            value = await call.gateway.transact(keyspace.pop, name, left=False)
            if value is not None:
                return name.key, value
        return None

    found = await _waiting(call, attempt, seconds)
    return _popped(call, *(found or (b"", None)))


async def brpoplpush(call: CommandCall) -> Reply:
    source, target, last = call.arguments
    seconds = _seconds(call, last)
    if is_queue(source):
        queued.check_processing(call, target)
        return await queued.pop(call, [source], seconds)
    names = name_of(call), name_of(call, 1)

    async def attempt() -> bytes | None:
        value = await call.gateway.transact(keyspace.move, *names)
        if value is not None:
            call.gateway.pushed.set()
        return value

    return await _waiting(call, attempt, seconds)


async def blpop(call: CommandCall) -> Reply:
    raise CallRefused("BLPOP is not supported: jobs are taken from the right, oldest first. Use BRPOP")


def _popped(call: CommandCall, key: bytes, value: Reply) -> Reply:
    """A pop's reply: the value, as AGX documents it, or key and value as Redis replies."""
    if call.client.pop_form == "bulk" and not call.client.published:
        return value
    return NoArray() if value is None else [key, value]


def _seconds(call: CommandCall, text: bytes) -> float | None:
    """How long to wait: None for ever, 0 inside of EXEC."""
    seconds = score(text, f"{call.command} timeout must be a non-negative integer")
    if not 0 <= seconds < float("inf"):
        raise CallRefused(f"{call.command} timeout must be a non-negative integer")
    if call.client.executing:
        return 0
    return min(seconds, LONGEST_WAIT) or None


async def _waiting(call: CommandCall, attempt: Callable[[], Awaitable[T | None]], seconds: float | None) -> T | None:
    """Try until there is something. Other servers push without a word, so it looks now and then anyway."""
    loop = asyncio.get_running_loop()
    end = None if seconds is None else loop.time() + seconds
    while True:
        call.gateway.pushed.clear()
        found = await attempt()
        left = _LOOK if end is None else min(_LOOK, end - loop.time())
        if found is not None or left <= 0:
            return found
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left):
                await call.gateway.pushed.wait()


_ONE = (1, 1, 1)


def _is_of_a_queue(arguments: list[bytes]) -> bool:
    """Elements of a queue are jobs, each by itself; commands on a plain list depend on each other."""
    return bool(arguments) and is_queue(arguments[0])


def _is_completion(arguments: list[bytes]) -> bool:
    return len(arguments) == 3 and arguments[0] == queued.PROCESSING and whole_number(arguments[1]) is not None


async def _pops(calls: Sequence[CommandCall]) -> Sequence[Reply | Exception]:
    if calls[0].client.published or any(call.arguments != calls[0].arguments for call in calls):
        return [await _popped_alone(call) for call in calls]
    if calls[0].command == "RPOPLPUSH":
        queued.check_processing(calls[0], calls[0].arguments[1])
    return await queued.pop_many(calls)


async def _popped_alone(call: CommandCall) -> Reply | Exception:
    try:
        return await (rpoplpush if call.command == "RPOPLPUSH" else rpop)(call)
    except Exception as problem:  # noqa: BLE001  its caller tells the client
        return problem


COMMANDS = (
    Command("LPUSH", "key element [element ...]", "Put elements at the left of a list.", lpush, keys=_ONE, writes=True),
    Command(
        "RPUSH", "key element [element ...]", "Put elements at the right of a list.", rpush, keys=_ONE, writes=True
    ),
    Command(
        "RPOP",
        "key",
        "Take an element from the right.",
        rpop,
        keys=_ONE,
        writes=True,
        together=_is_of_a_queue,
        many=_pops,
    ),
    Command("LPOP", "key", "Take an element from the left.", lpop, keys=_ONE, writes=True),
    Command("LLEN", "key", "Count the elements.", llen, keys=_ONE),
    Command("LRANGE", "key start stop", "Read elements by their place.", lrange, keys=_ONE),
    Command(
        "LREM",
        "key count element",
        "Remove elements that are equal to this one.",
        lrem,
        keys=_ONE,
        writes=True,
        together=_is_completion,
        many=queued.acknowledge_many,
    ),
    Command(
        "RPOPLPUSH",
        "source destination",
        "Take from one list, put into another.",
        rpoplpush,
        keys=(1, 2, 1),
        writes=True,
        together=_is_of_a_queue,
        many=_pops,
    ),
    Command(
        "BRPOP",
        "key [key ...] timeout",
        "Take from the right of the first list that has something, or wait; of queue:<name> a job, under a lease.",
        brpop,
        keys=(1, -2, 1),
        writes=True,
        waits=True,
    ),
    Command(
        "BRPOPLPUSH",
        "source destination timeout",
        "RPOPLPUSH that waits; from queue:<name> to queue:processing a job, under a lease.",
        brpoplpush,
        keys=(1, 2, 1),
        writes=True,
        waits=True,
    ),
    Command("BLPOP", "key [key ...] timeout", "Refused, with a hint: use BRPOP.", blpop, keys=(1, -2, 1)),
)
