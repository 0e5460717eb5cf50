"""What a worker logs of attempts: failures with the user's own lines, and one line for each job at INFO."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Cancel, Discard, Holdfast, Retry, RunFailed, Snooze
from tests.support.apps import in_state
from tests.workers import isolated_jobs

TWICE = Retry(attempts=2, backoff="constant", base="10ms", jitter=0)
KEY = "sk-ant-api03-0123456789abcdef"
CANARY = f"{KEY} \x1b[31m\u202e"

Said = Callable[[], list[logging.LogRecord]]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    """The records about attempts so far."""
    caplog.set_level(logging.INFO, "holdfast.attempts")
    return lambda: [record for record in caplog.records if record.name == "holdfast.attempts"]


async def test_a_failure_is_a_warning_and_the_last_one_an_error(hf: Holdfast, said: Said) -> None:
    @hf.job(name="fragile", retry=TWICE)
    async def fragile() -> None:
        raise ValueError("it broke")  # the user's own line

    async with hf:
        job = await fragile.enqueue()
        with pytest.raises(RunFailed) as caught:
            await job.result()
    first, last = said()
    assert (first.levelname, last.levelname) == ("WARNING", "ERROR")
    begin = f"job {job.id} (fragile) failed on attempt"
    assert first.getMessage() == f"{begin} 1 of 2 and is tried again in 10 ms: ValueError: it broke"
    assert last.getMessage() == f"{begin} 2 of 2 and is not tried again: ValueError: it broke"
    fields = {name: getattr(first, name) for name in ("job", "kind", "attempt", "max_attempts", "next_try")}
    assert fields == {"job": job.id, "kind": "fragile", "attempt": 1, "max_attempts": 2, "next_try": 0.01}
    for record in (first, last):
        trace = record.exc_text or ""
        assert "# the user's own line" in trace
        assert "of holdfast" in trace
        assert "attempt.py" not in trace
        assert trace.splitlines()[-1] == "  ValueError: it broke"
    (note,) = caught.value.__notes__
    assert "# the user's own line" in note


async def test_other_ends_are_one_line_at_info(hf: Holdfast, said: Said) -> None:
    seen: list[str] = []

    @hf.job(name="greet")
    async def greet(name: str) -> str:
        return name

    @hf.job(name="later")
    async def later() -> None:
        if not seen:
            seen.append("once")
            raise Snooze("1ms", "not yet")

    @hf.job(name="stop")
    async def stop() -> None:
        raise Cancel("enough")

    async with hf:
        await greet.run("Ann")
        await later.run()
        with pytest.raises(RunFailed):
            await stop.run()
    assert {record.levelname for record in said()} == {"INFO"}
    words = [record.getMessage().split(" ", 2)[2] for record in said()]
    assert [word.split(" after ")[0] for word in words] == [
        "(greet) succeeded",
        "(later) snoozed",
        "(later) succeeded",
        "(stop) cancelled",
    ]
    assert words[1].endswith(": not yet")


async def test_timeouts_odd_results_and_dead_processes_are_logged_once(
    hf: Holdfast, said: Said, caplog: pytest.LogCaptureFixture
) -> None:
    @hf.job(name="slow", timeout="20ms", retry=Retry.none())
    async def slow() -> None:
        await asyncio.Event().wait()  # where it hangs

    @hf.job(name="odd")
    async def odd() -> Any:
        return object()

    @hf.job(name="discarding")
    async def discarding() -> None:
        raise Discard("of no use")

    killed = hf.job(name="killed", isolate="process", retry=Retry.none())(isolated_jobs.dies.__wrapped__)
    ends: dict[str, logging.LogRecord] = {}
    async with hf:
        for run in (slow.run, odd.run, discarding.run, lambda: killed.run("kill")):
            with pytest.raises(RunFailed):
                await run()
    for record in said():
        kind = str(vars(record)["kind"])
        assert record.levelname == "ERROR"
        assert kind not in ends
        ends[kind] = record
    assert "timed out after 20ms" in ends["slow"].getMessage()
    assert "# where it hangs" in (ends["slow"].exc_text or "")
    assert "cannot be stored as JSON" in ends["odd"].getMessage()
    assert "of no use" in ends["discarding"].getMessage()
    assert "process" in ends["killed"].getMessage()
    assert len([each for each in caplog.records if each.levelno >= logging.WARNING]) == 4


async def test_no_log_and_no_note_has_a_secret_or_a_command_for_the_terminal(
    hf: Holdfast, said: Said, caplog: pytest.LogCaptureFixture
) -> None:
    @hf.job(name=f"kind {CANARY}", retry=Retry.none())
    async def leak(text: str) -> None:
        problem = ValueError(f"cannot read {text}")
        problem.add_note(f"Authorization: Bearer {KEY}")
        raise problem

    async with hf:
        with pytest.raises(RunFailed) as caught:
            await leak.run(CANARY)
    shown = [caplog.text, str(caught.value), *caught.value.__notes__]
    assert any("cannot read" in text for text in shown)
    for text in shown:
        assert KEY not in text
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert caught.value.error == f"ValueError: cannot read {CANARY}", "a program gets what was raised"


async def test_a_long_pause_is_written_as_people_write_it(hf: Holdfast, said: Said) -> None:
    @hf.job(name="patient", retry=Retry(attempts=2, backoff="constant", base="25m", jitter=0))
    async def patient() -> None:
        raise ValueError("it broke")

    async with hf:
        job = await patient.enqueue()
        await hf.ensure_worker()
        await in_state(hf, job.id, "scheduled")
    (record,) = said()
    assert " and is tried again in 25m: " in record.getMessage()


async def test_an_exception_that_cannot_be_written_as_text_is_told(
    hf: Holdfast, said: Said, caplog: pytest.LogCaptureFixture
) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    @hf.job(name="mute", retry=Retry.none())
    async def mute() -> None:
        raise Mute  # the user's own line

    async with hf:
        with pytest.raises(RunFailed) as caught:
            await mute.run()
    assert caught.value.error == "Mute: its text could not be made"
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record in said(), "no fault of Holdfast"
    assert "# the user's own line" in (record.exc_text or "")


async def test_a_failure_that_nobody_listens_to_is_not_formatted(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    @hf.job(retry=Retry.none())
    async def fails() -> None:
        raise ValueError("x")

    caplog.set_level(logging.CRITICAL, "holdfast.attempts")
    async with hf:
        with pytest.raises(RunFailed):
            await fails.run()
    assert not caplog.records
