"""A call of a command, and what a command is: its name, its arguments in words, and the function that answers.

The table of commands makes COMMAND, the checks of arity and rights, and the reference page.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from holdfast.errors import UsageError
from holdfast.kernel import codec
from holdfast.resp.client import Client
from holdfast.resp.frames import Reply
from holdfast.resp.gateway import RespGateway
from holdfast.resp.keyspace import SpacedKey, whole_number
from holdfast.resp.plans import tag_capabilities


class CallRefused(Exception):
    """A command refuses a call with this text. Nothing was changed."""

    def __init__(self, message: str, code: str = "ERR") -> None:
        super().__init__(message)
        self.message, self.code = message, code


@dataclass(frozen=True, slots=True)
class CommandCall:
    """One request: the arguments after the command's name."""

    command: str
    arguments: list[bytes]
    client: Client
    gateway: RespGateway

    def text(self, at: int, what: str) -> str:
        """An argument that must be text, as names and JSON are."""
        try:
            return self.arguments[at].decode()
        except UnicodeDecodeError:
            raise CallRefused(f"{what} must be UTF-8 text") from None


Answer = Callable[[CommandCall], Awaitable[Reply]]
AnswerMany = Callable[[Sequence[CommandCall]], "Awaitable[Sequence[Reply | Exception]]"]


@dataclass(frozen=True, slots=True)
class Command:
    """`arguments` are written as in a manual: `key [key ...] timeout`. Arity and documentation follow from them."""

    name: str
    arguments: str
    summary: str
    answer: Answer
    misuse: str = ""  # what a wrong number of arguments is answered with; default: as Redis does
    before_auth: bool = False
    always: bool = False  # for every key, whatever commands it is limited to
    keys: tuple[int, int, int] = (0, 0, 0)  # first, last and step, as COMMAND says them
    writes: bool = False
    waits: bool = False
    rate: int | None = None  # calls a minute by one principal
    together: Callable[[list[bytes]], bool] | None = None  # whether calls that follow each other may share a commit
    many: AnswerMany | None = None  # answers such calls at less cost than one by one

    @property
    def least(self) -> int:
        """The fewest arguments."""
        return _arity(self.arguments)[0]

    @property
    def most(self) -> int | None:
        """The most arguments; None: no limit."""
        return _arity(self.arguments)[1]

    @property
    def arity(self) -> int:
        """As COMMAND says it: with the name, negative if there may be more."""
        return self.least + 1 if self.most == self.least else -(self.least + 1)

    def takes(self, count: int) -> bool:
        least, most = _arity(self.arguments)
        return count >= least and (most is None or count <= most)

    @property
    def wrong_number(self) -> str:
        return self.misuse or f"wrong number of arguments for '{self.name.lower()}' command"


@cache
def _arity(arguments: str) -> tuple[int, int | None]:
    """The fewest and the most arguments; None: no limit."""
    words = _words(arguments)
    least = sum(1 for word in words if not word.startswith("["))
    if "..." in arguments:
        return least, None
    return least, least + sum(len(word[1:-1].split()) for word in words if word.startswith("["))


def _words(text: str) -> list[str]:
    """The parts of a manual's line; what is in brackets is one of them."""
    words: list[str] = []
    depth = 0
    for part in text.split():
        if depth:
            words[-1] += f" {part}"
        else:
            words.append(part)
        depth += part.count("[") - part.count("]")
    if depth:
        raise UsageError(f"the brackets of {text!r} do not match.")
    return words


# Arguments that several commands read: names of keys, numbers, JSON. What cannot be read refuses the call.


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
