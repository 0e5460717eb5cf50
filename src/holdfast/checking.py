"""Checking what callers give: an error that says what is meant, in place of whatever Python or a database would say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.errors import UsageError

MOST = 2**31 - 1  # what a column of both databases holds


def shown(value: object) -> str:
    """A value as an error names it, which must not be a page long."""
    return repr(value) if isinstance(value, str | int | type) and len(repr(value)) < 80 else type(value).__name__


def mapping(value: object, what: str) -> dict[str, Any]:
    """A dict, or nothing, which is an empty one."""
    if value is not None and not isinstance(value, Mapping):
        raise UsageError(f"{what} is a dict, not {shown(value)}.")
    return dict(value or {})


def whole(value: object, what: str, *, least: int = -MOST - 1, most: int = MOST) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise UsageError(f"{what} is a whole number of {least:,} to {most:,}, not {shown(value)}.")
    return value


def page(limit: object) -> int:
    """How many of a list are asked for at once."""
    return whole(limit, "limit", least=1)


def one_of(value: object, what: str, known: Sequence[str]) -> None:
    """None is any of them."""
    if value is not None and value not in known:
        raise UsageError(f"{what} is one of {', '.join(known)}, not {shown(value)}.")


def listed(value: object, what: str, kind: type[Any] | tuple[type[Any], ...], meant: str) -> tuple[Any, ...]:
    """Text is a list of letters to Python, and never what is meant."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise UsageError(f"{what} is a list of {meant}, not {shown(value)}.")
    items = tuple(value)
    for item in items:
        if not isinstance(item, kind):
            raise UsageError(f"{what} are {meant}, not {shown(item)}.")
    return items


def instance(value: object, what: str, kind: type[Any], name: str = "") -> None:
    """None is the default. `name`: what the kind is called outside."""
    if value is not None and not isinstance(value, kind):
        raise UsageError(f"{what} is {name or kind.__name__}(…), not {shown(value)}.")


def capabilities(requires: object) -> frozenset[str]:
    """What a worker must have."""
    return frozenset(listed(requires, "requires", str, "capabilities"))
