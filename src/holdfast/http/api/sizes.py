"""Sizes: how many bytes an answer has at most, and what becomes of what does not fit.

A page ends where it is full, and has a `next`; it is read in parts, so that the memory is bounded too. What is still
too long is cut: its longest values end with a note that says where all of it is.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.http.api.paging import Paging, PartOfPage
from holdfast.values import Page

ANSWER = 4 * 1024 * 1024  # bytes
_TOGETHER = 100  # items that are read at a time
_LEAST = 128  # bytes of a value that always stay
_MOST_KEYS = 50  # of an object that keeps them all
_LONGEST = (65_536, 4_096, 512)  # bytes of a value in a list of records, until they fit

Read = Callable[[Paging], Awaitable[Page[Any]]]
Encode = Callable[[Iterable[object]], Awaitable[list[bytes]]]


def encoded(told: object) -> bytes:
    """JSON, as answers have it."""
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"), default=str).encode(errors="replace")


@dataclass(slots=True)
class FullPage:
    """A page as text, while it fills. `next` is where it continues."""

    next: str | None
    looked: int = 0
    total: int | None = None
    items: list[bytes] = field(default_factory=list)

    @property
    def room(self) -> int:
        return ANSWER - sum(map(len, self.items))

    def take(self, part: Page[Any], items: Sequence[bytes]) -> None:
        self.items += items
        self.next, self.looked = part.next, self.looked + part.looked
        self.total = part.total if self.total is None else self.total

    def text(self) -> bytes:
        rest = {"next": self.next, "looked": self.looked, **({} if self.total is None else {"total": self.total})}
        return b'{"items":[' + b",".join(self.items) + b"]," + encoded(rest)[1:]


async def read_page(read: Read, asked: Paging, encode: Encode, *, first: int) -> FullPage:
    """As much of a page as fits into an answer, and at least one item.

    A part that has looked at fewer or more than it was asked for is the last: its list, or its look, has ended.
    """
    page, step = FullPage(asked.after), min(asked.limit, first)
    while True:
        part = await read(Paging(page.next, step))
        items = await encode(part)
        fitting = _fitting(items, page.room)
        if fitting == 0 and items and page.items:
            return page
        if fitting < len(items) > 1:
            page.total = part.total if page.total is None else page.total
            part = await read(Paging(page.next, max(1, fitting)))
            items = await encode(part)
        page.take(part, items)
        left = asked.limit - len(page.items)
        looked = part.whole if isinstance(part, PartOfPage) else part.looked
        if part.next is None or looked != step or left <= 0 or page.room <= 0:
            return page
        step = min(left, _TOGETHER)


def _fitting(items: Sequence[bytes], room: int) -> int:
    """How many of them fit."""
    for number, item in enumerate(items):
        room -= len(item) + 1
        if room < 0:
            return number
    return len(items)


def fitted(told: Any, note: Callable[[Any], str]) -> Any:
    """An answer that is too long, with its longest values cut. `note` says of a record where all of it is."""
    if isinstance(told, list):
        return _fitted_list(told, note)
    longest, short = ANSWER, told
    while len(encoded(short)) > ANSWER and longest > _LEAST:
        longest //= 2
        short = shortened(told, longest, note(told))
    return short


def _fitted_list(told: list[Any], note: Callable[[Any], str]) -> list[Any]:
    short, texts = told, [encoded(each) for each in told]
    for longest in _LONGEST:
        if max(map(len, texts)) > longest:  # else it is long because there are many
            short = [shortened(each, longest, note(each)) for each in told]
            texts = [encoded(each) for each in short]
            if _fitting(texts, ANSWER) == len(texts):
                return short
    return short[: _fitting(texts, ANSWER)]


def shortened(record: Any, longest: int, note: str) -> Any:
    """A record whose values have about so many bytes each; a value that is no record likewise."""
    if not isinstance(record, dict):
        return _Shortening(longest, note).value(record, 0)
    return {name: _Shortening(longest, note).value(each, 1) for name, each in record.items()}


class _Shortening:
    """Walks through one value and spends its bytes, first come, first served."""

    def __init__(self, left: int, note: str) -> None:
        self._left = left
        self._note = f"[cut: {note}]"

    def value(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return self._list(value, depth)
        if isinstance(value, dict):
            return self._object(value, depth)
        self._left -= 8
        return value

    def _text(self, text: str) -> str:
        raw = text.encode(errors="replace")
        most = max(self._left, _LEAST)
        self._left -= len(raw)
        return text if len(raw) <= most else f"{raw[:most].decode(errors='ignore')}… {self._note}"

    def _list(self, items: list[Any], depth: int) -> list[Any]:
        kept: list[Any] = []
        for each in items:
            if self._left <= 0:
                return [*kept, {"cut": self._note} if isinstance(each, dict) else self._note]
            kept.append(self.value(each, depth + 1))
        return kept

    def _object(self, members: dict[str, Any], depth: int) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for name, each in members.items():
            if self._left <= 0 and (depth > 1 or len(members) > _MOST_KEYS):
                return {**kept, "cut": self._note}
            self._left -= len(name)
            kept[name] = self.value(each, depth + 1)
        return kept
