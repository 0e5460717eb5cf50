"""The stored form: definitions and limits as they are stored, in a way that the next release does not change.

Release 0.1.0 writes all fields. A later release marks each field that it adds with `LATER`, and such a field is written
only where it says something. So a program that uses nothing new makes no new version of its agents when it is upgraded,
and the two releases of a deploy do not take turns in writing versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

LATER: Mapping[str, bool] = {"later": True}  # the metadata of a field that is younger than 0.1.0


def as_stored(record: Any) -> dict[str, Any]:
    """A definition, or a part of one, as it is stored."""
    values = [(each, getattr(record, each.name)) for each in fields(record)]
    return {
        each.name: _value(value) for each, value in values if "later" not in each.metadata or value != _default_of(each)
    }


def _value(value: Any) -> Any:
    if is_dataclass(value):
        return as_stored(value)
    return [_value(each) for each in value] if isinstance(value, tuple) else value


def _default_of(each: Field[Any]) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()
