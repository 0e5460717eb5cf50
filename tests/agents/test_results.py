"""Waiting for runs and for what became of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Holdfast, RunFailed
from holdfast.agents.api.run import Run
from holdfast.agents.events import reader
from holdfast.app import core_of
from holdfast.errors import NotFound, ResultTimeout, StoreUnavailable
from holdfast.models.script import say
from tests.support.agents import scripted
from tests.support.apps import PATIENCE, MakeApp, working


async def test_a_failed_run_says_that_it_is_one(hf: Holdfast) -> None:
    run = await hf.agent("a", model="scripted:").enqueue("Go")
    await run.cancel("not needed")
    with pytest.raises(RunFailed, match=f"run {run.id} ended as cancelled: .*not needed") as refused:
        await run.result()
    problem = refused.value
    assert (problem.run, problem.job, problem.state) == (run.id, run.id, "cancelled")
    assert problem.error_type == problem.type


async def test_a_failed_run_says_so_even_if_its_traceback_cannot_be_read(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await hf.agent("a", model="scripted:").enqueue("Go")
    await run.cancel("not needed")

    async def away(*_: Any) -> Any:
        raise StoreUnavailable("the database is away")

    monkeypatch.setattr(core_of(hf).runtime(), "find", away)
    with pytest.raises(RunFailed, match="ended as cancelled"):
        await run.result()


async def test_a_failed_job_is_no_run(hf: Holdfast) -> None:
    @hf.job
    def work() -> None:
        raise ValueError("no")

    job = await work.enqueue()
    await job.cancel()
    with pytest.raises(RunFailed, match=f"^job {job.id} ended as cancelled") as refused:
        await job.result()
    assert refused.value.run is None


async def _watched(app: Holdfast, runs: list[Run[Any]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which statements waiting for runs needs, while they take a while and then end."""
    asked: list[str] = []
    for name in ("run_states", "ended_runs", "find_runs"):
        original = getattr(reader, name)

        def noting(tx: Any, ids: Any, name: str = name, original: Any = original) -> Any:
            asked.append(f"{name} {len(ids)}")
            return original(tx, ids)

        noting.reading = noting.single = True  # type: ignore[attr-defined]
        monkeypatch.setattr(reader, name, noting)
    waiting = asyncio.ensure_future(_all(app, runs))
    await asyncio.sleep(0.3)
    async with working(app), asyncio.timeout(PATIENCE):
        await waiting
    return asked


async def _all(app: Holdfast, runs: list[Run[Any]]) -> list[str]:
    return [run.id async for run in app.runs.as_completed(runs)]


async def test_waiting_reads_runs_whole_only_when_they_have_ended(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("a", model=scripted(hf, say("done")))
    runs = [await agent.enqueue(f"{n}") for n in range(10)]
    asked = await _watched(hf, runs, monkeypatch)
    assert asked[0] in ("run_states 10", "run_states 9"), "all by one query, but for the one who began to listen"
    assert not [each for each in asked if each.startswith("find_runs")]
    whole = [int(each.split()[1]) for each in asked if each.startswith("ended_runs")]
    assert sum(whole) == 10, "each once"
    assert {run.state for run in runs} == {"completed"}


async def test_waiting_for_what_is_not_there_or_not_ours_is_refused(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("a", model=scripted(hf, say("done")))
    theirs = await agent.enqueue("Go", tenant="acme")
    with pytest.raises(NotFound):
        await hf.tenant("other").runs[theirs.id].result()
    with pytest.raises(NotFound):
        await hf.runs["018f0000-0000-7000-8000-000000000000"].result()
    with pytest.raises(ResultTimeout):
        await hf.tenant("acme").runs[theirs.id].result(timeout="50ms")
