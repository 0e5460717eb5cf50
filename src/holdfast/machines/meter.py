"""What one rendering of a template may use: steps, time, and the size of what it makes.

A list may hold one list many times, and takes no memory for that until it is copied or written out. So a value
is measured as a whole, with every repetition.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

DEEPEST = 60
MOST_OUTPUT = 1_048_576  # characters of a text, or of a value written as JSON
MOST_MADE = 32 * MOST_OUTPUT  # of all texts that one rendering makes
MOST_STEPS = 500_000  # iterations, and items that filters look at, of one rendering
MOST_SECONDS = 2.0
MOST_ITEMS = 100_000  # of a list that a template makes


class TemplateError(Exception):
    """A template cannot be rendered with the values that there are now."""


class Meter:
    """What one rendering may still use."""

    def __init__(self) -> None:
        self._left = MOST_STEPS
        self._unmade = MOST_MADE
        self._until = time.monotonic() + MOST_SECONDS

    def use(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise TemplateError(f"the template needs more than {MOST_STEPS:,} steps.")
        if time.monotonic() > self._until:
            raise TemplateError(f"the template needs more than {MOST_SECONDS:g} s.")

    def make(self, size: int) -> None:
        self._unmade -= size
        if self._unmade < 0:
            raise TemplateError(f"the template makes more than {MOST_MADE:,} characters or items in all.")


METER: ContextVar[Meter] = ContextVar("holdfast_meter")


def allow(size: int) -> None:
    """Before a text or a list of this size is made."""
    if size > MOST_OUTPUT:
        raise TemplateError(f"the template makes more than {MOST_OUTPUT:,} characters or items.")
    METER.get().make(size)


def metered_items(items: Iterable[Any]) -> Iterator[Any]:
    """Items that are counted as they come."""
    from jinja2 import Undefined

    if isinstance(items, Undefined) or items is None:
        return
    meter = METER.get()
    for item in items:
        meter.use(1)
        yield item


def measure(value: Any) -> int:
    """About how many characters lists and mappings have as a text, within what the meter allows."""
    meter, size = METER.get(), 0
    left: list[Any] = [value]
    while left:
        each = left.pop()
        added = 2 + (len(each) if isinstance(each, str) else 0)
        size += added
        meter.make(added)
        if isinstance(each, Mapping):
            meter.use(len(each))
            left += (*each.keys(), *each.values())
        elif isinstance(each, list | tuple):
            meter.use(len(each))
            left += each
    return size


class _Size:
    """Of one value, as far as it is known."""

    def __init__(self, indent: int) -> None:
        self._indent = indent
        self._left = MOST_OUTPUT

    def add(self, characters: int, depth: int) -> None:
        self._left -= characters + self._indent * depth
        if self._left < 0:
            raise TemplateError(f"the template makes more than {MOST_OUTPUT:,} characters or items.")


def plain(value: Any, indent: int = 0) -> Any:
    """The value as JSON has it: what is missing is null, and what can be walked is a list."""
    return _plain(value, _Size(indent), 0)


def _plain(value: Any, size: _Size, depth: int) -> Any:
    from jinja2 import Undefined

    size.add(len(value) if isinstance(value, str) else 1, depth)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Undefined):
        return None
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        if value.bit_length() > 63:
            raise TemplateError("this number is too large to be stored.")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TemplateError("this is not a number that JSON knows.")
        return float(value)
    if depth > DEEPEST:
        raise TemplateError("this value is nested too deep.")
    return _walked(value, size, depth)


def _walked(value: Any, size: _Size, depth: int) -> Any:
    if isinstance(value, Mapping):
        METER.get().use(len(value))
        return {_key(key, size, depth): _plain(each, size, depth + 1) for key, each in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        items = []
        for each in metered_items(value):
            items.append(_plain(each, size, depth + 1))
            if len(items) > MOST_ITEMS:
                raise TemplateError(f"this list has more than {MOST_ITEMS:,} items.")
        return items
    raise TemplateError(f"{type(value).__name__} is no plain value.")


def _key(key: Any, size: _Size, depth: int) -> str:
    text = str(key)
    size.add(len(text), depth)
    return text


# Filters and operands whose cost does not show in the length of a template: it is looked at before they are used.


MOST_BITS = 4_096  # of a number that a template computes with
_MOST_PLACES = 400  # more than any number has


def rounded(of_jinja: Callable[..., Any], value: Any, precision: Any = 0, *more: Any, **named: Any) -> Any:
    places = None if precision is None else int(precision)
    if places is not None and abs(places) > _MOST_PLACES:
        raise TemplateError(f"round takes {_MOST_PLACES} places at most, not {places}.")
    return of_jinja(value, places, *more, **named)


def whole_number(of_jinja: Callable[..., Any], *given: Any, **named: Any) -> Any:
    number = of_jinja(*given, **named)
    if isinstance(number, int) and number.bit_length() > MOST_BITS:
        raise TemplateError("this number is too large.")
    return number


def measured(value: Any) -> Any:
    """A list or mapping that a template writes: what it holds many times may not grow without end."""
    measure(value)
    return value


def weight(value: Any) -> int:
    """How much there is to copy or compare."""
    return measure(value) if holds_others(value) else len(value)


def compared(value: Any) -> Any:
    """A value that is compared, searched or sorted, which may mean to read all of it."""
    meter = METER.get()
    if isinstance(value, str):
        meter.use(1 + len(value) // 64)
    elif isinstance(value, dict) or holds_others(value):
        measure(value)
    elif isinstance(value, list | tuple):
        meter.use(1 + len(value) // 16 + sum(len(each) for each in value if isinstance(each, str)) // 64)
    return value


def sliced(value: Any) -> Any:
    """A text or a list of which a part is copied."""
    if isinstance(value, str | list | tuple):
        METER.get().use(1 + len(value) // 64)
    return value


def holds_others(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(each, list | dict | tuple) for each in value)
