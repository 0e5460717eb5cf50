"""Arguments that several commands read: names of keys, numbers, JSON. What cannot be read refuses the call."""

from __future__ import annotations

import math
from typing import Any

from holdfast.kernel import codec
from holdfast.resp.call import CallRefused, CommandCall
from holdfast.resp.keyspace import SpacedKey, whole_number
from holdfast.resp.plans import tag_capabilities

QUEUE = b"queue:"
VIEWS = (b"worker:", b"workers:", b"capability:", b"job:", b"plan:", b"action:", QUEUE)
_LONGEST_KEY = 1_024


def name_of(call: CommandCall, at: int = 0) -> SpacedKey:
    """The key of plain data; those of live views and queues belong to the gateway."""
    key = call.arguments[at]
    if key.startswith(VIEWS):
        prefix = key.partition(b":")[0].decode()
        raise CallRefused(
            f"keys that begin with {prefix}: are live views of jobs and workers; {call.command} cannot use them"
        )
    if len(key) > _LONGEST_KEY:
        raise CallRefused(f"a key has at most {_LONGEST_KEY} bytes")
    return SpacedKey(space_of(call), key)


def space_of(call: CommandCall) -> str:
    assert call.client.principal is not None
    return call.client.principal.tenant


def is_queue(key: bytes) -> bool:
    return key.startswith(QUEUE)


def queue_of(call: CommandCall, key: bytes) -> str:
    """The kernel's queue of a key `queue:<name>`, if this client may use it."""
    try:
        queue = key.removeprefix(QUEUE).decode()
    except UnicodeDecodeError:
        raise CallRefused("the name of a queue is UTF-8 text") from None
    if not queue or len(queue) > 200 or not queue.isprintable():
        raise CallRefused("a queue is called queue:<name>")
    assert call.client.principal is not None
    if not call.client.principal.may_use(queue):
        raise CallRefused(f"this key may not use the queue {queue}", "NOPERM")
    return queue


def integer(value: bytes) -> int:
    number = whole_number(value)
    if number is None:
        raise CallRefused("value is not an integer or out of range")
    return number


def score(value: bytes, problem: str = "value is not a valid float") -> float:
    try:
        number = float(value)
    except ValueError:
        raise CallRefused(problem) from None
    if math.isnan(number) or value != value.strip() or b"_" in value:
        raise CallRefused(problem)
    return number


def json_object(call: CommandCall, at: int, problem: str) -> dict[str, Any]:
    """An argument that is a JSON object."""
    if codec.is_wide(call.arguments[at]):
        raise CallRefused(f"{problem}: more than {codec.MOST_VALUES} values")
    try:
        value = codec.loads_utf8(call.arguments[at], parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise CallRefused(f"{problem}: not JSON") from None
    if not isinstance(value, dict):
        raise CallRefused(f"{problem}: not a JSON object")
    return value


def page(call: CommandCall, at: int, *, most: int = 100, default: int = 50) -> tuple[int, int]:
    """Offset and limit, which stand at the end of many commands."""
    given = [integer(each) for each in call.arguments[at : at + 2]]
    offset, limit = (*given, *((0, default)[len(given) :]))
    if offset < 0 or not 1 <= limit <= most:
        raise CallRefused(f"offset is at least 0 and limit 1 to {most}")
    return offset, limit


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def tags_of(value: object, invalid: str) -> tuple[str, ...]:
    if not isinstance(value, dict):
        raise CallRefused(f"{invalid}: tags is an object")
    return tag_capabilities(value)
