"""Stored arguments are the same whichever way they are read: from their text, or from what a decoder made of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, Strict, TypeAdapter, ValidationError

from holdfast.errors import BadPayload, UsageError
from holdfast.kernel import codec
from holdfast.workers.signatures import Signature, reads_alike


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    SMALL = 1


class Word(StrEnum):
    YES = "yes"


class Place(Enum):
    HOME = (1, 2)


@dataclass
class Point:
    x: int
    at: datetime
    tags: set[str] = field(default_factory=set)


class Invoice(BaseModel):
    number: str
    lines: list[Point] = []
    due: date | None = None


class StrictInvoice(BaseModel):
    model_config = ConfigDict(strict=True)
    due: date


class StrictPart(BaseModel):
    due: Annotated[date, Strict()]


class Picture(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    data: bytes


class Tree(BaseModel):
    children: list[Tree] = []


class Loose(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)
    text: str


class Pair(NamedTuple):
    left: int
    right: str


NOON = datetime(2026, 1, 2, 12, 0, 0, 250, tzinfo=UTC)
ID = UUID("0198f1f0-0000-7000-8000-000000000001")

# An annotation, whether it is read from the text itself, and a value of it.
KINDS: Sequence[tuple[Any, bool, Any]] = [
    (int, True, 2**80),
    (float, True, 0.1),
    (bool, True, True),
    (str, True, "ä\U0001f600"),
    (Any, True, {"a": [1, None, 1.5, "x"]}),
    (list[int], True, [1, 2]),
    (dict[str, float], True, {"a": 1.0}),
    (int | None, True, None),
    (int | str | None, True, "1"),
    (list[int] | dict[str, str], True, {"1": "2"}),
    (Literal["a", "b"], True, "b"),
    (Annotated[int, Field(ge=1)], True, 1),
    (datetime, True, NOON),
    (date, True, date(2026, 1, 2)),
    (time, True, time(12, 30)),
    (timedelta, True, timedelta(days=-1, microseconds=1)),
    (UUID, True, ID),
    (Colour, True, Colour.RED),
    (Size, True, Size.SMALL),
    (Word, True, Word.YES),
    (tuple[int, str], True, (1, "a")),
    (tuple[int, ...], True, (1, 2)),
    (set[int], True, {1, 2}),
    (frozenset[date], True, frozenset({date(2026, 1, 2)})),
    (Point, True, Point(1, NOON, {"a"})),
    (Invoice, True, Invoice(number="7", lines=[Point(2, NOON)], due=date(2026, 1, 2))),
    (datetime | str, False, NOON),
    (tuple[int, ...] | list[int], False, (1, 2)),
    (Invoice | dict[str, Any], False, Invoice(number="7")),
    (dict[int, str], False, {1: "a"}),
    (Literal[1, "a"], False, 1),
    (Place, False, None),
    (bytes, False, b"abc"),
    (Picture, False, Picture(data=b"abc")),
    (Decimal, False, Decimal("1.10")),
    (Annotated[datetime, Strict()], False, None),
    (StrictInvoice, False, None),
    (StrictPart, False, None),
    (Annotated[int, AfterValidator(abs)], False, -1),
    (Loose, False, Loose(text="a")),
    (JsonValue, False, {"a": [1]}),
    (Tree, False, Tree(children=[Tree()])),
    (Pair, False, Pair(1, "a")),
]
ALIKE = [kind for kind, alike, _ in KINDS if alike]


def taking(annotation: Any) -> Signature:
    def handler(value): ...  # type: ignore[no-untyped-def]  # its annotation is known only here

    handler.__annotations__["value"] = annotation
    return Signature("work", handler)


def told(read: Callable[[], Any]) -> Any:
    """What comes out, types included; or how it is refused."""
    try:
        return repr(read())
    except BadPayload as problem:
        return problem


def assert_same(signature: Signature, text: str) -> None:
    from_text = told(lambda: signature.read(text))
    decoded = told(lambda: signature.decode(json.loads(text)))
    assert (type(from_text), str(from_text)) == (type(decoded), str(decoded)), text


@pytest.mark.parametrize(("annotation", "alike", "value"), KINDS, ids=lambda each: getattr(each, "__name__", None))
def test_a_value_is_stored_and_read_back_the_same_both_ways(annotation: Any, alike: bool, value: Any) -> None:
    signature = taking(annotation)
    if value is not None:
        text = codec.encode(signature.encode((value,), {}), what="it", cap=10_000)
        assert_same(signature, text)


@pytest.mark.parametrize(("annotation", "alike", "value"), KINDS, ids=lambda each: getattr(each, "__name__", None))
def test_what_would_differ_is_left_to_the_decoder(annotation: Any, alike: bool, value: Any) -> None:
    assert reads_alike(TypeAdapter(annotation).core_schema) is alike


WRITTEN = [
    *("null", "true", "0", "-1", "1", "1.0", "1.5", "1e3", "-0.0", "1e400", "123456789012345678901234567890"),
    *('""', '"a"', '"1"', '"1.0"', '"yes"', '"on"', '"red"', '"nan"', '"2026-01-02"', '"2026-01-02T12:00:00Z"'),
    *('"2026-01-02T00:00:00"', '"12:30"', '"P1DT1S"', '"1 day"', "1767355200", "1767355200.25", '"1767355200"'),
    *('"YWJj"', '"\\u00e4"', '"\\ud83d\\ude00"', f'"{ID}"', f'"{ID.hex}"', '"  a  "'),
    *("[]", "[1]", "[1, 2]", '["1", "a"]', '[1, "a"]', "[1, 1]", "[[1]]", '{"a": 1}', '{"1": 2}', "{}"),
    *('{"x": 1, "at": "2026-01-02"}', '{"x": "1", "at": 0, "tags": ["a", "a"]}', '{"number": "1", "due": null}'),
    *('{"number": 1}', '{"number": "1", "more": 2}', '{"due": "2026-01-02"}', '{"data": "YWJj"}'),
    *("[" * 300 + "]" * 300, '{"a": 1, "a": 2}'),
]


@pytest.mark.parametrize("annotation", [kind for kind, _, _ in KINDS], ids=lambda each: getattr(each, "__name__", None))
def test_what_others_wrote_is_read_and_refused_the_same_both_ways(annotation: Any) -> None:
    signature = taking(annotation)
    for text in WRITTEN:
        assert_same(signature, f'{{"value": {text}}}')


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (StrictInvoice, '{"due": "2026-01-02"}'),
        (StrictPart, '{"due": "2026-01-02"}'),
        (Annotated[datetime, Strict()], '"2026-01-02T12:00:00Z"'),
        (Decimal, "1.0"),
        (Decimal | float, "1"),
        (datetime | str, '"2026-01-02T12:00:00Z"'),
        (UUID | str, f'"{ID}"'),
        (bytes | str, '"a"'),
        (Loose, '{"text": 1e22}'),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_these_would_differ(annotation: Any, text: str) -> None:
    """Why the list is as short as it is. When one of these agrees some day, it may be put on the list."""
    kind = TypeAdapter(annotation)

    def told(read: Callable[[Any], Any], given: Any) -> str:
        try:
            return repr(read(given))
        except ValidationError as problem:
            return str(problem)

    assert told(kind.validate_json, text) != told(kind.validate_python, json.loads(text))
    assert not reads_alike(kind.core_schema)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from([json.loads(text) for text in WRITTEN if text != "1e400" and len(text) < 100]),
    st.datetimes().map(str),
    st.dates().map(str),
    st.timedeltas().map(lambda span: span.total_seconds()),
)
NAMES = st.sampled_from(["x", "at", "tags", "number", "lines", "due", "a", "1"])
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))


@settings(max_examples=30)
@given(value=VALUES)
def test_any_value_is_read_and_refused_the_same_both_ways(value: Any) -> None:
    assert_read_the_same(value)


@pytest.mark.long
@settings(max_examples=200)
@given(value=VALUES)
def test_many_values_are_read_and_refused_the_same_both_ways(value: Any) -> None:
    assert_read_the_same(value)


def assert_read_the_same(value: Any) -> None:
    for signature in _alike():
        assert_same(signature, json.dumps({"value": value}))


_made: list[Signature] = []


def _alike() -> list[Signature]:
    if not _made:
        _made.extend(map(taking, ALIKE))
    return _made


async def several(a: int, b: datetime = NOON, *, json: str = "x", _c: list[int] | None = None) -> None: ...


async def none() -> None: ...


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        '{"a": "1", "b": "2026-01-02", "json": "y", "_c": [1]}',
        '{"a": 1, "d": 2}',
        '{"b": 0}',
        "{}",
        "[]",
        "null",
        "1",
    ],
)
@pytest.mark.parametrize("function", [several, none])
def test_arguments_are_read_by_name_with_defaults_both_ways(function: Callable[..., Any], text: str) -> None:
    signature = Signature("work", function)
    assert_same(signature, text)


def test_defaults_are_given_as_they_are() -> None:
    assert Signature("work", several).read('{"a": 1}') == {"a": 1, "b": NOON, "json": "x", "_c": None}


def test_a_text_that_is_no_json_is_refused_as_the_decoder_refuses_it() -> None:
    with pytest.raises(json.JSONDecodeError):
        Signature("work", several).read('{"a": ')


def test_a_job_names_each_of_its_arguments() -> None:
    def many(*args: int) -> None: ...

    def named(**kwargs: int) -> None: ...

    for function in (many, named):
        with pytest.raises(UsageError):
            Signature("work", function)
