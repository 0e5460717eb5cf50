"""Answers that are read as a type."""

from __future__ import annotations

from decimal import Decimal

import pytest
from pydantic import BaseModel, ConfigDict

from holdfast import Holdfast, RunFailed
from holdfast.models.script import say
from tests.support.agents import scripted


class Bill(BaseModel):
    model_config = ConfigDict(strict=True)

    total: Decimal


async def _billed(app: Holdfast, text: str) -> Bill:
    return (await app.agent("a", model=scripted(app, say(text)), output=Bill).run("Go")).output


async def test_an_answer_is_read_as_it_was_written(hf: Holdfast) -> None:
    assert await _billed(hf, '{"total": "12.10"}') == Bill(total=Decimal("12.10"))


async def test_no_digit_is_lost_on_the_way(hf: Holdfast) -> None:
    assert (await _billed(hf, '{"total": "12345678901234567890.12"}')).total == Decimal("12345678901234567890.12")


@pytest.mark.parametrize("text", ['{"nope": 1}', "that is no JSON"])
async def test_an_answer_that_does_not_fit_is_said_so(hf: Holdfast, text: str) -> None:
    result = await hf.agent("a", model=scripted(hf, say(text)), output=Bill).run("Go")
    with pytest.raises(RunFailed, match="not of the requested type") as refused:
        _ = result.output
    problem = refused.value
    assert (problem.run, problem.error_type, problem.type) == (result.run_id, "output_error", "output_error")
    assert result.text == text
