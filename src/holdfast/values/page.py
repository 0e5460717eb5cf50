"""Pages: every list that the store may have more of than one call returns.

You ask for a list with `limit`, how many at most, and `after`, the `next` of the page before. A cursor is opaque: only
its own list reads it.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from holdfast import validation
from holdfast.errors import UsageError

T = TypeVar("T")
V = TypeVar("V")
M = TypeVar("M", str, int)


class Page(list[T]):
    """Part of a list. `next` is what to give as `after` for the part behind it, None when this was the last.

    A page may be short, or empty, and yet have a `next`: the call has `looked` at so many, and there may be more.
    `total` is how many there are on all pages, up to a cap, if that was asked for.
    """

    def __init__(
        self, items: Iterable[T] = (), *, next: str | None = None, looked: int | None = None, total: int | None = None
    ) -> None:
        super().__init__(items)
        self.next = next
        self.total = total
        self.looked = len(self) if looked is None else looked

    @property
    def items(self) -> Sequence[T]:
        """What is on this page."""
        return self


def cursor(*place: str | int) -> str:
    """The place of the last item of a page, as text. It is as long as the names and the metadata in that place."""
    text = json.dumps(place, separators=(",", ":"), ensure_ascii=False)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def place(after: object, *kinds: type[Any]) -> tuple[Any, ...]:
    """The place that a cursor of a list says, of these kinds. `UsageError` when it is not a cursor of that list."""
    if not isinstance(after, str):
        raise UsageError(f"after is the next of a page, which is text, not {type(after).__name__}.")
    found: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(base64.urlsafe_b64decode(after + "=" * (-len(after) % 4)))
    fits = isinstance(found, list) and [type(each) for each in found] == list(kinds)
    fits = fits and all(_is_storable(each) for each in found)
    if not isinstance(found, list) or not fits:
        raise UsageError(f"after is the next of a page of the same list, not {after[:60]!r}.")
    return tuple(found)


def page_of(
    rows: Sequence[V], limit: int, value: Callable[[V], T], mark: Callable[[V], tuple[str | int, ...]]
) -> Page[T]:
    """A page of values, from rows of which there may be more if there are as many as the limit."""
    more = bool(rows) and len(rows) >= limit
    return Page(map(value, rows), next=cursor(*mark(rows[-1])) if more else None)


def part_of(items: Iterable[T], limit: int, after: str | None, mark: Callable[[T], M]) -> Page[T]:
    """A page of a list that is read whole, in the order of its marks, each of which names one item."""
    validation.page(limit)
    left = sorted(items, key=mark)
    if left and after is not None:
        (last,) = place(after, type(mark(left[0])))
        left = [each for each in left if mark(each) > last]
    shown = left[:limit]
    return Page(shown, next=cursor(mark(shown[-1])) if len(left) > limit else None)


def _is_storable(value: object) -> bool:
    """Whether a database could have such a value: not a number that is too large, nor half of a character."""
    if isinstance(value, int):
        return abs(value) < 2**63
    return isinstance(value, str) and "\x00" not in value and not any("\ud800" <= each <= "\udfff" for each in value)
