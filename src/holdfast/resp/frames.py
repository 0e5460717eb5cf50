"""Frames: the requests of a client, cut out of the bytes that arrive. Pure: it does no I/O.

A request is an array of bulk strings, or a line of words. Whatever exceeds the limits is refused as soon as its length
is known, before its content is stored, and every byte is looked at once.
"""

from __future__ import annotations

from typing import NamedTuple

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
