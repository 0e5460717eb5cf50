"""Batches of several programs on one database: who serves them, who decides, and whose key reads them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from holdfast import Agent, Holdfast, Limits
from holdfast.agents.batches import steps
from holdfast.agents.system_jobs import BATCH, system_job
from holdfast.app import core_of
from holdfast.errors import LeaseLost, StoreUnavailable, UsageError
from holdfast.kernel.database import Transaction
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import JobId, new_id
from holdfast.kernel.rows import Lease
from holdfast.models import truncate
from holdfast.models.script import Script, call, say
from holdfast.models.scripted import ScriptedModel
from holdfast.models.spool import MemoryShelf
from holdfast.testing import Labs
from tests.agents.test_batches import Poisonous, app, pass_time, provided_batches
from tests.support.agents import MODEL, in_run_state
from tests.support.apps import MakeApp, eventually, working


async def test_a_worker_that_adopts_an_agent_serves_its_batches_too(make_app: MakeApp) -> None:
    defines, serves = make_app(embedded=False), make_app(batch_wait="10ms")
    agent = defines.agent("ann", model="scripted:x")
    serves.script("x", Script(say("hello")))
    run = await agent.enqueue("Go", mode="batch")
    await core_of(serves).ensure_worker(adopting=True)
    await in_run_state(run, "completed")
    assert await run.text() == "hello"


async def test_a_worker_that_adopts_an_agent_ends_what_nobody_decides(make_app: MakeApp) -> None:
    defines, serves = make_app(embedded=False), make_app()
    agent = defines.agent("ann", model="scripted:x", on_max_tokens="ask", limits=Limits(within="10ms"))
    serves.script("x", Script(truncate("so far")))
    run = await agent.enqueue("Go")
    await core_of(serves).ensure_worker(adopting=True)
    await in_run_state(run, "completed")
    assert (await run.refresh()).outcome == "truncated"


async def test_who_serves_an_agent_decides_what_follows_from_its_answers(make_app: MakeApp) -> None:
    """A worker of another program collects: it has neither the tool, nor its rule, nor the price."""
    shelf = MemoryShelf()
    script = Script(call("refund", amount=5), say("done"))

    def desk(wait: str) -> tuple[Holdfast, Agent[str]]:
        hf = make_app(embedded=False, batch_wait=wait)
        core_of(hf).book.shelf, core_of(hf).book.scripts["d"], core_of(hf).book.per_call = (
            shelf,
            script,
            Decimal("0.02"),
        )

        @hf.tool(effect="read", approve=lambda call: call.input["amount"] > 50)
        def refund(amount: int) -> str:
            """Refund."""
            return "refunded"

        return hf, hf.agent("desk", model="scripted:d", tools=[refund])

    hf, agent = desk("1h")
    run = await agent.enqueue("Go", mode="batch")
    async with working(hf):
        await in_run_state(run, "batch_submitting")
    other = make_app(embedded=False)
    core_of(other).book.shelf = shelf
    other.script("d", script)
    other.agent("other", model="scripted:d")
    core_of(other).registry.adopts = False
    (batch,) = await hf.batches.list()
    await _play_at_once(other, batch.id)
    async with working(other):
        await eventually(lambda: _has_ended(other, batch.id))
    assert (await run.refresh()).state == "pending"
    assert [row.state for row in await hf.batches.requests(batch.id)] == ["answered"]
    assert [(turn.state, turn.unknown) for turn in await run.turns()] == [("batched", 1)]
    again, _ = desk("10ms")
    async with working(again):
        await in_run_state(run, "completed")
    turns = await run.turns()
    assert [(turn.state, turn.unknown, turn.usage.cost) for turn in turns] == [("completed", 0, Decimal("0.01"))] * 2
    assert await hf.inquiries.list(state=None) == []
    assert [row.state for row in await hf.batches.requests(batch.id)] == ["applied"]


@pytest.mark.parametrize("replaced", ["before the submit", "after it"])
async def test_after_its_key_was_replaced_a_batch_is_read_with_the_new_one(
    provided: Labs, monkeypatch: pytest.MonkeyPatch, replaced: str
) -> None:
    """The provider knows the batch under any key of its account."""
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    lab = await provided.use(hf)
    core_of(hf).book.substitute = ScriptedModel(
        batches=MemoryShelf(), ports=core_of(hf).runtime().ports, batch_time=60.0
    )
    run = await agent.enqueue("Say a", mode="batch")
    await lab.drain()
    if replaced == "after it":
        await lab.clock.advance("10s")
        await lab.drain()
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-replaced")
    await lab.clock.advance("61s")
    await lab.drain()
    assert run.state in ("batch_submitting", "batch_processing")
    assert "no worker with its key" in str(await run.why())
    await pass_time(lab, run)
    assert (await run.result()).text == "Say a"
    (batch,) = await hf.batches.list()
    assert (batch.state, batch.credential) == ("ended", core_of(hf).book.credential(MODEL))


@pytest.mark.usefixtures("keyless")
async def test_a_worker_without_a_key_leaves_batches_under_the_key_that_they_were_made_with(
    labs: Labs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves other agents, so it takes part in batches."""
    hf = app()
    agent, _ = hf.agent("writer", model=MODEL), hf.agent("free", model="scripted:")
    lab = await labs.use(hf)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-simulated")
    substitute = ScriptedModel(batches=MemoryShelf(), ports=core_of(hf).runtime().ports, batch_time=60.0)
    core_of(hf).book.substitute = substitute
    made_with = core_of(hf).book.credential(MODEL)
    run = await agent.enqueue("Say a", mode="batch")
    await lab.drain()
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    core_of(hf).book.substitute = None
    for _ in range(4):
        await lab.clock.advance("20m")
        await lab.drain()
    (batch,) = await hf.batches.list()
    assert (run.state, batch.credential) == ("batch_submitting", made_with)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-simulated")
    core_of(hf).book.substitute = substitute
    await pass_time(lab, run)
    assert (await run.result()).text == "Say a"


async def test_a_batch_that_others_have_not_submitted_is_left_to_them(
    provided: Labs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their requests are not sent to another account by a program that does not serve their agents."""
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    lab = await provided.use(hf)
    core_of(hf).book.substitute = model = Poisonous(ports=core_of(hf).runtime().ports)
    run = await agent.enqueue("Say a", mode="batch")
    await lab.drain()
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-of-others")
    kept = core_of(hf).registry.definitions.pop("agent:writer")
    core_of(hf).registry.adopts = False
    for _ in range(4):
        await lab.clock.advance("20m")
        await lab.drain()
    assert (run.state, model.submitted) == ("batch_submitting", [])
    core_of(hf).registry.definitions["agent:writer"] = kept
    await pass_time(lab, run)
    assert (await run.result()).text == "Say a"


async def test_the_job_of_a_batch_is_not_cancelled_by_hand(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    async with provided_batches(provided, hf, batch_seconds=600) as (lab, provider):
        run = await agent.enqueue("Say a", mode="batch")
        await lab.drain()
        (batch,) = await hf.batches.list()
        with pytest.raises(UsageError, match="cancel the runs that wait for it"):
            await hf.jobs[batch.id].cancel()
        await lab.clock.advance("10s")
        await lab.drain()
        for _ in range(2):  # if its job ends all the same, it gets another
            assert await core_of(hf).runtime().cancel(JobId(await _job_of(hf)), "by some other way") == "cancelled"
            await agent.enqueue("Say b")  # a worker comes, and cleans up
            await lab.drain()
        await pass_time(lab, run)
        assert (await run.result()).text == "Say a"
        assert len(provider.batches) == 1


async def test_a_batch_shows_what_it_has_gathered(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    lab = await provided.use(hf)
    for number in range(3):
        await agent.enqueue(f"Say {number}", mode="batch")
    await lab.drain()
    (batch,) = await hf.batches.list()
    assert (batch.state, batch.size, (await hf.batches.get(batch.id)).size) == ("gathering", 3, 3)


async def test_a_request_that_no_batch_can_carry_fails_alone(provided: Labs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MOST_BYTES", 10_000)
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    lab = await provided.use(hf)
    core_of(hf).book.substitute = ScriptedModel(batches=MemoryShelf())
    runs = [await agent.enqueue("x" * 10_000 if n == 1 else f"Say {n}", mode="batch") for n in range(3)]
    await pass_time(lab, *runs)
    assert [run.state for run in runs] == ["completed", "failed", "completed"]
    assert "request_too_large" in ((await runs[1].refresh()).error or "")
    assert len(await hf.batches.list()) == 1


async def test_what_an_overtaken_worker_knows_is_taken_before_anybody_searches(
    provided: Labs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease is over, and nobody has its job yet: the batch is as it left it."""
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    lab = await provided.use(hf)
    core_of(hf).book.substitute = model = Poisonous(ports=core_of(hf).runtime().ports, batch_time=30.0)
    runs = [await agent.enqueue(f"Say {n}", mode="batch") for n in range(3)]
    taking, late = steps.take, [True]

    async def take(tx: Transaction, lease: Lease, id: str, provider_id: str) -> bool:
        if late and late.pop():
            raise LeaseLost(lease.id, lease.fence)
        return await taking(tx, lease, id, provider_id)

    monkeypatch.setattr(steps, "take", take)
    await pass_time(lab, *runs)
    assert [(await run.result()).text for run in runs] == ["Say 0", "Say 1", "Say 2"]
    assert (late, len(model.submitted), len(await hf.batches.list())) == ([], 1, 1)
    assert {turn.unknown for run in runs for turn in await run.turns()} == {0}


@pytest.mark.long
async def test_what_was_submitted_is_taken_when_the_store_is_back(
    provided: Labs, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    lab = await provided.use(hf)
    core_of(hf).book.substitute = model = Poisonous(ports=core_of(hf).runtime().ports)
    run = await agent.enqueue("Say a", mode="batch")
    taking, away = steps.take, [1, 2, 3]

    async def take(*args: Any) -> bool:
        if away and away.pop():
            raise StoreUnavailable("the store is away")
        return await taking(*args)

    monkeypatch.setattr(steps, "take", take)
    await pass_time(lab, run)
    assert (await run.result()).text == "Say a"
    (row,) = await hf.batches.list()
    assert (away, len(model.submitted), row.unknown) == ([], 1, 0)


async def _job_of(hf: Holdfast) -> str:
    """The id of the job that plays the only batch."""
    (job,) = [job for job in await hf.jobs.list(kind=BATCH) if job.finished_at is None]
    return job.id


async def _has_ended(hf: Holdfast, batch: str) -> bool:
    return (await hf.batches.get(batch)).state == "ended"


async def _play_at_once(hf: Holdfast, batch: str) -> None:
    """A second job for a batch, so that nobody waits until it has gathered."""

    async def add(tx: Transaction, id: JobId) -> None:
        job, route = system_job(BATCH, id, {"batch": batch})
        await enqueue(tx, [job], [route])

    await core_of(hf).runtime().open()
    await core_of(hf).runtime().transact(add, new_id(core_of(hf).runtime().ports))
