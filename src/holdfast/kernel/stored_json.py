"""Stored JSON, read so that releases may mix: every record that was written as JSON comes back through here.

Fields that this release does not know are left out, and missing ones take their defaults. What is left must have the
type that the record declares. `NotUnderstood` says that it has not: the reader leaves it to a newer release, and gives
up nothing for good.
"""

from __future__ import annotations

import types
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from holdfast.errors import NotUnderstood, UsageError

T = TypeVar("T")


def read(kind: type[T], stored: object, *, what: str) -> T:
    """The record of this kind, a dataclass or a named tuple, that was stored as `stored`. `what` names it in errors."""
    try:
        return cast(T, _record(kind, stored, ""))
    except _Misfit as misfit:
        raise NotUnderstood(what, str(misfit)) from None
    except (UsageError, TypeError, ValueError) as problem:  # the record's own checks
        raise NotUnderstood(what, str(problem).removesuffix(".")) from problem


class _Misfit(Exception):
    pass


@cache
def _fields(kind: type[Any]) -> Mapping[str, tuple[Any, bool]]:
    """The declared type of each field, and whether it may be missing."""
    hints = get_type_hints(kind)
    if is_dataclass(kind):
        declared = [each for each in fields(kind) if each.init]
        optional = {each.name for each in declared if (each.default, each.default_factory) != (MISSING, MISSING)}
        return {each.name: (hints[each.name], each.name in optional) for each in declared}
    return {name: (hints[name], name in kind._field_defaults) for name in kind._fields}


def _record(kind: type[Any], stored: object, at: str) -> object:
    if not isinstance(stored, Mapping):
        raise _Misfit(f"{at.removesuffix('.') or 'it'} is {_shown(stored)}, not an object")
    given = {}
    for name, (declared, optional) in _fields(cast(Hashable, kind)).items():
        if name in stored:
            given[name] = _value(declared, stored[name], f"{at}{name}")
        elif not optional:
            raise _Misfit(f"{at}{name} is missing")
    return kind(**given)


def _value(declared: Any, value: object, at: str) -> object:
    origin, arguments = get_origin(declared), get_args(declared)
    if declared is Any:
        return value
    if origin in (Union, types.UnionType):
        return _one_of(arguments, value, at)
    if origin is Literal:
        if value in arguments:
            return value
        raise _Misfit(f"{at} is {_shown(value)}, which is none of {', '.join(map(str, arguments))}")
    if origin is tuple:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise _Misfit(f"{at} is {_shown(value)}, not a list")
        return tuple(_value(arguments[0], each, f"{at}[{place}]") for place, each in enumerate(value))
    if hasattr(declared, "__supertype__"):  # a NewType
        return _value(declared.__supertype__, value, at)
    if is_dataclass(declared):
        return _record(cast(type[Any], declared), value, f"{at}.")
    expected = origin or declared
    if expected is timedelta or not isinstance(value, (int, float) if expected is float else expected):
        raise _Misfit(f"{at} is {_shown(value)}, not {'nothing' if expected is type(None) else expected.__name__}")
    return value


def _one_of(declared: Sequence[Any], value: object, at: str) -> object:
    """What fits the first of these types that it fits; the complaint is about the first of them."""
    complaint = None
    for each in declared:
        try:
            return _value(each, value, at)
        except _Misfit as misfit:
            complaint = complaint or misfit
    assert complaint is not None
    raise complaint


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
