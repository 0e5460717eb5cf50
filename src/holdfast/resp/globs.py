"""Patterns of keys, as KEYS and SCAN take them: * ? [abc] [^a-c] and backslashes."""

from __future__ import annotations

import re


def glob(pattern: bytes) -> re.Pattern[bytes]:
    """What matches the same keys as Redis would. A star never gives back what the parts after it have found, so that no
    pattern costs more than its length times that of the key."""
    first, *others = _between_stars(pattern)
    if not others:
        return re.compile(first, re.S)
    *middle, last = others
    return re.compile(first + b"".join(b"(?>.*?" + part + b")" for part in middle if part) + b".*" + last, re.S)


def _between_stars(pattern: bytes) -> list[bytes]:
    """Expressions of one length each."""
    parts, at = [b""], 0
    while at < len(pattern):
        each = pattern[at : at + 1]
        at += 1
        if each == b"*":
            parts.append(b"")
        elif each == b"?":
            parts[-1] += b"."
        elif each == b"[":
            part, at = _class(pattern, at)
            parts[-1] += part
        else:
            if each == b"\\" and at < len(pattern):
                each = pattern[at : at + 1]
                at += 1
            parts[-1] += re.escape(each)
    return parts


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
