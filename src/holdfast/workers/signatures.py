"""A function's arguments and result as JSON, and back, by its annotations.

pydantic does the work, at first use: importing and decorating stay cheap, and forward references resolve.
"""

from __future__ import annotations

import contextlib
import inspect
import reprlib
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import cached_property
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from holdfast.errors import BadPayload, UsageError
from holdfast.kernel import codec
from holdfast.outcomes import Outcome
from holdfast.text import Redactor, plural

if TYPE_CHECKING:
    from pydantic import BaseModel, ConfigDict

# JSON mode: what pydantic may read from stored text itself, without a decoder before it.
#
# It goes by other rules then: a strict model takes a date from its text, 1.0 is another Decimal, a union prefers
# another member. A job must get the same arguments whichever way they are read. So only annotations made of the parts
# listed here are read so, and the tests must show for each new part that both ways agree.


_Schema = Mapping[str, Any]  # of pydantic's core

# Each part, and where it has others inside. These are known for what they are both ways, also among others in a union.
_EXACT: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("any", "none", "bool", "int", "float", "str", "literal"), ()),
    "list": ("items_schema",),
    "dict": ("keys_schema", "values_schema"),
    "nullable": ("schema",),
    "union": ("choices",),
}
# These are made of the same text or list both ways, but a union would be less sure of them in one than in the other.
_MADE: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("datetime", "date", "time", "timedelta", "uuid", "enum"), ()),
    **dict.fromkeys(("tuple", "set", "frozenset"), ("items_schema",)),
    **dict.fromkeys(("default", "model", "model-field", "dataclass", "dataclass-field"), ("schema",)),
    "model-fields": ("fields", "extras_schema"),
    "dataclass-args": ("fields",),
}
# What makes a part go by other rules, when it is set; and which keys of a model's configuration are harmless.
_DISTURBING = ("strict", "validate_default", "coerce_numbers_to_str", "custom_init", "revalidate_instances")
_HARMLESS = frozenset({"title", "extra_fields_behavior", "ser_json_inf_nan", "ser_json_bytes", "ser_json_timedelta"})


def reads_alike(schema: _Schema, *, in_union: bool = False) -> bool:
    """Whether values of this core schema come out the same, read from text or from what a decoder made of it."""
    kind = schema["type"]
    inside = _EXACT.get(kind) if in_union or kind in _EXACT else _MADE.get(kind)
    if inside is None or _is_disturbed(schema) or not _is_plain(kind, schema):
        return False
    within = in_union or kind == "union"
    return all(reads_alike(part, in_union=within) for key in inside for part in _parts(schema.get(key)))


def _is_disturbed(schema: _Schema) -> bool:
    config = schema.get("config", {})
    return any(schema.get(key) for key in _DISTURBING) or any(config[key] for key in config.keys() - _HARMLESS)


def _is_plain(kind: str, schema: _Schema) -> bool:
    """Whether what it is compared with is written in JSON as it is."""
    match kind:
        case "literal":
            return all(type(value) is str for value in schema["expected"])
        case "enum":
            return all(type(member.value) in (str, int) for member in schema["members"])
        case "dict":
            return schema.get("keys_schema", {}).get("type", "any") in ("any", "str")
        case _:
            return True


def _parts(inner: Any) -> Iterator[_Schema]:
    """The schemas under one key: one, or several by name, in a row, or in a row with a label each."""
    if isinstance(inner, Mapping):
        yield from [inner] if isinstance(inner.get("type"), str) else inner.values()
    else:
        yield from (part[0] if isinstance(part, tuple) else part for part in inner or ())


_BRIEF = reprlib.Repr()  # a part of a long value, whatever it holds
_PLAIN = (str, int, float, bool, Decimal, list, tuple, dict, set)
_LONGEST = 80  # bytes of a value that an error shows
_OUTCOMES = frozenset(get_args(Outcome))
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Signature:
    """What may be passed to a job. A first parameter annotated with the context is supplied by the runtime."""

    def __init__(self, kind: str, function: Callable[..., Any], context: str = "JobContext") -> None:
        self._kind = kind
        self._function = function
        parameters = list(inspect.signature(function).parameters.values())
        self.takes_context = bool(parameters) and _is_context(parameters[0].annotation, context)
        self._parameters = parameters[1:] if self.takes_context else parameters
        self._places = [p.name for p in self._parameters if p.kind in _POSITIONAL]
        for parameter in self._parameters:
            if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                raise UsageError(f"job {kind!r} takes *{parameter.name}; a job must name each of its arguments.")

    def warm_up(self) -> None:
        """Build the models. What they cannot be built of is the first job's error, as it would have been."""
        with contextlib.suppress(Exception):
            _ = self._validate, self._validate_text, self._names, self._result, self._may_be_nothing

    def has(self, name: str) -> bool:
        return any(parameter.name == name for parameter in self._parameters)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as plain JSON values, checked against the annotations."""
        named = self._bind(args, kwargs)
        try:
            dumped: dict[str, Any] = self._dump(self._validate(named), mode="json", by_alias=True)
        except (ValueError, TypeError) as problem:
            why = f": {_first(problem)}" if _is_complaint(problem) else f" are not JSON: {problem}"
            raise BadPayload(f"arguments of job {self._kind!r}{why}") from None
        return dumped

    def decode(self, payload: Any) -> dict[str, Any]:
        """Stored arguments as the function's annotations promise them."""
        if not payload and not self._parameters:
            return {}
        try:
            checked = self._validate(payload)
        except ValueError as problem:
            if not _is_complaint(problem):
                raise
            raise BadPayload(self._refusal(_first(problem))) from None
        return self._named(checked)

    def misfit(self, payload: Any) -> str | None:
        """What is wrong with these arguments, which may have been written by a person; None when they fit."""
        try:
            self._validate(payload)
        except (ValueError, TypeError) as problem:
            return _first(problem) if _is_complaint(problem) else str(problem)
        return None

    def _refusal(self, why: str) -> str:
        return f"stored arguments of job {self._kind!r} do not fit: {why}"

    def read(self, text: str) -> dict[str, Any]:
        """`decode` of stored text, without a decoder between where that makes no difference."""
        validate = self._validate_text
        if validate is None:
            return self.decode(codec.decode(text))
        try:
            return self._named(validate(text))
        except ValueError:  # `decode` says what is wrong; and it takes what is nested deeper
            return self.decode(codec.decode(text))

    def _named(self, checked: Any) -> dict[str, Any]:
        values = checked.__dict__
        return {name: values[field] for field, name in self._names}

    def encode_result(self, value: Any) -> Any:
        """A result as a plain JSON value; `BadPayload` when it is not of the declared type, or not JSON."""
        if value is None and self._may_be_nothing:
            return None
        if value is None:
            raise BadPayload(self._not_declared(value, {"value": None}))
        result = self._result.model_construct(value=value)
        try:
            return result.model_dump(mode="json", warnings="error")["value"]
        except (ValueError, TypeError, RecursionError) as problem:
            try:
                stored = result.model_dump(mode="json", warnings=False)
            except (ValueError, TypeError, RecursionError):
                raise BadPayload(f"the result of job {self._kind!r} cannot be stored as JSON: {problem}") from None
            raise BadPayload(self._not_declared(value, stored)) from None

    def _not_declared(self, value: Any, stored: Any) -> str:
        """What is wrong with a result, and in which of its fields if it is in one."""
        said = f"job {self._kind!r} returned {_shown(value)}, declared {_type_name(self._returns)}"
        try:
            self._result.model_validate(stored)
        except ValueError as problem:
            if _is_complaint(problem) and len(_place(problem)) > 1 and not _is_union(self._returns):
                return f"{said}: {_first(problem, inside=1)}"
        return f"{said}."

    def decode_result(self, value: Any) -> Any:
        return getattr(self._result.model_validate({"value": value}), "value")  # noqa: B009  a field made below

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return get_type_hints(self._function, include_extras=True)

    @cached_property
    def _fields(self) -> dict[str, inspect.Parameter]:
        """Parameters by names that a model may have: theirs can be `json`, `copy` or `_x`."""
        return {f"argument_{number}": parameter for number, parameter in enumerate(self._parameters)}

    @cached_property
    def _names(self) -> list[tuple[str, str]]:
        return [(field, parameter.name) for field, parameter in self._fields.items()]

    # Every job passes here, so pydantic's own compiled functions are called without the methods around them.

    @cached_property
    def _validate(self) -> Callable[[Any], Any]:
        return self._model.__pydantic_validator__.validate_python

    @cached_property
    def _validate_text(self) -> Callable[[str], Any] | None:
        model = self._model
        return model.__pydantic_validator__.validate_json if reads_alike(model.__pydantic_core_schema__) else None

    @cached_property
    def _dump(self) -> Callable[..., Any]:
        return self._model.__pydantic_serializer__.to_python

    @cached_property
    def _may_be_nothing(self) -> bool:
        """Whether `None` is a result of the declared type."""
        if self._returns in (Any, None, type(None)):
            return True
        try:
            self._result.model_validate({"value": None})
        except ValueError:
            return False
        return True

    @cached_property
    def _model(self) -> type[BaseModel]:
        from pydantic import Field, create_model

        fields: dict[str, Any] = {}
        for field, parameter in self._fields.items():
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            fields[field] = (self._hints.get(parameter.name, Any), Field(default, alias=parameter.name))
        return create_model(f"Arguments of {self._kind}", __config__=_config(), **fields)

    @cached_property
    def _result(self) -> type[BaseModel]:
        from pydantic import create_model

        return create_model(f"Result of {self._kind}", __config__=_config(), value=(self._returns, ...))

    @cached_property
    def _returns(self) -> Any:
        return _result_of(self._hints.get("return", Any))

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        places = self._places
        if len(args) > len(places):
            raise BadPayload(f"job {self._kind!r} takes {plural(len(places), 'positional argument')}; got {len(args)}.")
        named = dict(zip(places, args, strict=False))
        if not kwargs:
            return named
        if twice := sorted(named.keys() & kwargs.keys()):
            raise BadPayload(f"job {self._kind!r} got {twice[0]!r} twice.")
        return {**named, **kwargs}


def _config() -> ConfigDict:
    from pydantic import ConfigDict

    # NaN must reach our own codec, which refuses it; pydantic would make it null.
    return ConfigDict(extra="forbid", protected_namespaces=(), ser_json_inf_nan="constants")


def _result_of(annotation: Any) -> Any:
    """The type of the result alone: outcomes that stand beside it are not stored."""
    if _is_union(annotation):
        results = [member for member in get_args(annotation) if member not in _OUTCOMES]
        return Union[tuple(results)] if results else Any  # noqa: UP007  the members are known only here
    return Any if annotation in _OUTCOMES else annotation


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, UnionType)


def _type_name(annotation: Any) -> str:
    """A type as people write it: `str`, `list[int]`, `str | None`."""
    if _is_union(annotation):
        return " | ".join(map(_type_name, get_args(annotation)))
    name = annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
    return "None" if name == "NoneType" else name.removeprefix("typing.")


def _shown(value: Any) -> str:
    """A value as an error names it: its type, and what it is if that is plain; a part of it if it is long."""
    if value is None:
        return "None"
    name = type(value).__name__
    if type(value) not in _PLAIN:
        return name
    try:
        return f"{name} {Redactor().text(codec.clip(_BRIEF.repr(value), _LONGEST))}"
    except ValueError:  # a number of so many digits that Python does not write it
        return name


def _is_context(annotation: object, context: str) -> bool:
    """Is this annotation the context's class, however it is written?"""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return text.rsplit(".", 1)[-1] == context


def _is_complaint(problem: Exception) -> bool:
    """Is it what pydantic says of a value? Asked only when something is wrong: the import takes its time."""
    from pydantic import ValidationError

    return isinstance(problem, ValidationError)


def _place(problem: Any) -> tuple[int | str, ...]:
    """Where the first complaint of a validation error is."""
    return tuple(problem.errors(include_url=False)[0]["loc"])


def _first(problem: Any, *, inside: int = 0) -> str:
    """The first complaint of a validation error, as one line; its place begins `inside` so many fields."""
    error = problem.errors(include_url=False)[0]
    place = ".".join(str(part) for part in _place(problem)[inside:])
    return f"{place}: {error['msg']}."
