"""Filters and operands whose cost does not show in the length of a template: it is looked at before they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.machines.meter import METER, TemplateError, measure

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
