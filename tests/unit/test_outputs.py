"""What `result.output` says where there is none: what is wrong with the answer, and what it was."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast.agents.runs.output import Output
from holdfast.client.results import OutcomeName, Result, Usage
from holdfast.errors import RunFailed


class Line(BaseModel):
    price: Decimal


class Bill(BaseModel):
    total: int
    lines: list[Line] = []


def result(text: str, outcome: OutcomeName = "answered", limit: str | None = None) -> Result[Bill]:
    usage = Usage(0, 0, 0, 0, 0)
    decode = Output(Bill)
    return Result("r1", "s1", outcome, text, None, usage, None, limit, 1, None, decode)


def refused(answer: Result[Any]) -> RunFailed:
    with pytest.raises(RunFailed) as told:
        _ = answer.output
    return told.value


def test_an_answer_that_fits_is_the_output() -> None:
    assert result('{"total": 3}').output == Bill(total=3)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('{"nope": 1}', "total: Field required. It wrote: "),
        ('{"total": 1, "lines": [{"price": "x"}]}', "lines.0.price: Input should be"),
        ("that is no JSON", "requested type: Invalid JSON: expected"),
    ],
)
def test_an_answer_that_does_not_fit_is_told_with_what_is_wrong(text: str, wrong: str) -> None:
    problem = refused(result(text))
    message = str(problem)
    assert message.startswith("run r1 was answered, but the answer is not of the requested type: ")
    assert wrong in message
    assert message.endswith(f"It wrote: {text!r}")
    assert "ended as completed" not in message
    assert (problem.run, problem.session, problem.state, problem.error_type) == (
        "r1",
        "s1",
        "completed",
        "output_error",
    )


def test_neither_many_faults_nor_a_long_answer_make_a_long_message() -> None:
    lines = ",".join('{"price": "x"}' for _ in range(1_000))
    message = str(refused(result(f'{{"total": 1, "lines": [{lines}]}}')))
    assert "and 995 more" in message
    assert len(message) < 1_500


def test_a_run_that_ended_otherwise_says_how() -> None:
    problem = refused(result('{"tot', "truncated", "max_tokens"))
    assert str(problem) == "run r1 was truncated (max_tokens), so there is no output. It wrote: '{\"tot'"
    assert problem.error_type == "truncated"
    assert str(refused(result("", "refused"))) == "run r1 was refused, so there is no output"


def test_a_run_that_was_told_what_is_wrong_says_it_and_what_it_wrote() -> None:
    problem = refused(result('{"nope": 1}', "unfit", "total: Field required"))
    said = "wrote an answer that is not of the requested type: total: Field required. It wrote: "
    assert str(problem) == f"run r1 {said}'{{\"nope\": 1}}'"
    assert problem.error_type == "output_error"
