"""Validation of what callers give: errors that say what is meant, in place of what Python or a database would say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.errors import BadSetting, UsageError

MOST = 2**31 - 1  # what a column of both databases holds
_LONGEST_NAME = 200  # characters of what may be a misspelt name: to compare a longer one takes time


def shown(value: object) -> str:
    """A value as an error names it, which must not be a page long."""
    return (
        repr(value)
        if isinstance(value, str | int | float | type | None) and len(repr(value)) < 80
        else type(value).__name__
    )


def expected(what: str, wanted: str, value: object) -> str:
    """The one form of a message about a value of the wrong kind."""
    return f"{what} must be {wanted}; got {shown(value)}."


def mapping(value: object, what: str) -> dict[str, Any]:
    """A dict, or nothing, which is an empty one."""
    if value is not None and not isinstance(value, Mapping):
        raise UsageError(expected(what, "a dict", value))
    return dict(value or {})


def at_least_one(value: int, name: str) -> None:
    if value < 1:
        raise BadSetting(expected(name, "at least 1", value))
    if value > MOST:
        raise BadSetting(expected(name, f"at most {MOST:,}", value))


def whole(value: object, what: str, *, least: int = -MOST - 1, most: int = MOST) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise UsageError(expected(what, f"a whole number from {least:,} to {most:,}", value))
    return value


def page(limit: object) -> int:
    """How many of a list are asked for at once."""
    return whole(limit, "limit", least=1)


def one_of(value: object, what: str, known: Sequence[str]) -> None:
    """None is any of them."""
    if value is not None and value not in known:
        raise UsageError(expected(what, f"one of {', '.join(known)}", value))


def listed(value: object, what: str, kind: type[Any] | tuple[type[Any], ...], meant: str) -> tuple[Any, ...]:
    """Text is a list of letters to Python, and never what is meant."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise UsageError(expected(what, f"a list of {meant}", value))
    items = tuple(value)
    for item in items:
        if not isinstance(item, kind):
            raise UsageError(f"{what} must be a list of {meant}; one of them is {shown(item)}.")
    return items


def instance(value: object, what: str, kind: type[Any], name: str = "") -> None:
    """None is the default. `name`: what the kind is called outside."""
    if value is not None and not isinstance(value, kind):
        raise UsageError(expected(what, f"{name or kind.__name__}(…)", value))


def capabilities(requires: object) -> frozenset[str]:
    """What a worker must have."""
    return frozenset(listed(requires, "requires", str, "capabilities"))


def option_names(options: Mapping[str, object], known: type[Any], call: str) -> None:
    """`TypeError`, as Python raises it for a call, for a keyword that is not an item of this `TypedDict`."""
    for name in options:
        if name not in known.__annotations__:
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}")


def repeated(names: Iterable[str]) -> list[str]:
    """The names that stand more than once, in their order."""
    return [name for name, times in Counter(names).items() if times > 1]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a misspelt one was probably meant to be."""
    import difflib  # only what is wrong needs it

    if len(name) > _LONGEST_NAME:
        return None
    folded = {each.lower(): each for each in known if each != name}
    close = difflib.get_close_matches(name.lower(), folded, n=1)
    return folded[close[0]] if close else None


def named(noun: str, known: Sequence[str]) -> str:
    """Which things of a noun there are, as part of a sentence."""
    if len(known) == 1:
        return f"the only {noun} is {known[0]!r}"
    return f"there are {', '.join(known)}" if known else f"there is no {noun} yet"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about a name that is not there; empty when no known name is like it."""
    close = nearest(name, known)
    return f" Did you mean {close!r}?" if close else ""
