"""What an answer must be: a type, its schema for the model, and the answer read as that type.

The provider holds a model to a part of the schema only, so an answer is read when it is stored. One that does not fit
is asked for once more, with what is wrong; the next one that does not fit is the end of the run. What is wrong is told
without secrets. A type says so with a `ValueError` or an `AssertionError`; whatever else it raises fails the attempt.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from holdfast import validation
from holdfast.agents.content import readable
from holdfast.agents.tools import untitled
from holdfast.errors import UsageError
from holdfast.kernel import codec
from holdfast.models.schemas import check_schema
from holdfast.text import plural
from holdfast.workers.endings import redacted

if TYPE_CHECKING:
    from pydantic import TypeAdapter

# Whether a value fits the schema that was stored with a tool or an agent, where the type itself is not at hand.
#
# It knows the words that schemas are mostly made of. What it does not know it lets pass: who has the type reads the
# value
# as that type anyway.


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
    return _SchemaCheck(schema.get("$defs") or {}).misfit(schema, value, "")


def _out_of_bounds(schema: Mapping[str, Any], value: Any) -> str | None:
    for word, (kind, fits, says) in _BOUNDS.items():
        bound = schema.get(word)
        if not isinstance(bound, int | float) or not isinstance(value, kind) or isinstance(value, bool):
            continue
        if not fits(value, bound):
            counted = {f"{noun}s": plural(bound, noun) for noun in ("character", "item", "field")}
            return says.format(bound, **counted)
    return None


class _SchemaCheck:
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


T = TypeVar("T")
OutputTypes = Callable[[str, Mapping[str, Any]], "Output[Any] | None"]
"""The type that this program has for the answers of an agent, by its name and the schema that the run was given."""

_LONGEST = 2_000  # characters of what is wrong
_MOST_PROBLEMS = 5


class Output(Generic[T]):
    """A type that an answer must have: its schema for the model, and the answer as that type."""

    def __init__(self, kind: type[T]) -> None:
        if isinstance(kind, str | int | float | Mapping | Sequence):
            raise UsageError(f"output must be a type, not {validation.shown(kind)}.")
        self._kind = kind

    @cached_property
    def _adapter(self) -> TypeAdapter[T]:
        from pydantic import TypeAdapter

        return TypeAdapter(self._kind)

    def schema(self) -> dict[str, Any]:
        """As it is stored; `UsageError` when the provider could not be asked for it."""
        made = cast(dict[str, Any], _closed(untitled(self._adapter.json_schema())))
        check_schema(made, "output")
        return made

    def __call__(self, _value: Any, text: str) -> T:
        """The answer; `ValueError` saying what does not fit, and where."""
        from pydantic import ValidationError

        try:
            return self._adapter.validate_json(text)  # as it was written: a strict type takes less of what was read
        except ValidationError as problem:
            raise Misfit(
                _misfits(problem.errors(include_url=False, include_context=False, include_input=False))
            ) from None


class UnreadAnswer(Exception):
    """The code of a type raised something that says nothing about the answer: the program failed, not the model."""


class Misfit(ValueError):
    """An answer is not of the type that was asked for."""


def _misfits(errors: Sequence[Mapping[str, Any]]) -> str:
    """What a validation found, in one line: `items.0.price: Input should be greater than 0`."""
    problems = [
        f"{'.'.join(map(str, error['loc']))}: {error['msg']}".removeprefix(": ") for error in errors[:_MOST_PROBLEMS]
    ]
    more = f"; and {len(errors) - _MOST_PROBLEMS} more" if len(errors) > _MOST_PROBLEMS else ""
    return "; ".join(problems) + more


def unknown_type(_agent: str, _schema: Mapping[str, Any]) -> None:
    """No type is known here: the schema alone says what fits."""


def read_answer(schema: Mapping[str, Any], text: str, kind: Output[Any] | None) -> tuple[Any, str | None]:
    """An answer in words, read as what was asked for, and what is wrong with it; None: nothing."""
    value, wrong = _read(schema, text, kind)
    return value, None if wrong is None else codec.clip(readable(wrong), _LONGEST)


def _read(schema: Mapping[str, Any], text: str, kind: Output[Any] | None) -> tuple[Any, str | None]:
    """An answer, and what is wrong with it; None when it is what was asked for."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as problem:
        return None, f"it is not JSON: {problem}"
    if kind is None:
        return value, misfit(schema, value)
    try:
        kind(value, text)
    except (ValueError, AssertionError) as problem:  # pydantic's own is a `Misfit` here
        return value, redacted(_explain(problem), _LONGEST)
    except Exception as problem:
        raise UnreadAnswer(f"the type of the answer raised {type(problem).__name__}: {problem}") from problem
    return value, None


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def _explain(problem: Exception) -> str:
    return str(problem) if isinstance(problem, Misfit) else f"{type(problem).__name__}: {problem}"


def _closed(node: Any) -> Any:
    """Structured output wants every object to say that it has no further properties."""
    if isinstance(node, dict):
        closed = {key: _closed(value) for key, value in node.items()}
        if closed.get("type") == "object" and "additionalProperties" not in closed:
            closed["additionalProperties"] = False
        return closed
    return [_closed(item) for item in node] if isinstance(node, list) else node
