"""Public values: what Python returns, `--json` prints and events carry, in one shape.

A value is a frozen dataclass. Its times are datetimes in UTC, its durations are timedeltas, stored JSON is parsed, and
flags are bools. Rows of the store stay inside; a module per subject turns them into values, and `as_json` turns any
value into JSON. Values of agents, runs and sessions are in `holdfast.agents.values`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import types
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints, overload

from holdfast import validation
from holdfast.durations import show
from holdfast.errors import UsageError
from holdfast.kernel import codec

# Times: microseconds in the store, datetimes in UTC outside, ISO 8601 text in JSON.


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


@overload
def moment(us: int) -> datetime: ...


@overload
def moment(us: None) -> None: ...


def moment(us: int | None) -> datetime | None:
    """A stored time as a datetime. One beyond the year 9999 is shown as its last moment."""
    if us is None:
        return None
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return _LAST


def microseconds(at: datetime) -> int:
    """A datetime as the store has it."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def iso(at: datetime) -> str:
    """A time as JSON has it: in UTC, to the millisecond, with a Z."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Values as JSON: the one function through which every public value leaves the program.


def as_json(value: object) -> Any:  # noqa: PLR0911  a kind of value each
    """The value in the types of JSON.

    Times become ISO 8601 text that ends in Z, durations text such as "1h30m", decimals text. A value becomes an object
    with its public fields and with the properties that its class names in `SHOWN`, or what its own `as_json` says. A
    page becomes its items, `next` and `looked`, and `total` if it was asked for.
    """
    match value:
        case datetime():
            return iso(value)
        case timedelta():
            return show(value // timedelta(microseconds=1))
        case date() | Decimal():
            return str(value)
        case str():
            return str(value)  # without the class of an enum
        case Page():
            total = {} if value.total is None else {"total": value.total}
            return {"items": [as_json(each) for each in value], "next": value.next, "looked": value.looked, **total}
        case Mapping():
            return {str(name): as_json(each) for name, each in value.items()}
        case _ if callable(own := getattr(value, "as_json", None)):
            return own()
        case tuple() if hasattr(value, "_asdict"):
            return as_json(value._asdict())
        case list() | tuple():
            return [as_json(each) for each in value]
        case Set():
            return sorted(as_json(each) for each in value)
        case _ if is_dataclass(value):
            own = (field.name for field in fields(value) if not field.name.startswith("_"))
            return {**{name: as_json(getattr(value, name)) for name in own}, **_shown(value)}
        case _:
            return value


def _shown(value: object) -> dict[str, Any]:
    return {name: as_json(getattr(value, name)) for name in getattr(value, "SHOWN", ())}


# From a row of the store to a public value: the declared type of each field says how it is read.
#
# A `datetime` is stored as microseconds, a `timedelta` too, a `bool` as a number, a state by its name, and a field of
# type `Stored` as JSON.


T = TypeVar("T")

_JSON = "stored as JSON"
Stored = Annotated[Any, _JSON]
"""A field that the store has as JSON; a value has what the JSON says."""


def value_of(kind: type[T], row: object, **given: object) -> T:
    """The value of this kind that stands in a row. `given` are the fields that the row has otherwise or not at all."""
    readers = _readers(cast(Hashable, kind))
    read = {name: reader(getattr(row, name)) for name, reader in readers.items() if name not in given}
    return kind(**read, **given)


@cache
def _readers(kind: type[Any]) -> Mapping[str, Callable[[Any], object]]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: _reader(hints[field.name]) for field in fields(kind) if field.init}


def _reader(declared: Any) -> Callable[[Any], object]:
    if get_origin(declared) in (Union, types.UnionType):
        (declared,) = [each for each in get_args(declared) if each is not type(None)] or [declared]
    if get_origin(declared) is Annotated and _JSON in declared.__metadata__:
        return codec.decode
    if declared is datetime:
        return moment
    if declared is timedelta:
        return lambda us: None if us is None else timedelta(microseconds=us)
    if isinstance(declared, type) and issubclass(declared, StrEnum):
        known: Mapping[object, object] = {each.value: each for each in declared}
        return lambda name: known.get(name, name)  # one of a newer release stays the text that it is
    if declared is bool:
        return lambda flag: None if flag is None else bool(flag)
    return lambda value: value


# Quantiles of how long something took: half of it, 95 and 99 in a hundred took no longer.


Quantiles = dict[str, float]
"""Seconds by quantile: "0.5", "0.95" and "0.99"; empty when there was nothing."""

_NAMES = ("0.5", "0.95", "0.99")


def quantiles(*us: int | None) -> Quantiles:
    """From the microseconds of each."""
    return {name: each / 1e6 for name, each in zip(_NAMES, us, strict=True) if each is not None}


# Pages: every list that the store may have more of than one call returns.
#
# You ask for a list with `limit`, how many at most, and `after`, the `next` of the page before. A cursor is opaque:
# only
# its own list reads it.


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
        raise UsageError(f"after must be what a page of the same list has as `next`; got {type(after).__name__}.")
    found: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(base64.urlsafe_b64decode(after + "=" * (-len(after) % 4)))
    fits = isinstance(found, list) and [type(each) for each in found] == list(kinds)
    fits = fits and all(_is_storable(each) for each in found)
    if not isinstance(found, list) or not fits:
        raise UsageError(f"after must be what a page of the same list has as `next`; got {after[:60]!r}.")
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


# What one call changed of many, as programs see it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulk:
    """What one call changed: how many fitted, how many were changed, and where to continue.

    `refused` are those that could not be changed, by id, each with the reason. `next` is None at the end.
    """

    matched: int
    changed: int
    refused: dict[str, str]
    next: str | None
    dry_run: bool


__all__ = ["Page", "as_json"]
