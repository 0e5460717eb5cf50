"""Whether arguments fit a schema, against what pydantic says of the same."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict

from holdfast.agents.runs.output import misfit


class Line(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    count: int | None = None


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")
    number: str
    lines: list[Line]
    price: Decimal = Decimal(1)
    kind: Literal["new", "old"] = "new"
    paid: bool = False
    notes: dict[str, Any] = {}


SCHEMA = Order.model_json_schema()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"lines": [{"name": "a", "count": None}, {"name": "b", "count": 2}]}, None),
        ({"price": "1.50", "notes": {"any": [1]}, "paid": True, "kind": "old"}, None),
        ({"number": 5}, "number is not of type string"),
        ({"lines": {"name": "a"}}, "lines is not of type array"),
        ({"lines": [{"count": 1}]}, "lines.0.name is missing"),
        ({"lines": [{"name": "a", "count": "x"}]}, "lines.0.count is none of what it may be"),
        ({"lines": [{"name": "a", "colour": "x"}]}, "there is no lines.0.colour"),
        ({"kind": "odd"}, "kind is one of 'new', 'old'"),
        ({"paid": 1.5}, "paid is not of type boolean"),
        ({"price": []}, "price is none of what it may be"),
        ({"more": 1}, "there is no more"),
    ],
)
def test_the_first_thing_that_is_wrong_is_named(change: dict[str, Any], words: str | None) -> None:
    given = {"number": "A1", "lines": [], **change}
    assert misfit(SCHEMA, given) == words
    if words is None:
        Order.model_validate(given)


def test_what_is_missing_is_named_and_what_is_not_known_is_let_pass() -> None:
    assert misfit(SCHEMA, {"lines": []}) == "number is missing"
    assert misfit(SCHEMA, []) == "it is not of type object"
    assert misfit({"type": "object", "properties": {"a": True, "b": {"not": {}}}}, {"a": 1, "b": 2}) is None
    assert misfit({"type": ["integer", "null"]}, None) is None
    assert misfit({"const": 3}, 4) == "it is 3"
    assert misfit({"type": "integer"}, float("inf")) == "it is not of type integer"


@pytest.mark.parametrize(
    ("schema", "good", "bad", "words"),
    [
        ({"minimum": 1}, 1, 0, "it is at least 1"),
        ({"maximum": 5}, 5, 5.5, "it is at most 5"),
        ({"exclusiveMinimum": 1}, 2, 1, "it is more than 1"),
        ({"exclusiveMaximum": 1}, 0, 1, "it is less than 1"),
        ({"multipleOf": 0.1}, 0.7, 0.75, "it is a multiple of 0.1"),
        ({"minLength": 2}, "ab", "a", "it has at least 2 characters"),
        ({"maxLength": 2}, "ab", "abc", "it has at most 2 characters"),
        ({"minItems": 1}, [1], [], "it has at least 1 item"),
        ({"maxItems": 1}, [1], [1, 2], "it has at most 1 item"),
        ({"minProperties": 1}, {"a": 1}, {}, "it has at least 1 field"),
        ({"maxProperties": 0}, {}, {"a": 1}, "it has at most 0 fields"),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, 3, 2, "it is at least 3"),
    ],
)
def test_bounds_hold_for_values_of_their_type(schema: dict[str, Any], good: Any, bad: Any, words: str) -> None:
    assert misfit(schema, good) is None
    assert misfit(schema, bad) == words
    assert misfit({key: bound for key, bound in schema.items() if key != "allOf"}, True) is None


def test_a_multiple_that_cannot_be_reckoned_is_let_pass() -> None:
    assert misfit({"multipleOf": 0}, 1) is None
    assert misfit({"multipleOf": 1}, float("inf")) is None
