"""Runs behind a closed lane wait in the store, without a look or a row until it opens; then they all go on at once."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast, Limits
from holdfast.agents.api.agent import Agent
from holdfast.agents.api.run import Run
from holdfast.agents.lanes import OpenLanes, close_lane, lane_of, let_through
from holdfast.app import core_of
from holdfast.errors import NotFound
from holdfast.models.script import Script, say
from holdfast.models.simulator import simulator
from holdfast.testing import Lab, Labs
from holdfast.text import shell_word
from tests.agents.test_races import intercept
from tests.support.agents import MODEL, settle
from tests.support.apps import MakeApp, in_state, outcomes, working

LOCKED: dict[str, Any] = {"status": 401}


def an_app(url: str) -> tuple[Holdfast, Agent[str]]:
    hf = Holdfast("sqlite://nowhere.db", embedded=False)
    hf.settings = hf.settings.override({"provider_url": url})
    return hf, hf.agent("a", model=MODEL)


def lane(hf: Holdfast) -> str:
    return lane_of(core_of(hf).book.credential(MODEL), MODEL)


async def rows(hf: Holdfast, runs: list[Run[Any]]) -> list[int]:
    """How many attempts each has."""
    return [len(await hf.jobs.attempts(run.id)) for run in runs]


async def stopped(lab: Lab, agent: Agent[str], count: int, **options: Any) -> list[Run[Any]]:
    """Runs behind a lane that waits for a person."""
    runs: list[Run[Any]] = [await agent.enqueue(f"Say {number}", **options) for number in range(count)]
    await lab.drain()
    return runs


async def test_a_lane_that_waits_for_a_person_holds_its_runs_without_a_look(provided: Labs) -> None:
    async with simulator(script=Script(say("in")), rules=[{"do": LOCKED}]) as provider:
        hf, agent = an_app(provider.url)
        lab = await provided.use(hf)
        runs = await stopped(lab, agent, 12)
        before = await rows(hf, runs)
        assert set(before) == {1}
        for _ in range(5):
            await lab.clock.advance("1h")
            await lab.drain()
        assert await rows(hf, runs) == before
        assert {(await hf.jobs.get(run.id)).state for run in runs} == {"waiting"}
        assert {(await run.refresh()).state for run in runs} == {"pending"}
        why = str(await runs[-1].why())
        assert f"lane {lane(hf)} has waited for a person since " in why
        assert f"`holdfast lanes open {shell_word(lane(hf))}`" in why
        (shown,) = await hf.lanes.list()
        assert (shown.name, shown.person, shown.waiting) == (lane(hf), 1, 12)
        sent = provider.state.stats["sent"]
        provider.state.rules.clear()
        assert await hf.lanes.open(lane(hf)) == 12
        await lab.drain()  # at this very moment
        assert {(await run.refresh()).state for run in runs} == {"completed"}
        assert provider.state.stats["sent"] == sent + 12
        assert await hf.lanes.list() == []


async def test_runs_behind_the_lane_of_a_key_that_was_replaced_go_on_under_the_new_one_once_it_is_opened(
    provided: Labs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new key has a lane of its own, which is open; nobody looks at who waits behind the old one."""
    async with simulator(script=Script(say("in")), rules=[{"do": LOCKED}]) as provider:
        hf, agent = an_app(provider.url)
        lab = await provided.use(hf)
        runs, old = await stopped(lab, agent, 2), lane(hf)
        provider.state.rules.clear()
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-replaced")
        assert lane(hf) != old
        (row,) = await settle(lab, await agent.enqueue("Go"))
        assert row.state == "completed"
        assert {(await run.refresh()).state for run in runs} == {"pending"}
        assert await hf.lanes.open(old) == 2
        await lab.drain()
        assert {(await run.refresh()).state for run in runs} == {"completed"}


async def test_opening_a_lane_wakes_a_worker_at_once(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a hint, however seldom workers look."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-simulated")
    async with simulator(script=Script(say("in")), rules=[{"do": LOCKED}]) as provider:
        hf = make_app(embedded=False, provider_url=provider.url, poll_interval="10m", sweep_interval="10m")
        run = await hf.agent("a", model=MODEL).enqueue("Go")
        async with working(hf):
            await in_state(hf, run.id, "waiting")
            provider.state.rules.clear()
            await hf.lanes.open(lane(hf))
            assert await run.text(timeout="60s") == "in"


async def test_a_lane_that_is_not_closed_cannot_be_opened(hf: Holdfast) -> None:
    with pytest.raises(NotFound, match="is not closed"):
        await hf.lanes.open("nowhere/nothing")


async def test_many_are_woken_some_at_a_time(provided: Labs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.agents.lanes.TOGETHER", 5)
    async with simulator(script=Script(say("in")), rules=[{"do": LOCKED}]) as provider:
        hf, agent = an_app(provider.url)
        lab = await provided.use(hf)
        runs = await stopped(lab, agent, 12)
        provider.state.rules.clear()
        assert await hf.lanes.open(lane(hf)) == 12
        await lab.drain()
        assert {(await run.refresh()).state for run in runs} == {"completed"}


async def test_who_opened_a_lane_and_died_half_way_leaves_nobody_behind(
    provided: Labs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.agents.lanes.TOGETHER", 5)
    async with simulator(script=Script(say("in")), rules=[{"do": LOCKED}]) as provider:
        hf, agent = an_app(provider.url)
        lab = await provided.use(hf)
        runs = await stopped(lab, agent, 30)
        provider.state.rules.clear()
        await core_of(hf).runtime().transact(let_through, lane(hf), opened=True)  # and no more than that
        assert await hf.lanes.list() == [], "it is open for whoever comes"
        await lab.drain()
        for _ in range(5):
            await lab.clock.advance("1m")
            await core_of(hf).runtime().transact(OpenLanes().tend, hf.settings)
            await lab.drain()
        assert {(await run.refresh()).state for run in runs} == {"completed"}


async def test_runs_of_a_lane_whose_row_is_gone_go_on(provided: Labs) -> None:
    """Somebody opened the lane by removing its row, and woke nobody."""
    async with simulator(script=Script(say("in")), rules=[{"do": LOCKED}]) as provider:
        hf, agent = an_app(provider.url)
        lab = await provided.use(hf)
        runs = await stopped(lab, agent, 3)
        provider.state.rules.clear()
        from holdfast.agents.statements import ProviderLanesSql

        async def forget(tx: Any) -> None:
            await tx.run(ProviderLanesSql.forget_lane, name=lane(hf))

        await core_of(hf).runtime().transact(forget)
        await core_of(hf).runtime().transact(OpenLanes().tend, hf.settings)
        await lab.drain()
        assert {(await run.refresh()).state for run in runs} == {"completed"}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", ["fail_call", "close_and_wait", "wait_for_lane"])
async def test_a_worker_that_dies_around_the_closing_strands_nobody(provided: Labs, operation: str, when: str) -> None:
    async with simulator(script=Script(say("in")), rules=[{"do": LOCKED}]) as provider:
        hf, agent = an_app(provider.url)
        lab = await provided.use(hf)
        first = await stopped(lab, agent, 1) if operation == "wait_for_lane" else []
        lab.crash(before=operation) if when == "before" else lab.crash(after=operation)
        runs = [*first, *await stopped(lab, agent, 1)]
        provider.state.rules.clear()
        await lab.drain()
        assert {(await hf.jobs.get(run.id)).state for run in runs} == {"waiting"}
        await hf.lanes.open(lane(hf))
        await lab.drain()
        assert {(await run.refresh()).state for run in runs} == {"completed"}


async def test_a_lane_that_opens_between_the_look_and_the_wait_strands_nobody(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-simulated")
    async with simulator(script=Script(say("in"))) as provider:
        hf = make_app(embedded=False, provider_url=provider.url)
        agent = hf.agent("a", model=MODEL)
        await core_of(hf).runtime().transact(close_lane, lane(hf), None, person=True, reason="no money")
        opened: list[int] = []

        async def opening(go: Any, _args: Any) -> Any:
            opened.append(await hf.lanes.open(lane(hf)) if not opened else 0)
            return await go()

        intercept(hf, wait_for_lane=opening)
        run = await agent.enqueue("Go")
        async with working(hf):
            assert await run.text(timeout="60s") == "in"
        assert opened == [0]
        assert await outcomes(hf, run.id) == ["succeeded"]


async def test_what_waits_behind_a_lane_is_cancelled_interrupted_and_limited_as_ever(provided: Labs) -> None:
    async with simulator(script=Script(say("in")), rules=[{"do": LOCKED}]) as provider:
        hf, agent = an_app(provider.url)
        lab = await provided.use(hf)
        plain, limited, stop = (
            await agent.enqueue("One"),
            await agent.enqueue("Two", limits=Limits(time="10m")),
            await agent.enqueue("Three"),
        )
        await lab.drain()
        await plain.cancel()
        await stop.interrupt()
        await lab.drain()
        assert [(await run.refresh()).state for run in (plain, limited, stop)] == ["cancelled", "pending", "completed"]
        await lab.clock.advance("11m")
        await lab.drain()
        assert (await limited.result()).outcome == "limited"
        assert await rows(hf, [limited]) == [2]


async def test_a_lane_closed_until_a_time_is_tried_by_a_few_first(provided: Labs) -> None:
    """As long as the provider refuses, only they come back; whoever gets through lets others follow."""
    refusing = [{"do": {"status": 429, "retry_after": 40}}]
    async with simulator(script=Script(say("later")), rules=refusing) as provider:
        hf, agent = an_app(provider.url)
        hf.settings = hf.settings.override({"max_concurrent_streaming_runs": "1"})
        lab = await provided.use(hf)
        runs = await stopped(lab, agent, 40)
        assert set(await rows(hf, runs)) == {1}
        assert "is closed until" in str(await runs[-1].why())
        sent = provider.state.stats["sent"]
        for _ in range(3):
            await lab.clock.advance("45s")
            await lab.drain()
        again = [count - 1 for count in await rows(hf, runs)]
        assert provider.state.stats["sent"] - sent == 3, "one asks, and closes it again for the others"
        assert sum(again) <= 3 * 10
        provider.state.rules.clear()
        await lab.clock.advance("45s")
        await lab.drain()
        assert {(await run.refresh()).state for run in runs} == {"completed"}, "all of them, in one go"


async def test_the_lanes_a_time_closed_are_forgotten_when_nobody_waits(provided: Labs) -> None:
    async with simulator(script=Script(say("in"))) as provider:
        hf, agent = an_app(provider.url)
        lab = await provided.use(hf)
        await core_of(hf).runtime().transact(close_lane, lane(hf), 1_000_000, person=False, reason="rate limit")
        await lab.clock.advance("2s")
        (row,) = await settle(lab, await agent.enqueue("Go"))
        assert row.state == "completed"
        from holdfast.agents.statements import ProviderLanesSql

        async def left(tx: Any) -> list[Any]:
            return list(await tx.many(ProviderLanesSql.lanes))

        assert await core_of(hf).runtime().transact(left) == []


async def test_a_batch_behind_a_closed_lane_waits_without_a_look(provided: Labs) -> None:
    rules = [{"match": {"path": "/v1/messages/batches", "method": "POST"}, "do": LOCKED}]
    async with simulator(script=Script(say("in")), rules=rules) as provider:
        hf, agent = an_app(provider.url)
        lab = await provided.use(hf)
        run = await agent.enqueue("Go", mode="batch")
        for _ in range(3):
            await lab.drain()
            await lab.clock.advance("1h")
        (closed,) = await hf.lanes.list()
        assert (closed.name, closed.waiting) == (f"{lane(hf)}/batch", 1)
        assert f"`holdfast lanes open {shell_word(closed.name)}`" in str(await run.why())
        submitted = provider.state.stats["sent"]
        await lab.drain()
        assert provider.state.stats["sent"] == submitted
        provider.state.rules.clear()
        await hf.lanes.open(closed.name)
        await lab.pass_time(run)
        assert (await run.result()).text == "in"
