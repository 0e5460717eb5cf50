"""From a row of the store to a public value: the declared type of each field says how it is read.

A `datetime` is stored as microseconds, a `timedelta` too, a `bool` as a number, a state by its name, and a field of
type `Stored` as JSON.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from holdfast.kernel import codec
from holdfast.values.times import moment

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
