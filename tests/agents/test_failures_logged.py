"""What is logged of failures in runs: a tool's is a warning, for the model gets it; the run's own is an error."""

from __future__ import annotations

import logging

import pytest

from holdfast import Holdfast, Retry, RunFailed
from holdfast.models.protocol import Wire
from holdfast.models.script import Script, call, say
from holdfast.models.steps import Say


async def test_the_last_failure_of_a_tool_is_an_error(hf: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    @hf.tool(retry=Retry.none())
    def look_up(word: str) -> str:
        """Look a word up."""
        raise LookupError(f"no {word}")  # the tool's own line

    told: list[Wire] = []

    def sorry(messages: list[Wire]) -> Say:
        told[:] = messages[-1:]
        return say("sorry")

    hf.script("clumsy", Script(call("look_up", word="cat"), sorry))
    async with hf:
        result = await hf.agent("clumsy", model="scripted:clumsy", tools=[look_up]).run("find it")
    assert result.text == "sorry", "the model was told, and went on"
    assert "LookupError: no cat" in str(told)
    (record,) = [record for record in caplog.records if record.name == "holdfast.attempts"]
    assert record.levelno == logging.ERROR
    assert "(tool:look_up) failed on attempt 1 of 1 and is not tried again: LookupError: no cat" in record.getMessage()
    assert "# the tool's own line" in (record.exc_text or "")


async def test_a_run_that_fails_is_an_error(hf: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    hf.script("short", Script())
    async with hf:
        with pytest.raises(RunFailed):
            await hf.agent("short", model="scripted:short").run("go on")
    records = [record for record in caplog.records if record.name == "holdfast.attempts"]
    assert [record.levelname for record in records][-1:] == ["ERROR"]
    assert "(agent:short) failed on attempt" in records[-1].getMessage()


@pytest.mark.long  # the attempts have pauses between them
async def test_a_failed_run_shows_where_it_was_raised(hf: Holdfast) -> None:
    """What the job of the run raises ends the run, and the caller sees the line."""

    def answer(messages: list[Wire]) -> Say:
        raise ArithmeticError("out of words")  # the script's own line

    hf.script("lost", Script(answer))
    async with hf:
        with pytest.raises(RunFailed) as caught:
            await hf.agent("lost", model="scripted:lost").run("go on")
    (note,) = caught.value.__notes__
    assert note.startswith("The traceback of run ")
    assert "# the script's own line" in note
    assert note.splitlines()[-1].endswith("ArithmeticError: out of words")
