"""What a viewer sees of a view: the same records, with secrets taken out of what programs and models were given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from holdfast.http.api.answers import ARGUMENTS
from holdfast.redaction import Redactor
from holdfast.values import Page, as_json


def redacted(value: Any) -> Any:
    """The value, as the API would tell it to a viewer, still in its own types."""
    match value:
        case Page():
            return Page(map(redacted, value), next=value.next, looked=value.looked)
        case list():
            return [redacted(each) for each in value]
        case tuple() if hasattr(value, "_replace"):
            return type(value)(*map(redacted, value))
        case tuple():
            return tuple(redacted(each) for each in value)
        case Mapping():
            return {name: _field(str(name), each) for name, each in value.items()}
        case _ if is_dataclass(value) and not isinstance(value, type):
            given = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
            changed = {name: _field(name, each) for name, each in given.items()}
            return replace(value, **changed)
        case _:
            return value


def _field(name: str, value: Any) -> Any:
    if name in ARGUMENTS and value is not None:
        plain = Redactor().value(as_json(value), "arguments")
        return tuple(plain) if isinstance(value, tuple) and isinstance(plain, list) else plain
    return redacted(value)
