"""Frames: the requests of a client, cut out of the bytes that arrive. Pure: it does no I/O.

A request is an array of bulk strings, or a line of words. Whatever exceeds the limits is refused as soon as its length
is known, before its content is stored, and every byte is looked at once.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

Request = list[bytes]

_LONGEST_NUMBER = 20  # digits of a length, with its type byte and sign
_SHORT_NUMBER = 12  # bytes of a length as nearly all are, with its type byte and its end
_COMPACT = 1 << 16


class FrameLimits(NamedTuple):
    """What one request may have."""

    arguments: int
    bulk: int  # bytes of one argument
    request: int  # bytes of all arguments together
    line: int  # bytes of a line of words


BEFORE_AUTH = FrameLimits(arguments=10, bulk=16_384, request=49_152, line=1_024)
AFTER_AUTH = FrameLimits(arguments=16_384, bulk=10 << 20, request=16 << 20, line=65_536)


class BadFrame(Exception):
    """The bytes are not a request, or exceed a limit. Nothing after them can be understood: reply, then close."""


class Frames:
    """Cuts requests out of a stream. `feed` it, then call `next` until it returns None."""

    def __init__(self, limits: FrameLimits = BEFORE_AUTH) -> None:
        self.limits = limits
        self._buffer = bytearray()
        self._at = 0  # how much of the buffer is used up
        self._looked = 0  # how far a line's end was looked for
        self._missing = 0  # arguments of the request under way that have not come yet
        self._bulk: int | None = None  # bytes of the argument under way, once its length is known
        self._arguments: Request = []
        self._size = 0
        self.inline = False  # the last request was a line of words

    @property
    def buffered(self) -> int:
        """Bytes that are stored here, in the buffer or in the request under way."""
        return len(self._buffer) - self._at + self._size

    @property
    def is_empty(self) -> bool:
        """Whether no request is half there."""
        return not self._missing and self._at == len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        if self._at > _COMPACT or self._at == len(self._buffer):
            del self._buffer[: self._at]
            self._looked -= self._at
            self._at = 0
            self._looked = max(self._looked, 0)
        self._buffer += data

    def next(self) -> Request | None:
        """The next request, None if it is not complete, or `BadFrame`. An empty array or line is left out."""
        if not self._missing and (request := self._whole()) is not None:
            return request
        while True:
            if not self._missing and not self._begin():
                return None
            if not self._missing:
                if self._arguments:
                    return self._take()
                continue
            while self._missing:
                if not self._argument():
                    return None
            return self._take()

    def _whole(self) -> Request | None:
        """The next request, if it is an array that is all there and within the limits: most are, and this is the quick
        way to read them. None: everything is as it was, and the slow way says what is wrong or missing."""
        buffer, at, limits = self._buffer, self._at, self.limits
        end = buffer.find(b"\r\n", at, at + _SHORT_NUMBER)
        if end < 0 or buffer[at] != 0x2A or not (digits := buffer[at + 1 : end]).isdigit():  # *
            return None
        count, at, room = int(digits), end + 2, limits.request
        if not 0 < count <= limits.arguments:
            return None
        request: Request = []
        for _ in range(count):
            end = buffer.find(b"\r\n", at, at + _SHORT_NUMBER)
            if end < 0 or buffer[at] != 0x24 or not (digits := buffer[at + 1 : end]).isdigit():  # $
                return None
            length = int(digits)
            room -= length
            at = end + 2 + length
            if length > limits.bulk or room < 0 or buffer[at : at + 2] != b"\r\n":
                return None
            request.append(bytes(buffer[end + 2 : at]))
            at += 2
        self._at = self._looked = at
        self.inline = False
        return request

    def _take(self) -> Request:
        request, self._arguments, self._size = self._arguments, [], 0
        return request

    def _begin(self) -> bool:
        """Read what a request begins with; False if it is not all there."""
        if self._at == len(self._buffer):
            return False
        if self._buffer[self._at] != 0x2A:  # *
            return self._words()
        line = self._line(_LONGEST_NUMBER, "invalid multibulk length")
        if line is None:
            return False
        count = _number(line[1:], "invalid multibulk length")
        if count < -1:
            raise BadFrame("invalid multibulk length")
        if count > self.limits.arguments:
            raise BadFrame(f"invalid multibulk length: more than {self.limits.arguments} arguments")
        self.inline = False
        self._missing = max(count, 0)
        return True

    def _words(self) -> bool:
        line = self._line(self.limits.line, "too big inline request")
        if line is None:
            return False
        self.inline = True
        self._arguments = line.split()
        return True

    def _argument(self) -> bool:
        if self._bulk is None and not self._length():
            return False
        assert self._bulk is not None
        end = self._at + self._bulk
        if len(self._buffer) < end + 2:
            return False
        if self._buffer[end : end + 2] != b"\r\n":
            raise BadFrame("a bulk string does not end where its length says")
        self._arguments.append(bytes(memoryview(self._buffer)[self._at : end]))
        self._size += self._bulk
        self._at = self._looked = end + 2
        self._missing -= 1
        self._bulk = None
        return True

    def _length(self) -> bool:
        if self._at == len(self._buffer):
            return False
        kind = self._buffer[self._at]
        if kind != 0x24:  # $
            raise BadFrame(f"expected '$', got '{chr(kind) if 0x20 < kind < 0x7F else '?'}'")
        line = self._line(_LONGEST_NUMBER, "invalid bulk length")
        if line is None:
            return False
        length = _number(line[1:], "invalid bulk length")
        if length < 0 or length > self.limits.bulk:
            raise BadFrame("invalid bulk length")
        if self._size + length > self.limits.request:
            raise BadFrame("Message too large")
        self._bulk = length
        return True

    def _line(self, longest: int, problem: str) -> bytes | None:
        """The line that begins here, without its end; None if that has not come yet."""
        end = self._buffer.find(b"\n", max(self._looked, self._at), self._at + longest + 2)
        if end < 0:
            self._looked = len(self._buffer)
            if len(self._buffer) - self._at > longest + 1:
                raise BadFrame(problem)
            return None
        line = bytes(memoryview(self._buffer)[self._at : end])
        self._at = self._looked = end + 1
        return line.removesuffix(b"\r")


def _number(text: bytes, problem: str) -> int:
    digits = text.removeprefix(b"-")
    if not digits.isdigit() or len(text) > _LONGEST_NUMBER:
        raise BadFrame(problem)
    return int(text)


# Half-open connections: a peer that vanished without a word is noticed within a minute, by both sides.
#
# A connection that carries nothing is probed by the system. One on which something was sent ends when nobody confirms
# it.
# A worker counts as dead after 90 seconds, and one that is gone must not count as alive because its last pop still
# waits.


QUIET: Final = 30  # seconds without traffic before the first probe
EVERY: Final = 10  # seconds between two probes
PROBES: Final = 3  # without an answer, after which the connection ends
_OPTIONS: Final = (
    ("TCP_KEEPIDLE", QUIET),
    ("TCP_KEEPALIVE", QUIET),  # as macOS calls it
    ("TCP_KEEPINTVL", EVERY),
    ("TCP_KEEPCNT", PROBES),
    ("TCP_USER_TIMEOUT", (QUIET + EVERY * PROBES) * 1_000),  # milliseconds; Linux alone has it
)


def watch_peer(transport: asyncio.BaseTransport) -> None:
    """Let the system end this connection when its peer is gone."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS:
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


# Replies: what a command answers, and its bytes in RESP2 and RESP3. Pure.


class Simple(NamedTuple):
    """A short text without line breaks, as +OK."""

    text: str


class Failure(NamedTuple):
    """An error: the call was refused, and the connection continues."""

    message: str
    code: str = "ERR"


class Pairs(NamedTuple):
    """A mapping: a flat array in RESP2, a map in RESP3."""

    items: Mapping[str, Reply] | Mapping[bytes, bytes]


class Members(NamedTuple):
    """A set: an array in RESP2."""

    items: Sequence[bytes]


class Score(NamedTuple):
    """A floating-point number: text in RESP2."""

    value: float


class NoArray(NamedTuple):
    """The array that is not there, as the answer of a pop that found nothing."""


Reply: TypeAlias = "int | bytes | str | Simple | Failure | Pairs | Members | Score | NoArray | Sequence[Reply] | None"

OK = Simple("OK")


def encode(reply: Reply, protocol: int = 2) -> bytes:
    parts: list[bytes] = []
    _write(reply, protocol, parts)
    return b"".join(parts)


def _write(reply: Reply, protocol: int, parts: list[bytes]) -> None:
    match reply:
        case None | NoArray():
            parts.append(b"_\r\n" if protocol == 3 else b"$-1\r\n" if reply is None else b"*-1\r\n")
        case int():
            parts.append(b":%d\r\n" % reply)
        case bytes():
            parts.append(b"$%d\r\n%b\r\n" % (len(reply), reply))
        case str():
            _write(reply.encode(errors="replace"), protocol, parts)
        case Simple(text):
            parts.append(f"+{_one_line(text)}\r\n".encode(errors="replace"))
        case Failure(message, code):
            parts.append(f"-{code} {_one_line(message)}\r\n".encode(errors="replace"))
        case Score(number):
            text = score_text(number)
            _write(text, protocol, parts) if protocol == 2 else parts.append(f",{text}\r\n".encode())
        case Pairs(pairs):
            parts.append(b"%%%d\r\n" % len(pairs) if protocol == 3 else b"*%d\r\n" % (2 * len(pairs)))
            _write_each([part for pair in pairs.items() for part in pair], protocol, parts)
        case Members(members):
            parts.append(b"%b%d\r\n" % (b"~" if protocol == 3 else b"*", len(members)))
            _write_each(members, protocol, parts)
        case _:
            parts.append(b"*%d\r\n" % len(reply))
            _write_each(reply, protocol, parts)


def _write_each(replies: Sequence[Reply], protocol: int, parts: list[bytes]) -> None:
    for each in replies:
        _write(each, protocol, parts)


def score_text(value: float) -> str:
    """A score as Redis writes it: the shortest text that means it, whole numbers without a point."""
    if value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    if value == int(value) and abs(value) < 1e17:
        return "-0" if value == 0 and str(value).startswith("-") else str(int(value))
    text = repr(value)
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent):+03}" if exponent else text


def _one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")
