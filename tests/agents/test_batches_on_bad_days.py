"""Batch mode when the provider is away, refuses, forgets or sends what cannot be used."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast, Limits
from holdfast.agents.batches import steps
from holdfast.agents.lanes import close_lane
from holdfast.app import core_of
from holdfast.clock import Ports
from holdfast.events import ModeChosen
from holdfast.kernel.ids import new_id
from holdfast.models import ModelFailure
from holdfast.models.batches import BatchLine
from holdfast.models.failures import Kind
from holdfast.models.scripted import ScriptedModel
from holdfast.models.spool import MemoryShelf
from holdfast.testing import Lab, Labs
from tests.agents.test_batches import app, bill, pass_time, pass_time_for, provided_batches, recorded
from tests.support.agents import MODEL


class Refusing(ScriptedModel):
    """Takes no batch for some seconds, and none with a bad request in it."""

    def __init__(self, ports: Ports, seconds: float = 0.0, kind: Kind = "overloaded") -> None:
        super().__init__(batches=MemoryShelf(), ports=ports)
        self._ports = ports
        self.until = ports.clock.wall_us() + seconds * 1e6
        self.kind: Kind = kind
        self.refused = 0
        self.submitted: list[int] = []

    async def submit_batch(self, items: Any, **more: Any) -> Any:
        down = self._ports.clock.wall_us() < self.until
        if down or any('"bad"' in item.params for item in items):
            self.refused += 1
            raise ModelFailure(self.kind if down else "bad_request", "not now", bought="no")
        self.submitted.append(len(items))
        return await super().submit_batch(items, **more)


async def refusing(labs: Labs, hf: Holdfast, seconds: float = 0.0, kind: Kind = "overloaded") -> tuple[Lab, Refusing]:
    lab = await labs.use(hf)
    core_of(hf).book.substitute = model = Refusing(core_of(hf).runtime().ports, seconds, kind)
    return lab, model


@pytest.mark.parametrize("kind", ["overloaded", "connect"])
async def test_an_outage_is_waited_for(provided: Labs, kind: Kind) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    lab, model = await refusing(provided, hf, 1200, kind)
    runs = [await agent.enqueue(f"Say {n}", mode="batch") for n in range(3)]
    await pass_time(lab, *runs, times=400)
    assert [run.state for run in runs] == ["completed"] * 3
    assert model.refused > 10


@pytest.mark.long
async def test_an_outage_longer_than_our_patience_fails_the_runs_with_the_reason(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    lab, model = await refusing(provided, hf, 7200)
    run = await agent.enqueue("Say", mode="batch")
    await pass_time(lab, run, times=600)
    row = await run.refresh()
    assert (row.state, row.error_type) == ("failed", "batch_error")
    assert "overloaded: not now" in (row.error or "")
    assert model.submitted == []


@pytest.mark.long
async def test_a_closed_lane_is_waited_for_however_long(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    refusal = {"status": 429, "type": "rate_limit_error", "retry_after": 200}
    rules = [{"match": {"path": "/v1/messages/batches", "method": "POST"}, "do": refusal}]
    async with provided_batches(provided, hf, rules=rules) as (lab, provider):
        runs = [await agent.enqueue(f"Say {n}", mode="batch") for n in range(2)]
        for _ in range(40):
            await lab.clock.advance("201s")
            await lab.drain()
        assert {run.state for run in runs} == {"batch_submitting"}
        provider.state.rules = []
        await pass_time(lab, *runs, step="201s")
        assert {run.state for run in runs} == {"completed"}


@pytest.mark.long
async def test_a_bad_request_stands_alone_however_many_halves_that_takes(provided: Labs) -> None:
    """The first of them all: each halving is of what was halved before."""
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    lab, model = await refusing(provided, hf, 130)
    runs = [await agent.enqueue("bad" if n == 0 else f"Say {n}", mode="batch") for n in range(40)]
    await pass_time(lab, *runs, times=200, step="5s")
    assert [run.state for run in runs] == ["failed"] + ["completed"] * 39
    assert sum(model.submitted) == 39


async def test_what_was_cancelled_before_the_submit_is_not_bought(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    lab, model = await refusing(provided, hf, 60)
    runs = [await agent.enqueue(f"Say {n}", mode="batch") for n in range(3)]
    alone = await agent.enqueue("Say", mode="batch", model="claude-opus-5")
    await lab.drain()
    await lab.clock.advance("10s")
    await lab.drain()
    assert model.refused >= 2  # both batches are closed, and have been tried
    for run in (*runs[:2], alone):
        await run.cancel()
    await pass_time(lab, runs[2])
    for _ in range(5):
        await lab.clock.advance("31s")
        await lab.drain()
    assert model.submitted == [1]
    assert {row.state for row in await hf.batches.list()} == {"ended"}


class Late(ScriptedModel):
    """Refuses a batch for ever, while a worker that was overtaken finds that an earlier submit has arrived."""

    def __init__(self, hf: Holdfast) -> None:
        super().__init__(batches=MemoryShelf(), ports=core_of(hf).runtime().ports)
        self._core = core_of(hf)
        self.refused = 0

    async def submit_batch(self, items: Any, *, call: str, **more: Any) -> Any:
        self.refused += 1
        status = await super().submit_batch(items, call=call, **more)
        orphan = new_id(self._core.ports)
        await self._core.runtime().transact(steps.adopt_orphan, call.partition("/")[0], status.id, orphan)
        raise ModelFailure("bad_request", "this was sent twice", bought="no")


async def test_a_refused_submit_does_not_fail_what_an_earlier_one_has_bought(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    lab = await provided.use(hf)
    core_of(hf).book.substitute = model = Late(hf)
    run = await agent.enqueue("Say", mode="batch")
    await pass_time(lab, run)
    assert (run.state, model.refused) == ("completed", 1)
    (batch,) = await hf.batches.list()
    assert batch.state == "ended"


async def doubts(run: Any) -> list[tuple[str, int]]:
    return [(turn.state, turn.unknown) for turn in await run.turns()]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_result_that_never_comes_counts_as_one_that_may_have_been_bought(
    provided: Labs, cancelled: bool
) -> None:
    """At the last attempt too, and when no run waits for it any more."""
    hf = app()
    agent = hf.agent("writer", model=MODEL, attempts=1)
    rules = [{"match": {"path": "/v1/messages/batches", "method": "POST"}, "do": {"missing": {"every": 1}}}]
    async with provided_batches(provided, hf, rules=rules) as (lab, provider):
        run = await agent.enqueue("Say", mode="batch")
        await lab.drain()
        await lab.clock.advance("10s")
        await lab.drain()
        if cancelled:
            await run.cancel()
        for _ in range(5):
            await lab.clock.advance("31s")
            await lab.drain()
        bought = len([line for line in provider.lines if line["event"] == "billed"])
        assert (run.state, bought) == ("cancelled" if cancelled else "failed", 1)
        assert [unknown for _, unknown in await doubts(run)] == [1]


class Unusable(ScriptedModel):
    """Answers with something that is not made of blocks, or with a usage that nobody can add up."""

    def __init__(self, usage: Any = None) -> None:
        super().__init__(batches=MemoryShelf())
        self.usage = usage

    async def batch_results(self, id: str) -> Any:
        async for line in super().batch_results(id):
            message = {**(line.message or {}), "content": ["no block"]}
            if self.usage is not None:
                message |= {"content": [], "usage": self.usage}
            yield line._replace(message=message)


@pytest.mark.parametrize("attempts", [1, 2])
async def test_an_answer_that_cannot_be_used_is_accounted(provided: Labs, attempts: int) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL, attempts=attempts)
    core_of(hf).book.substitute = Unusable()
    lab = await provided.use(hf)
    await hf.budgets.set("10")
    run = await agent.enqueue("Say", mode="batch")
    await pass_time(lab, run)
    row = await run.refresh()
    assert (row.state, row.error_type) == ("failed", "batch_error")
    assert await doubts(run) == [("completed", attempts - 1)]
    (used,) = await hf.budgets.used()
    (budget,) = await hf.budgets.list()
    assert used.cost == budget.spent > 0
    assert budget.reserved == 0


async def test_an_answer_whose_usage_cannot_be_read_is_one_that_may_have_been_bought(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL, attempts=1)
    core_of(hf).book.substitute = Unusable({"input_tokens": "many"})
    lab = await provided.use(hf)
    run = await agent.enqueue("Say", mode="batch")
    await pass_time(lab, run)
    assert run.state == "failed"
    assert await doubts(run) == [("failed", 1)]


class Contradictory(ScriptedModel):
    """Says of what it has answered that it could not."""

    async def batch_results(self, id: str) -> Any:
        async for line in super().batch_results(id):
            yield line
            yield BatchLine(line.custom_id, "errored", None, {"type": "api_error", "message": "no"})


async def test_an_answer_counts_whatever_else_is_said_of_it(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    core_of(hf).book.substitute = Contradictory(batches=MemoryShelf())
    lab = await provided.use(hf)
    run = await agent.enqueue("Say", mode="batch")
    await pass_time(lab, run)
    assert run.state == "completed"
    (turn,) = await run.turns()
    assert (turn.attempts, len(await hf.batches.list())) == (1, 1)


async def test_a_time_limit_ends_a_run_that_waits_for_its_batch(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL, limits=Limits(time="2h"))
    async with provided_batches(provided, hf, batch_seconds=20 * 3600) as (lab, provider):
        run = await agent.enqueue("Say", mode="batch")
        await pass_time(lab, run, step="30m", times=6)
        assert (await run.result()).outcome == "limited"
        await pass_time_for(lab, hf)
        assert provider.batches[0]["processing_status"] == "ended"


async def test_an_answer_that_comes_while_a_person_is_asked_about_the_time_is_accounted(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL, limits=Limits(time="2h", on_limit="ask"))
    async with provided_batches(provided, hf, batch_seconds=3 * 3600) as (lab, provider):
        run = await agent.enqueue("Say a", mode="batch")
        for rule in (hf.approve, hf.deny):
            for _ in range(9):
                await lab.drain()
                await lab.clock.advance("30m")
            await lab.drain()
            assert run.state == "awaiting_input"
            assert {row.state for row in await hf.batches.list()} == {"ended"}
            await rule(run.id)
        await lab.drain()
        assert (await run.result()).outcome == "limited"
        assert await doubts(run) == [("completed", 0), ("completed", 0)]
        assert await recorded(hf) == bill(provider)


async def test_a_run_whose_time_limit_leaves_no_time_for_a_batch_is_streamed(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    async with provided_batches(provided, hf) as (lab, provider):
        run = await agent.enqueue("Say a", answer_within="12h", limits=Limits(time="10m"))
        await lab.drain()
        assert (await run.result()).text == "Say a"
        assert provider.batches == []
        chosen = [event for event in await run.events() if isinstance(event, ModeChosen)][-1]
        assert (chosen.mode, "10m is left" in chosen.reason) == ("streaming", True)


async def test_a_closed_lane_holds_a_run_in_batch_mode_that_streams(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    async with provided_batches(provided, hf) as (lab, provider):
        lane = f"{core_of(hf).book.credential(MODEL)}/{MODEL}"
        await core_of(hf).runtime().transact(close_lane, lane, None, person=True, reason="the key is wrong")
        run = await agent.enqueue("Say a", answer_within="2h", delay="90m")
        await lab.clock.advance("91m")
        await lab.drain()
        assert (run.state, provider.lines) == ("pending", [])
        await hf.lanes.open(lane)
        await pass_time(lab, run)
        assert (await run.result()).text == "Say a"


class Cut(ScriptedModel):
    """Its results end after two lines, however often they are read."""

    downloads = 0

    async def batch_results(self, id: str) -> Any:
        self.downloads += 1
        count = 0
        async for line in super().batch_results(id):
            if (count := count + 1) == 3:
                raise ModelFailure("cut", "the results end in the middle of a line.", bought="no")
            yield line


async def test_what_a_download_never_brings_is_asked_again(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    lab = await provided.use(hf)
    core_of(hf).book.substitute = model = Cut(batches=MemoryShelf())
    runs = [await agent.enqueue(f"Say {n}", mode="batch") for n in range(4)]
    await pass_time(lab, *runs, step="2m", times=100)
    assert [(await run.result()).text for run in runs] == [f"Say {n}" for n in range(4)]
    assert sorted([unknown for run in runs for _, unknown in await doubts(run)]) == [0, 0, 1, 1]
    assert model.downloads < 25


class Away(ScriptedModel):
    """Has results that cannot be had for a while."""

    def __init__(self, ports: Ports, seconds: float) -> None:
        super().__init__(batches=MemoryShelf(), ports=ports)
        self._ports = ports
        self._until = ports.clock.wall_us() + seconds * 1e6

    async def batch_results(self, id: str) -> Any:
        if self._ports.clock.wall_us() < self._until:
            raise ModelFailure("timeout", "no answer in time")
        async for line in super().batch_results(id):
            yield line


@pytest.mark.long
async def test_results_are_waited_for_as_long_as_the_provider_is_away(provided: Labs) -> None:
    """They are paid for, and kept for weeks."""
    hf = app()
    agent = hf.agent("writer", model=MODEL, attempts=1)
    lab = await provided.use(hf)
    core_of(hf).book.substitute = Away(core_of(hf).runtime().ports, 5 * 3600)
    run = await agent.enqueue("Say a", mode="batch")
    await pass_time(lab, run, step="10m")
    assert (await run.result()).text == "Say a"
    assert len(await hf.batches.list()) == 1
