"""A run is alive while its model says anything, and is rescued only when it makes no progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from holdfast.agents.statements import RunsSql
from holdfast.app import core_of
from holdfast.kernel.database import Transaction
from holdfast.models.protocol import Wire
from holdfast.models.script import Script, say
from tests.conftest import Place
from tests.support.agents import Counting, in_run_state
from tests.support.apps import MakeApp, eventually, working
from tests.support.past_kernel import query

PROGRESS = "select progressed_at from holdfast.run"


async def test_a_model_that_only_pings_is_alive(
    make_app: MakeApp, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.agents.events.log._LIFE", 0.0)  # note it at once, not every few seconds
    hf = make_app(embedded=False, stream_interval="10ms")
    go = asyncio.Event()

    async def pinging() -> AsyncGenerator[Wire, None]:
        while not go.is_set():
            yield {"type": "ping"}
            await asyncio.sleep(0.01)

    core_of(hf).book.substitute = model = Counting(Script(say("at last")), pinging)
    run = await hf.agent("slow", model="scripted:").enqueue("Hello")
    async with working(hf):
        await eventually(lambda: _asked(model))
        await in_run_state(run, "streaming")
        before = query(place, PROGRESS)

        async def later() -> bool:
            return query(place, PROGRESS) > before

        await eventually(later)
        go.set()
        assert await run.text() == "at last"
    assert model.calls == 1


async def _asked(model: Counting) -> bool:
    return model.calls > 0


async def test_a_rescue_tests_claim_and_progress_where_it_takes_the_lease(make_app: MakeApp) -> None:
    """It was found without progress, and has got on since: named by its number alone it must keep its lease."""
    hf = make_app(embedded=False)
    go = asyncio.Event()

    async def waiting() -> AsyncGenerator[Wire, None]:
        yield {"type": "ping"}
        await go.wait()

    async def lapse(tx: Transaction, job: int, timeout_us: int) -> None:
        await tx.run(RunsSql.lapse, seqs=[job], timeout_us=timeout_us)

    core_of(hf).book.substitute = model = Counting(Script(say("done")), waiting)
    run = await hf.agent("found", model="scripted:").enqueue("Hello")
    async with working(hf):
        await eventually(lambda: _asked(model))
        job = (await hf.runs.get(run.id)).job
        before = (await hf.jobs.get(run.id)).lease_until
        await core_of(hf).runtime().transact(lapse, job, 3_600_000_000)
        after = (await hf.jobs.get(run.id)).lease_until
        assert before is not None
        assert after is not None
        assert after >= before
        go.set()
        assert await run.text() == "done"
    assert model.calls == 1
