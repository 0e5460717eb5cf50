"""Replies: what a command answers, and its bytes in RESP2 and RESP3. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias


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
