"""Conditions: what they say, and what is refused before anything runs."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.machines.expressions import BadExpression, ExpressionError, parse

NAMES = {
    "context": {
        "job": None,
        "n": 3,
        "list": [1, 2, 3],
        "empty": [],
        "text": "ab",
        "deep": {"a": [{"b": 7}]},
        "yes": True,
    },
    "input": {"x": 1.5},
    "output": None,
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("context.job == null", True),
        ("context.missing == null", True),
        ("context.missing.deeper[3].still == null", True),
        ("context.n == 3 and not context.job", True),
        ("context.n > 3 or context.n >= 3", True),
        ("context.job > 3", False),
        ("context.missing <= 3", False),
        ("context.list | length == 3", True),
        ("context.empty | length == 0 and context.missing | length == 0", True),
        ("1 + 2 * 3 == 7 and (1 + 2) * 3 == 9 and -context.n == -3", True),
        ("7 / 2 == 3.5 and 7 % 2 == 1", True),
        ("context.deep.a[0].b", 7),
        ('context["n"] == 3 and context.list[-1] == 3', True),
        ("context.text == 'ab' and context.text + \"c\" == 'abc'", True),
        ("context.yes == true and context.yes != 1", True),
        ("input.x < 2", True),
        ("output.x == null", True),
        ("not context.n == 4", True),
    ],
)
def test_a_condition_says(text: str, value: object) -> None:
    assert parse(text).value(NAMES) == value


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("context.x = 3", 10),
        ("context.x ==", 12),
        ("context.x == 1 2", 15),
        ("(context.x", 10),
        ("len(context.x)", 0),
        ("context.x | upper", 12),
        ("1 < context.x < 3", 14),
        ("{{ context.x }}", 0),
        ("", 0),
        ("context.", 8),
        ("'open", 0),
        ("(" * 100 + "1" + ")" * 100, 60),
        ("9" * 30, 0),
        ("1" + "+1" * 1_900, 401),
        ("context" + ".x" * 1_900, 407),
    ],
)
def test_what_is_no_condition_is_refused_with_its_place(text: str, column: int) -> None:
    with pytest.raises(BadExpression) as refused:
        parse(text)
    assert refused.value.column == column


@pytest.mark.parametrize(
    "text", ["context.job + 1", "context.text < 3", "1 / 0", "context.deep < context.deep", "context.n | length"]
)
def test_what_has_no_answer_is_an_error(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse(text).value(NAMES)


@given(st.text(alphabet="context.inpu()[]|=<>!&+-*/% 0123\"'ndort_\\{}", max_size=60))
def test_any_text_is_a_condition_or_is_refused(text: str) -> None:
    with contextlib.suppress(BadExpression, ExpressionError):
        parse(text).value(NAMES)


numbers = st.recursive(
    st.integers(0, 9).map(str),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(
        lambda each: f"({each[0]} {each[1]} {each[2]})"
    ),
    max_leaves=8,
)


@given(numbers)
def test_arithmetic_is_that_of_python(text: str) -> None:
    assert parse(text).value({}) == eval(text, {"__builtins__": {}})  # digits, brackets and three signs


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("context.list" + " + context.list" * 99 + " == 1", "1,048,576 characters or items"),
        ("context.text" + " + context.text" * 99 + " == 1", "1,048,576 characters or items"),
        ("context.big" + " * context.big" * 90 + " == 1", "this product is too large"),
        ("context.big + context.big < 'a'", "a very large number < 'a'"),
        ("context.big + context.big + 'a'", "'a' is not a number"),
    ],
)
def test_what_a_condition_makes_is_bounded(text: str, problem: str) -> None:
    context = {"list": [1] * 500_000, "text": "x" * 1_000_000, "big": int("9" * 4_300)}
    with pytest.raises(ExpressionError, match=problem):
        parse(text).value({"context": context})
