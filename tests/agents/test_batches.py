"""Batch mode: turns of many runs in one batch of the provider, through all that can happen to it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from holdfast import Holdfast, RunFailed
from holdfast.agents.batches import steps
from holdfast.app import core_of
from holdfast.clock import Ports
from holdfast.events import ModeChosen, RunStateChanged
from holdfast.kernel.ids import new_id
from holdfast.models.batches import BatchItem
from holdfast.models.failures import ModelFailure
from holdfast.models.prices import cost
from holdfast.models.script import Script, call, calls, say
from holdfast.models.scripted import ScriptedModel
from holdfast.models.simulator import SimulatedProvider, simulator
from holdfast.models.spool import MemoryShelf
from holdfast.settings import Settings
from holdfast.testing import Lab, Labs
from tests.support.agents import MODEL, results

SETTINGS = Settings().override({"batch_wait": "10s", "batch_grace": "30s", "batch_poll_interval": "30s"})


@asynccontextmanager
async def provided_batches(
    labs: Labs, hf: Holdfast, *, script: Script | None = None, rules: Any = (), batch_seconds: float = 5.0
) -> AsyncIterator[tuple[Lab, SimulatedProvider]]:
    """A lab whose app asks a simulated provider that lives by the lab's clock."""
    lab = await labs.use(hf)
    ports = core_of(hf).runtime().ports
    async with simulator(script=script, rules=rules, ports=ports, batch_seconds=batch_seconds) as provider:
        hf.settings = replace(hf.settings, provider_url=provider.url)
        yield lab, provider


def app() -> Holdfast:
    return Holdfast("sqlite:////nowhere/at-all.db", settings=SETTINGS)


async def pass_time(lab: Lab, *runs: Any, times: int = 60, step: str = "31s") -> None:
    """Let time pass until these have ended."""
    for _ in range(times):
        await lab.drain()
        if all(run.state in ("completed", "failed", "cancelled") for run in runs):
            return
        await lab.clock.advance(step)
    raise AssertionError([run.state for run in runs])


def bill(provider: SimulatedProvider) -> Decimal:
    """What the witness saw bought, at the price of batches."""
    return sum(
        (cost(line["model"], line["usage"], "batch") for line in provider.lines if line["event"] == "billed"),
        Decimal(0),
    )


async def recorded(hf: Holdfast) -> Decimal:
    (used,) = await hf.budgets.used()
    return used.cost


async def test_many_runs_share_one_batch_at_half_the_price(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    async with provided_batches(provided, hf) as (lab, provider):
        runs = [await agent.enqueue(f"Say {number}", mode="batch") for number in range(7)]
        await lab.drain()
        assert {run.state for run in runs} == {"batch_submitting"}
        await lab.clock.advance("10s")
        await lab.drain()
        assert {run.state for run in runs} == {"batch_processing"}
        assert {row.state for row in await hf.jobs.list(kind="agent:writer")} == {"waiting"}
        await pass_time(lab, *runs)
        assert [(await run.result()).text for run in runs] == [f"Say {number}" for number in range(7)]
        (batch,) = provider.batches
        assert len(batch["requests"]) == 7
        assert await recorded(hf) == bill(provider) > 0
        first = await runs[0].turns()
        standard = cost(
            MODEL, {"input_tokens": first[0].usage.input_tokens, "output_tokens": first[0].usage.output_tokens}
        )
        assert first[0].usage.cost == standard / 2
        states = [event.state for event in await runs[0].events() if isinstance(event, RunStateChanged)]
        assert states == ["batch_submitting", "batch_pending", "batch_processing", "completed"]


async def test_a_tool_loop_goes_on_across_batches(provided: Labs) -> None:
    hf = app()

    @hf.tool
    def look(city: str) -> str:
        """Look."""
        return f"sunny in {city}"

    agent = hf.agent("guide", model=MODEL, tools=[look])
    script = Script(calls(call("look", city="Oslo"), call("look", city="Rome")), call("look", city="Bern"), say("done"))
    async with provided_batches(provided, hf, script=script) as (lab, provider):
        runs = [await agent.enqueue("Go", mode="batch") for _ in range(3)]
        await pass_time(lab, *runs)
        assert {(await run.result()).text for run in runs} == {"done"}
        told = await results(hf, runs[0].session_id)
        assert [part["content"] for part in told] == ["sunny in Oslo", "sunny in Rome", "sunny in Bern"]
        assert [len(batch["requests"]) for batch in provider.batches] == [3, 3, 3]
        assert await recorded(hf) == bill(provider)


async def test_the_time_for_an_answer_chooses_and_says_why(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    async with provided_batches(provided, hf) as (lab, provider):
        soon = await agent.enqueue("Say a", answer_within="20m")
        later = await agent.enqueue("Say b", answer_within="12h")
        await pass_time(lab, soon, later)
        modes = {}
        for run in (soon, later):
            (chosen,) = [event for event in await run.events() if isinstance(event, ModeChosen)]
            modes[(await run.refresh()).mode] = chosen.reason
        assert "20m is left" in modes["streaming"]
        assert "half the price" in modes["batch"]
        assert len(provider.batches) == 1


async def test_a_run_is_streamed_when_its_time_runs_out(provided: Labs) -> None:
    hf = app()

    @hf.tool
    def look() -> str:
        """Look."""
        return "seen"

    agent = hf.agent("guide", model=MODEL, tools=[look])
    async with provided_batches(provided, hf, script=Script(call("look"), say("done")), batch_seconds=5000) as (
        lab,
        provider,
    ):
        run = await agent.enqueue("Go", answer_within="2h")
        await pass_time(lab, run, step="10m")
        assert (await run.result()).text == "done"
        chosen = [event for event in await run.events() if isinstance(event, ModeChosen)]
        assert [event.mode for event in chosen] == ["batch", "streaming"]
        assert len(provider.batches) == 1


async def test_ap_39_a_batch_that_runs_for_a_day_is_never_stuck(provided: Labs) -> None:
    """AP-39: no rescue and no second submission."""
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    async with provided_batches(provided, hf, batch_seconds=23 * 3600) as (lab, provider):
        run = await agent.enqueue("Say a", mode="batch")
        await pass_time(lab, run, step="2h")
        assert (await run.result()).text == "Say a"
        assert len(provider.batches) == 1
        (turn,) = await run.turns()
        assert (turn.attempts, turn.unknown) == (1, 0)


@pytest.mark.parametrize("where", ["before take", "after intend"])
async def test_ap_40_a_worker_that_dies_around_the_submit_leaves_no_second_batch(provided: Labs, where: str) -> None:
    """K10, AP-40: what the provider has is adopted; what it has not is submitted, once."""
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    async with provided_batches(provided, hf) as (lab, provider):
        runs = [await agent.enqueue(f"Say {n}", mode="batch") for n in range(3)]
        await lab.drain()
        if where == "before take":
            lab.crash(before="take")
        else:
            lab.crash(after="intend")
        await lab.clock.advance("10s")
        await pass_time(lab, *runs)
        assert [(await run.result()).text for run in runs] == ["Say 0", "Say 1", "Say 2"]
        assert len(provider.batches) == 1
        (row,) = await hf.batches.list()
        assert (row.state, row.unknown, row.attempts) == ("ended", 1, 1 if where == "before take" else 2)
        assert await recorded(hf) == bill(provider)


async def test_a_submit_whose_answer_is_lost_is_found_by_its_results(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    lost = [{"match": {"path": "/v1/messages/batches", "method": "POST", "nth": 1}, "do": {"lost_answer": True}}]
    async with provided_batches(provided, hf, rules=lost, batch_seconds=300) as (lab, provider):
        decoy = await _submitted_by_others(hf, provider, size=3)
        runs = [await agent.enqueue(f"Say {n}", mode="batch") for n in range(3)]
        await pass_time(lab, *runs)
        assert [(await run.result()).text for run in runs] == ["Say 0", "Say 1", "Say 2"]
        assert len(provider.batches) == 2
        (row,) = await hf.batches.list()
        assert (row.unknown, row.provider_id != decoy) == (1, True)


async def _submitted_by_others(hf: Holdfast, provider: SimulatedProvider, size: int) -> str:
    """A batch of the same account and size that is not ours."""
    from holdfast.models.anthropic import AnthropicModel

    body = json.dumps({"model": MODEL, "max_tokens": 10, "messages": [{"role": "user", "content": "x"}]})
    model = AnthropicModel("sk-simulated", provider.url)
    rules, provider.state.rules = provider.state.rules, []
    made = await model.submit_batch(
        [BatchItem(f"theirs-{n}", body) for n in range(size)], call="", total=10, answered=lambda _: None
    )
    provider.state.rules = rules
    await model.close()
    return made.id


class Lossy(ScriptedModel):
    """Loses the request of a submit or its answer, as `losing` says of each. Batches in `empty` have no results."""

    def __init__(self, hf: Holdfast, *losing: str | None, batch_time: float = 0.0) -> None:
        super().__init__(batches=MemoryShelf(), ports=core_of(hf).runtime().ports, batch_time=batch_time)
        self.losing = list(losing)
        self.made: list[str] = []
        self.empty: set[str] = set()

    async def submit_batch(self, items: Any, **more: Any) -> Any:
        lost = self.losing.pop(0) if self.losing else None
        if lost == "request":
            raise ModelFailure("cut", "the request was lost", bought="unknown")
        status = await super().submit_batch(items, **more)
        self.made.append(status.id)
        if lost == "answer":
            raise ModelFailure("cut", "the answer was lost", bought="unknown")
        return status

    async def batch_results(self, id: str) -> Any:
        async for line in super().batch_results(id):
            if id not in self.empty:
                yield line


class Meeting(Lossy):
    """Its first batch has no results, and tells so only when two have asked."""

    def __init__(self, hf: Holdfast) -> None:
        super().__init__(hf, "answer", "request")
        self.asking = 0
        self.both_ask = asyncio.Event()

    async def batch_results(self, id: str) -> Any:
        if id == self.made[0]:
            self.asking += 1
            if self.asking == 2:
                self.both_ask.set()
            await self.both_ask.wait()
            return
        async for line in super().batch_results(id):
            yield line


async def test_a_batch_without_results_is_taken_by_one_of_two_that_look_for_theirs(
    provided: Labs, caplog: pytest.LogCaptureFixture
) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    lab = await provided.use(hf)
    core_of(hf).book.substitute = model = Meeting(hf)
    runs = [await agent.enqueue("Say a", mode="batch", model=name) for name in (MODEL, "claude-opus-5")]
    await pass_time(lab, *runs)
    assert [(await run.result()).text for run in runs] == ["Say a", "Say a"]
    assert len(model.made) == 3  # its requests are asked again, and those that were lost
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_batch_without_results_is_not_taken_while_another_may_be_ours(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL, attempts=1)
    lab = await provided.use(hf)
    core_of(hf).book.substitute = model = Lossy(hf, None, "answer", batch_time=300.0)
    body = json.dumps({"model": MODEL, "max_tokens": 10, "messages": [{"role": "user", "content": "x"}]})
    theirs = await model.submit_batch([BatchItem("theirs", body)], call="", total=10, answered=lambda _: None)
    model.empty = {theirs.id}
    await lab.clock.advance("200s")
    run = await agent.enqueue("Say a", mode="batch")
    await pass_time(lab, run)
    assert (await run.result()).text == "Say a"
    (row,) = await hf.batches.list()
    assert (row.provider_id, row.attempts) == (model.made[1], 1)
    assert len(model.made) == 2


@pytest.mark.parametrize(
    ("fault", "batches"),
    [
        ({"expire": {"every": 2}}, 2),
        ({"error": {"every": 2, "type": "api_error"}}, 2),
        ({"cancel": {"every": 2}}, 2),
        ({"missing": {"every": 2}}, 2),
        ({"duplicate": {"every": 2}}, 1),
        ({"reorder": True}, 1),
        ({"pad": {"every": 3, "bytes": 5_000_000}}, 1),
    ],
    ids=["expired", "errored", "cancelled", "missing", "duplicated", "reordered", "padded"],
)
async def test_results_of_every_kind_are_applied_once(provided: Labs, fault: dict[str, Any], batches: int) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    rules = [{"match": {"path": "/v1/messages/batches", "method": "POST", "nth": 1}, "do": fault}]
    async with provided_batches(provided, hf, rules=rules) as (lab, provider):
        runs = [await agent.enqueue(f"Say {n}", mode="batch") for n in range(6)]
        await pass_time(lab, *runs, times=120)
        assert [(await run.result()).text for run in runs] == [f"Say {n}" for n in range(6)]
        assert len(provider.batches) == batches
        for run in runs:
            messages = await hf.sessions[run.session_id or ""].messages()
            assert [message.kind for message in messages] == ["prompt", "answer"]
        if "missing" not in fault:
            assert await recorded(hf) == bill(provider)


async def test_ap_47_a_request_that_is_refused_fails_its_run_alone(provided: Labs) -> None:
    """AP-47: with `batch_error` and the provider's text; the others of its batch go on."""
    hf = app()
    good, bad = hf.agent("good", model=MODEL), hf.agent("bad", model=MODEL)
    rules = [
        {
            "match": {"path": "/v1/messages/batches", "method": "POST"},
            "do": {"error": {"every": 2, "type": "invalid_request_error", "message": "max_tokens: 9 > 8, no more"}},
        }
    ]
    async with provided_batches(provided, hf, rules=rules) as (lab, _):
        runs = [await (good, bad)[n % 2].enqueue(f"Say {n}", mode="batch") for n in range(4)]
        await pass_time(lab, *runs)
        assert sorted(run.state or "" for run in runs) == ["completed", "completed", "failed", "failed"]
        failed = next(run for run in runs if run.state == "failed")
        with pytest.raises(RunFailed, match=r"invalid_request_error.*max_tokens: 9 > 8, no more") as caught:
            await failed.result()
        assert caught.value.error_type == "batch_error"
        row = await failed.refresh()
        assert row.error_type == "batch_error"
        assert "max_tokens: 9 > 8, no more" in (row.error or ""), "the provider's own words are stored"
        (turn,) = await failed.turns()
        assert "max_tokens: 9 > 8, no more" in turn.error["message"]


async def test_what_never_succeeds_fails_when_its_attempts_are_used_up(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL, attempts=3)
    rules = [{"match": {"path": "/v1/messages/batches", "method": "POST"}, "do": {"expire": {"every": 1}}}]
    async with provided_batches(provided, hf, rules=rules) as (lab, provider):
        run = await agent.enqueue("Say", mode="batch")
        await pass_time(lab, run, times=200)
        assert (run.state, len(provider.batches)) == ("failed", 3)


async def test_one_request_the_provider_cannot_take_does_not_sink_the_rest(provided: Labs) -> None:
    """A submit that is refused as a whole is halved until what it is refused for stands alone."""
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    core_of(hf).book.substitute = model = Picky()
    lab = await provided.use(hf)
    runs = [await agent.enqueue("bad" if n == 3 else f"Say {n}", mode="batch") for n in range(6)]
    await pass_time(lab, *runs)
    assert [run.state for run in runs] == ["completed"] * 3 + ["failed"] + ["completed"] * 2
    assert model.refusals >= 3


class Picky(ScriptedModel):
    """Refuses a batch with a bad request in it, as a whole."""

    def __init__(self) -> None:
        super().__init__(batches=MemoryShelf())
        self.refusals = 0

    async def submit_batch(self, items: Any, **more: Any) -> Any:
        from holdfast.models import ModelFailure

        if any('"bad"' in item.params for item in items):
            self.refusals += 1
            raise ModelFailure("bad_request", "one of these is bad", bought="no")
        return await super().submit_batch(items, **more)


async def test_cancelling_every_run_cancels_the_batch(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    async with provided_batches(provided, hf, batch_seconds=3600) as (lab, provider):
        runs = [await agent.enqueue(f"Say {n}", mode="batch") for n in range(3)]
        await lab.drain()
        await lab.clock.advance("10s")
        await lab.drain()
        await runs[0].cancel()
        await lab.clock.advance("31s")
        await lab.drain()
        assert provider.batches[0]["processing_status"] == "in_progress"
        for run in runs[1:]:
            await run.cancel()
        for _ in range(4):
            await lab.clock.advance("31s")
            await lab.drain()
        assert provider.batches[0]["processing_status"] == "ended"
        (row,) = await hf.batches.list()
        assert row.state == "ended"
        assert {run.state for run in runs} == {"cancelled"}


async def test_an_answer_that_nobody_waits_for_is_paid_and_accounted(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    async with provided_batches(provided, hf, batch_seconds=600) as (lab, provider):
        await hf.budgets.set("10")
        runs = [await agent.enqueue(f"Say {n}", mode="batch") for n in range(2)]
        await lab.drain()
        assert "gathers" in str(await runs[0].why())
        await lab.clock.advance("10s")
        await lab.drain()
        assert "waits for the answer of batch" in str(await runs[0].why())
        await runs[0].cancel()
        await pass_time(lab, runs[1])
        assert await recorded(hf) == bill(provider) == (await hf.budgets.list())[0].spent
        row = await runs[0].refresh()
        assert (row.state, row.cost_nano > 0) == ("cancelled", True)
        kinds = [message.kind for message in await hf.sessions[runs[0].session_id or ""].messages()]
        assert "answer" not in kinds


async def test_a_download_that_breaks_off_is_taken_up_again(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    rules = [{"match": {"path": "/v1/messages/batches/*/results", "nth": 1}, "do": {"cut": {"lines": 3}}}]
    async with provided_batches(provided, hf, rules=rules) as (lab, provider):
        runs = [await agent.enqueue(f"Say {n}", mode="batch") for n in range(6)]
        await pass_time(lab, *runs)
        assert [(await run.result()).text for run in runs] == [f"Say {n}" for n in range(6)]
        assert len(provider.batches) == 1


async def test_ap_06_modes_are_claimed_apart(provided: Labs) -> None:
    """AP-06: batch and streaming runs have lines of their own, the oldest first."""
    hf = Holdfast("sqlite:////nowhere/at-all.db", settings=SETTINGS)
    agent = hf.agent("writer", model="scripted:")
    lab = await provided.use(hf, Script(say("hello")))
    batched = [await agent.enqueue("Go", mode="batch") for _ in range(3)]
    streamed = [await agent.enqueue("Go") for _ in range(3)]
    served = (
        core_of(hf).registry.slots_of(["agent:writer"]),
        core_of(hf).registry.slots_of(["agent:writer", "system:batch"]),
    )
    assert served == ("runs", "batched")
    await lab.drain()
    assert {run.state for run in streamed} == {"completed"}
    assert {run.state for run in batched} == {"batch_submitting"}
    started = [(await run.refresh()).started_at for run in batched]
    assert started == sorted(started)  # type: ignore[type-var]
    await pass_time(lab, *batched)


async def test_ap_22_a_nested_run_is_asked_in_the_mode_of_its_parent(provided: Labs) -> None:
    hf = app()
    inner = hf.agent("inner", model="scripted:inner")
    outer = hf.agent("outer", model="scripted:outer", agents=[inner])
    scripts = {"outer": Script(call("inner", task="the task"), say("outer")), "inner": Script(say("inner"))}
    lab = await provided.use(hf, Script.by_agent(scripts))
    run = await outer.enqueue("Go", mode="batch")
    await pass_time(lab, run)
    (child,) = await run.children()
    assert (run.state, child.state, child.mode) == ("completed", "completed", "batch")


class Poisonous(ScriptedModel):
    """Answers one request with a usage that nobody can add up, and keeps what was submitted."""

    def __init__(self, *, ports: Ports | None = None, batch_time: float = 0.0) -> None:
        super().__init__(batches=MemoryShelf(), ports=ports, batch_time=batch_time)
        self.submitted: list[Any] = []
        self.empty: set[str] = set()  # batches of which nothing was answered

    async def submit_batch(self, items: Any, **more: Any) -> Any:
        self.submitted.append(items)
        return await super().submit_batch(items, **more)

    async def batch_results(self, id: str) -> Any:
        async for line in super().batch_results(id):
            if id in self.empty:
                yield line._replace(type="canceled", message=None)
                continue
            bad = line.message is not None and "poison" in str(line.message["content"])
            yield line._replace(message={**(line.message or {}), "usage": {"input_tokens": "many"}}) if bad else line


async def test_an_answer_that_cannot_be_stored_fails_its_run_alone(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    core_of(hf).book.substitute = Poisonous()
    lab = await provided.use(hf)
    runs = [await agent.enqueue("poison" if n == 1 else f"Say {n}", mode="batch") for n in range(4)]
    await pass_time(lab, *runs)
    assert [run.state for run in runs] == ["completed", "failed", "completed", "completed"]
    assert "cannot be stored" in ((await runs[1].refresh()).error or "")
    assert (await hf.batches.list())[0].state == "ended"


async def test_a_batch_that_came_late_takes_nothing_from_the_one_in_its_place(provided: Labs) -> None:
    """An overtaken worker submits after all: its batch is known and cancelled, and the answers come from the other."""
    hf = app()
    agent = hf.agent("writer", model=MODEL, attempts=1)
    lab = await provided.use(hf)
    ports = core_of(hf).runtime().ports
    core_of(hf).book.substitute = model = Poisonous(ports=ports, batch_time=300.0)
    runs = [await agent.enqueue(f"Say {n}", mode="batch") for n in range(3)]
    await lab.drain()
    await lab.clock.advance("10s")
    await lab.drain()
    (row,) = await hf.batches.list()
    assert row.state == "processing"
    late = await model.submit_batch(model.submitted[0], call="late", total=1.0, answered=lambda _: None)
    assert await core_of(hf).runtime().transact(steps.adopt_orphan, row.id, late.id, new_id(ports))
    assert not await core_of(hf).runtime().transact(steps.adopt_orphan, row.id, late.id, new_id(ports))
    model.empty = {late.id}  # it was cancelled before anything was answered
    await model.cancel_batch(late.id)
    await lab.drain()
    assert [batch.state for batch in await hf.batches.list()] == ["ended", "processing"]
    assert {run.state for run in runs} == {"batch_processing"}
    await pass_time(lab, *runs)
    await pass_time_for(lab, hf)
    assert [(await run.result()).text for run in runs] == [f"Say {n}" for n in range(3)]
    assert {batch.state for batch in await hf.batches.list()} == {"ended"}
    assert {turn.attempts for run in runs for turn in await run.turns()} == {1}


async def pass_time_for(lab: Lab, hf: Holdfast) -> None:
    for _ in range(20):
        await lab.drain()
        if all(row.ended_at is not None for row in await hf.batches.list()):
            return
        await lab.clock.advance("31s")


async def test_a_worker_of_another_account_leaves_a_batch_alone(
    provided: Labs, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    async with provided_batches(provided, hf, batch_seconds=700) as (lab, provider):
        run = await agent.enqueue("Say a", mode="batch")
        await lab.drain()
        await lab.clock.advance("10s")
        await lab.drain()
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-of-others")
        for _ in range(3):
            await lab.clock.advance("20m")
            await lab.drain()
        assert run.state == "batch_processing"
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-simulated")
        await pass_time(lab, run)
        assert (await run.result()).text == "Say a"
        assert len(provider.batches) == 1


async def test_a_line_that_cannot_be_read_costs_the_others_nothing(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    rules = [{"match": {"path": "/v1/messages/batches/*/results", "nth": 1}, "do": {"malformed": {"after": 2}}}]
    async with provided_batches(provided, hf, rules=rules) as (lab, provider):
        runs = [await agent.enqueue(f"Say {n}", mode="batch") for n in range(6)]
        await pass_time(lab, *runs, times=120)
        assert [(await run.result()).text for run in runs] == [f"Say {n}" for n in range(6)]
        turns = [turn for run in runs for turn in await run.turns()]
        bought = len([line for line in provider.lines if line["event"] == "billed"])
        assert len(turns) <= bought <= len(turns) + sum(turn.unknown for turn in turns)
