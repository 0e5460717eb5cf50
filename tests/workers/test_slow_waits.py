"""Whoever waits for a result for three seconds reads in the log why it does not come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.client.jobs import Job
from holdfast.client.results import PATIENCE, SlowWaits
from holdfast.clock import Ports, SystemClock
from holdfast.models.script import say
from holdfast.reasons import Gate, Reason
from tests.support.agents import scripted
from tests.support.apps import MakeApp, eventually, working


class Skipping(SystemClock):
    """A clock that a test moves."""

    skipped = 0.0

    def monotonic(self) -> float:
        return self.skipped


@pytest.fixture
def clock() -> Skipping:
    return Skipping()


@pytest.fixture
def waiting_app(make_app: MakeApp, clock: Skipping) -> Holdfast:
    hf = make_app(embedded=False)
    core_of(hf).binding.ports = Ports(clock=clock)
    return hf


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "still waiting" in each.getMessage()]


async def warned(caplog: pytest.LogCaptureFixture, clock: Skipping | None = None) -> str:
    """The warning, once it is there. `clock` moves until then: a stream may still be given events, and waits anew."""

    async def look() -> list[str]:
        if clock is not None:
            clock.skipped += PATIENCE
        return told(caplog)

    (said,) = await eventually(look)
    return said


async def test_whoever_waits_for_a_job_is_told_once_what_keeps_it(
    waiting_app: Holdfast, clock: Skipping, caplog: pytest.LogCaptureFixture
) -> None:
    hf = waiting_app

    @hf.job(name="work")
    async def work() -> str:
        return "done"

    job = await work.enqueue()
    slow = core_of(hf).runtime()._slow

    async def wait_for(*jobs: Job[str]) -> list[asyncio.Task[str]]:
        expected = len(slow._waits) + len(jobs)

        async def all_wait() -> bool:
            return len(slow._waits) == expected

        tasks = [asyncio.create_task(job.result()) for job in jobs]
        await eventually(all_wait)
        return tasks

    waits = [*await wait_for(job, job), *await wait_for(await work.enqueue())]
    clock.skipped = PATIENCE
    said = await warned(caplog)
    assert f"still waiting for job {job.id} after 3 s: there is no live worker" in said
    assert "job:work. Start one with `holdfast worker MODULE:APP`." in said
    assert said.endswith("1 more job has been awaited as long.")
    clock.skipped *= 10
    async with working(hf):
        assert await asyncio.gather(*waits) == ["done"] * 3
    assert told(caplog) == [said]
    assert [each.levelname for each in caplog.records if each.name == "holdfast"] == ["WARNING"]


@pytest.mark.parametrize("how", ["result", "stream"])
async def test_whoever_waits_for_a_run_is_told_too(
    waiting_app: Holdfast, clock: Skipping, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    hf = waiting_app
    agent = hf.agent("guide", model=scripted(hf, say("hello")))
    run = await agent.enqueue("Go")
    seen: list[Any] = []

    async def read() -> None:
        seen.extend([event async for event in run.stream()])

    async def result() -> None:
        seen.append(await run.result())

    wait = asyncio.create_task(read() if how == "stream" else result())
    streams = core_of(hf).streams()

    async def waits() -> bool:
        return bool(streams._slow._waits)

    await eventually(waits)
    assert f"run {run.id} after 3 s: there is no live worker; the job needs one that serves queue" in await warned(
        caplog, clock
    )
    assert "agent:guide" in told(caplog)[0]
    async with working(hf):
        await wait
    assert seen
    assert len(told(caplog)) == 1


def late(clock: Skipping, ask: Any, others: int = 0) -> Awaitable[Any]:
    """Wait until it is too long, and let it be explained by what `ask` answers."""
    waits = SlowWaits(Ports(clock=clock), "job", ask)
    for n in range(others + 1):
        waits.begin(n, f"x{n}")
    clock.skipped += PATIENCE
    waits.look()
    return asyncio.gather(*waits._asking)


def reason(closed: str, words: str) -> Reason:
    class Worded(Reason):
        gate = Gate(closed)

        @property
        def sentence(self) -> str:
            return words

    return Worded()


@pytest.mark.parametrize(
    ("gates", "level"),
    [
        (["leased"], "INFO"),
        (["ended"], "INFO"),
        (["children"], "INFO"),
        (["tools"], "INFO"),
        (["batch"], "INFO"),
        (["session"], "INFO"),
        (["not_due"], "INFO"),
        (["person"], "INFO"),
        (["not_due", "budget"], "WARNING"),
        (["batch", "lane"], "WARNING"),
        *(([gate], "WARNING") for gate in ("no_worker", "no_route", "paused", "signal", "key", "model")),
        ([], "WARNING"),
    ],
)
async def test_only_what_may_need_somebody_is_a_warning(
    clock: Skipping, caplog: pytest.LogCaptureFixture, gates: list[str], level: str
) -> None:
    caplog.set_level(logging.DEBUG, "holdfast")

    async def answer(_id: str) -> list[Reason]:
        return [reason(gate, "a sentence") for gate in gates]

    await late(clock, answer)
    assert [each.levelname for each in caplog.records if each.name == "holdfast"] == [level]


async def test_ten_readers_of_one_run_are_told_once_whenever_they_came(
    clock: Skipping, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(_id: str) -> list[Reason]:
        return [reason("paused", "queue 'x' was paused")]

    waits = SlowWaits(Ports(clock=clock), "run", answer)
    for reader in range(10):
        waits.begin(reader, "r1")
        clock.skipped += 1
        waits.look()
    clock.skipped += PATIENCE
    waits.look()
    waits.begin("another", "r2")
    clock.skipped += PATIENCE
    waits.look()
    await asyncio.gather(*waits._asking)
    assert not waits._waits
    assert told(caplog) == [f"still waiting for run {run} after 3 s: queue 'x' was paused." for run in ("r1", "r2")]


async def test_what_others_wrote_cannot_command_the_terminal_of_who_waits(
    clock: Skipping, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(_id: str) -> list[Reason]:
        return [reason("paused", "queue 'x' was paused: \x1b[31mnow\nERROR all is lost")]

    await late(clock, answer, others=2)
    assert told(caplog) == [
        "still waiting for job x0 after 3 s: queue 'x' was paused: \\x1b[31mnow\\nERROR all is lost. "
        "2 more jobs have been awaited as long."
    ]


async def test_what_goes_on_is_no_warning_and_what_fails_is_kept_quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "holdfast")
    clock = Skipping()

    def explained_by(ask: Any) -> Awaitable[None]:
        waits = SlowWaits(Ports(clock=clock), "job", ask)
        waits.begin("a wait", "x")
        clock.skipped += PATIENCE - 1
        waits.look()
        assert waits._waits, "it is not late yet"
        waits.progressed("a wait")
        clock.skipped += PATIENCE - 1
        waits.look()
        assert waits._waits, "something came meanwhile"
        clock.skipped += 1
        waits.look()
        assert not waits._waits
        return asyncio.gather(*waits._asking)  # type: ignore[return-value]

    async def runs(_id: str) -> list[Reason]:
        return [reason("leased", "worker w has been running it")]

    async def breaks(_id: str) -> list[Reason]:
        raise OSError("the database is away")

    await explained_by(runs)
    await explained_by(breaks)
    assert [each.levelname for each in caplog.records if each.name == "holdfast"] == ["INFO", "DEBUG"]
