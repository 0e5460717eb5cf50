"""Schemas for structured output: what the official SDK makes of them, and what the provider then takes."""

from __future__ import annotations

import datetime
import enum
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, RootModel, TypeAdapter, create_model
from pydantic.json_schema import model_json_schema

from holdfast.errors import UsageError
from holdfast.models.schemas import accepted, objection


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Line(BaseModel):
    """A line of an invoice."""

    text: str = Field(max_length=40, pattern="^[a-z]+$")
    amount: Decimal = Field(gt=0, multiple_of=0.5)


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    age: Annotated[float, Field(lt=30)] = 1.0


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


class Lines(RootModel[list[Line]]):
    pass


PLAIN: list[Any] = [
    *(int, float, str, bool, None, Decimal, bytes, datetime.date, datetime.datetime, datetime.timedelta, uuid.UUID),
    *(Colour, Literal["a", 1, None, True], Line, Cat, Pet, Lines, dict[str, int], tuple[int, str], tuple[int, ...]),
    *(Annotated[int, Field(ge=1, le=5)], Annotated[float, Field(gt=0.5, multiple_of=2)]),
    *(Annotated[str, Field(min_length=2, max_length=9)], Annotated[str, Field(pattern="^a+$", description="Of a.")]),
]
either = Union.__getitem__  # of values: `None | None` is no type


def bounded(kind: Any, least: int, most: int) -> Any:
    many: Any = list.__class_getitem__(kind)
    return Annotated[many, Field(min_length=least, max_length=most)]


kinds = st.recursive(
    st.sampled_from(PLAIN),
    lambda inner: st.one_of(
        inner.map(list.__class_getitem__),
        inner.map(lambda kind: set.__class_getitem__(kind) if kind in (int, str, bool) else either((kind, None))),
        st.tuples(inner, inner).map(either),
        st.tuples(inner, st.integers(0, 3), st.integers(3, 5)).map(lambda given: bounded(*given)),
    ),
    max_leaves=4,
)
fields = st.tuples(kinds, st.sampled_from([None, "What it is."]), st.booleans())


@st.composite
def models(draw: st.DrawFn) -> type[BaseModel]:
    made: dict[str, Any] = {}
    for number, (kind, words, optional) in enumerate(draw(st.lists(fields, min_size=1, max_size=6))):
        given: dict[str, Any] = {"description": words} if words else {}
        made[f"f{number}"] = (
            (either((kind, None)), Field(default=None, **given)) if optional else (kind, Field(**given))
        )
    return create_model("Made", **made)


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(models())
def test_it_is_what_the_sdk_makes_of_it_and_what_the_provider_takes(model: type[BaseModel]) -> None:
    from anthropic import transform_schema

    schema = model_json_schema(model)
    ours = accepted(schema)
    assert ours == transform_schema(schema)
    assert objection({"output_config": {"format": {"schema": ours}}}) is None


@pytest.mark.parametrize("kind", [*PLAIN[:-1], Lines, list[Line], Pet])
def test_a_type_that_is_no_object_is_what_the_sdk_makes_of_it(kind: Any) -> None:
    from anthropic import transform_schema

    schema = TypeAdapter(kind).json_schema()
    assert accepted(schema) == transform_schema(schema)
    assert objection({"output_config": {"format": {"schema": accepted(schema)}}}) is None


def test_what_the_provider_does_not_know_is_said_in_words() -> None:
    schema = {"type": "integer", "minimum": 1, "maximum": 10, "description": "A number"}
    before = dict(schema)
    assert accepted(schema) == {"type": "integer", "description": "A number\n\n{minimum: 1, maximum: 10}"}
    assert schema == before


def test_several_types_are_as_many_choices() -> None:
    assert accepted({"type": ["string", "null"], "description": "A name", "maxLength": 3}) == {
        "anyOf": [
            {"type": "string", "description": "A name\n\n{maxLength: 3}"},
            {"type": "null", "description": "A name\n\n{maxLength: 3}"},
        ],
        "description": "A name",
    }


def test_what_has_no_type_cannot_be_asked_for() -> None:
    class Loose(BaseModel):
        anything: Any

    with pytest.raises(UsageError, match=r"output.anything does not say of which type it is"):
        accepted(model_json_schema(Loose), "output")


def test_a_request_without_schemas_is_not_objected_to() -> None:
    loose = {"name": "x", "input_schema": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}}}
    assert objection({"tools": [loose], "output_config": {"effort": "low"}}) is None
