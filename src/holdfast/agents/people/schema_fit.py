"""Whether a value fits the schema that was stored with a tool or an agent, where the type itself is not at hand.

It knows the words that schemas are mostly made of. What it does not know it lets pass: who has the type reads the value
as that type anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.shown_text import plural

_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


_NEARLY = 1e-9


def _is_multiple(value: float, bound: float) -> bool:
    try:
        return abs(value / bound - round(value / bound)) < _NEARLY
    except (ZeroDivisionError, OverflowError, ValueError):  # what cannot be said is let pass
        return True


# By word: whether a value of the right type keeps to it. The words of other types say nothing about it.
_BOUNDS: Mapping[str, tuple[type | tuple[type, ...], Callable[[Any, Any], bool], str]] = {
    "minimum": ((int, float), lambda value, bound: value >= bound, "is at least {}"),
    "maximum": ((int, float), lambda value, bound: value <= bound, "is at most {}"),
    "exclusiveMinimum": ((int, float), lambda value, bound: value > bound, "is more than {}"),
    "exclusiveMaximum": ((int, float), lambda value, bound: value < bound, "is less than {}"),
    "multipleOf": ((int, float), _is_multiple, "is a multiple of {}"),
    "minLength": (str, lambda value, bound: len(value) >= bound, "has at least {characters}"),
    "maxLength": (str, lambda value, bound: len(value) <= bound, "has at most {characters}"),
    "minItems": (list, lambda value, bound: len(value) >= bound, "has at least {items}"),
    "maxItems": (list, lambda value, bound: len(value) <= bound, "has at most {items}"),
    "minProperties": (dict, lambda value, bound: len(value) >= bound, "has at least {fields}"),
    "maxProperties": (dict, lambda value, bound: len(value) <= bound, "has at most {fields}"),
}


def misfit(schema: Mapping[str, Any], value: Any) -> str | None:
    """The first thing that is wrong with the value; None when nothing is."""
    return _Fitting(schema.get("$defs") or {}).misfit(schema, value, "")


def _out_of_bounds(schema: Mapping[str, Any], value: Any) -> str | None:
    for word, (kind, fits, says) in _BOUNDS.items():
        bound = schema.get(word)
        if not isinstance(bound, int | float) or not isinstance(value, kind) or isinstance(value, bool):
            continue
        if not fits(value, bound):
            counted = {f"{noun}s": plural(bound, noun) for noun in ("character", "item", "field")}
            return says.format(bound, **counted)
    return None


class _Fitting:
    def __init__(self, shared: Mapping[str, Any]) -> None:
        self._shared = shared

    def misfit(self, schema: Any, value: Any, place: str) -> str | None:
        if not isinstance(schema, Mapping):
            return None
        if isinstance(schema.get("$ref"), str):
            schema = {**self._shared.get(schema["$ref"].removeprefix("#/$defs/"), {}), **schema}
        choices = schema.get("anyOf") or schema.get("oneOf")
        if choices and all(self.misfit(choice, value, place) for choice in choices):
            return f"{place or 'it'} is none of what it may be"
        if "enum" in schema and value not in schema["enum"]:
            return f"{place or 'it'} is one of {', '.join(map(repr, schema['enum']))}"
        if "const" in schema and value != schema["const"]:
            return f"{place or 'it'} is {schema['const']!r}"
        kinds = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type") or []
        known = [_TYPES[kind] for kind in kinds if kind in _TYPES]
        if known and not any(fits(value) for fits in known):
            return f"{place or 'it'} is not of type {' or '.join(kinds)}"
        if (wrong := _out_of_bounds(schema, value)) is not None:
            return f"{place or 'it'} {wrong}"
        for part in schema.get("allOf") or ():
            if (wrong := self.misfit(part, value, place)) is not None:
                return wrong
        return self._inside(schema, value, f"{place}." if place else "")

    def _inside(self, schema: Mapping[str, Any], value: Any, before: str) -> str | None:
        if isinstance(value, list):
            wrong = (self.misfit(schema.get("items"), item, f"{before}{n}") for n, item in enumerate(value))
            return next((each for each in wrong if each), None)
        if not isinstance(value, dict):
            return None
        fields = schema.get("properties") or {}
        for name in schema.get("required") or ():
            if name not in value:
                return f"{before}{name} is missing"
        if schema.get("additionalProperties") is False and (more := sorted(value.keys() - fields.keys())):
            return f"there is no {before}{more[0]}"
        wrong = (self.misfit(fields[name], given, before + name) for name, given in value.items() if name in fields)
        return next((each for each in wrong if each), None)
