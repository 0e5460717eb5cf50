"""Values as JSON: the one function through which every public value leaves the program."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from holdfast.durations import show
from holdfast.values.page import Page
from holdfast.values.times import iso


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
