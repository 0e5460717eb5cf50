"""Patterns of keys, as KEYS and SCAN take them: * ? [abc] [^a-c] and backslashes."""

from __future__ import annotations

import re


def glob(pattern: bytes) -> re.Pattern[bytes]:
    """What matches the same keys as Redis would."""
    made, at = b"", 0
    while at < len(pattern):
        each = pattern[at : at + 1]
        at += 1
        if each == b"*":
            made += b".*" if not made.endswith(b".*") else b""
        elif each == b"?":
            made += b"."
        elif each == b"[":
            part, at = _class(pattern, at)
            made += part
        else:
            if each == b"\\" and at < len(pattern):
                each = pattern[at : at + 1]
                at += 1
            made += re.escape(each)
    return re.compile(made, re.S)


def _class(pattern: bytes, at: int) -> tuple[bytes, int]:
    """The characters up to the closing bracket, or to the end."""
    negated = pattern[at : at + 1] == b"^"
    at += negated
    ranges: list[tuple[int, int]] = []
    while at < len(pattern) and pattern[at : at + 1] != b"]":
        if pattern[at : at + 1] == b"\\" and at + 1 < len(pattern):
            at += 1
            ranges.append((pattern[at], pattern[at]))
            at += 1
        elif at + 2 < len(pattern) and pattern[at + 1 : at + 2] == b"-":
            ranges.append((min(pattern[at], pattern[at + 2]), max(pattern[at], pattern[at + 2])))
            at += 3
        else:
            ranges.append((pattern[at], pattern[at]))
            at += 1
    inside = b"".join(re.escape(bytes([low])) + b"-" + re.escape(bytes([high])) for low, high in ranges)
    empty = b"." if negated else b"(?!)"
    return (b"[" + b"^" * negated + inside + b"]" if inside else empty), at + 1


def literal_begin(pattern: bytes) -> bytes:
    """What everything begins with that matches."""
    return re.split(rb"[*?\[\\]", pattern, maxsplit=1)[0]
