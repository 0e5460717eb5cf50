"""The inbox on bad days: who is not at its turn says nothing, no word is lost or out of order, nobody waits in vain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast import Holdfast, Limits, Snooze
from holdfast.agents.rows import Steer
from holdfast.agents.statements import InboxSql
from holdfast.app import core_of
from holdfast.errors import SessionBusy, UsageError
from holdfast.kernel.database import Transaction, reading
from holdfast.models.script import Script, call, calls, say, think
from holdfast.models.scripted import ScriptedModel
from holdfast.testing import Labs
from tests.agents.test_callers_transactions import transaction
from tests.agents.test_inbox import Gated
from tests.agents.test_races import intercept
from tests.conftest import Place
from tests.support.agents import Noting, settle
from tests.support.apps import MakeApp, happens, working

NOWHERE = "sqlite:////nowhere/at-all.db"


def dreamer(hf: Holdfast) -> Any:
    """An agent whose tool comes back in an hour."""
    looked: list[int] = []

    @hf.tool(effect="read")
    def look() -> str:
        """Look."""
        looked.append(1)
        if len(looked) == 1:
            raise Snooze("1h")
        return "seen"

    return hf.agent("dreamer", model="scripted:", tools=[look])


@pytest.mark.parametrize("how", ["interrupt", "cancel"])
async def test_a_queued_run_that_is_ended_says_nothing_into_the_one_under_way(labs: Labs, how: str) -> None:
    hf = Holdfast(NOWHERE)
    agent = dreamer(hf)
    script = Noting(calls(think("Hm."), call("look")), say("done"), say("next"))
    lab = await labs.use(hf, script)
    first = await agent.enqueue("A: the weather?", session="s")
    await lab.drain()
    queued = await agent.enqueue("B: delete everything", session="s")
    await lab.drain()
    await agent.enqueue("B2: and the backups", session="s", during="coalesce")
    await (queued.interrupt() if how == "interrupt" else queued.cancel())
    await lab.clock.advance("1h")
    await settle(lab, first)
    assert "B: " not in str(script.bodies)
    assert "B2" not in str(script.bodies)
    later = await agent.enqueue("C: and now?", session="s")
    await settle(lab, later)
    assert "B" not in str([message["content"] for message in script.bodies[-1]["messages"]])


async def test_what_is_said_in_one_instant_is_read_in_its_order(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = dreamer(hf)
    script = Noting(call("look"), say("done"))
    lab = await labs.use(hf, script)
    run = await agent.enqueue("Go", session="s")
    await lab.drain()
    for number in range(1, 9):
        await run.steer(f"word {number}")
    await lab.clock.advance("1h")
    await settle(lab, run)
    said = [block.get("text", "") for block in script.bodies[1]["messages"][-1]["content"]]
    assert [text for text in said if text.startswith("word")] == [f"word {number}" for number in range(1, 9)]


class City(BaseModel):
    name: str


async def test_a_word_for_a_run_at_its_last_turn_costs_it_no_answer(make_app: MakeApp) -> None:
    hf = make_app()
    script = Noting(say('{"name": "Oslo"}'), say("heard"))
    core_of(hf).book.substitute = model = Gated(script)
    agent = hf.agent("guide", model="scripted:", output=City, limits=Limits(turns=1))
    other = hf.agent("other", model="scripted:")
    await hf.ensure_worker()
    run = await agent.enqueue("Where?", session="s")
    await happens(model.said)
    await run.steer("Quickly!")
    model.go.set()
    assert (await run.result()).output == City(name="Oslo")
    await (await other.enqueue("And?", session="s")).result()
    texts = [block.get("text") for message in script.bodies[-1]["messages"] for block in message["content"]]
    assert texts[-2:] == ["Quickly!", "And?"], "who comes next reads it"


@pytest.mark.parametrize("waits", ["in a batch", "for a person"])
async def test_an_interruption_that_comes_before_a_run_waits_is_heard(make_app: MakeApp, waits: str) -> None:
    hf = make_app(embedded=False)
    core_of(hf).book.substitute = ScriptedModel(Script(call("look"), say("never")))

    @hf.tool(effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    agent = hf.agent("guide", model="scripted:", tools=[look], limits=Limits(turns=1, on_limit="ask"))
    about_to, stopped = asyncio.Event(), asyncio.Event()

    async def late(go: Callable[[], Awaitable[Any]], _args: tuple[Any, ...]) -> Any:
        if not about_to.is_set():
            about_to.set()
            await happens(stopped)
        return await go()

    intercept(hf, defer=late, ask_person=late)
    async with working(hf):
        run = await agent.enqueue("Go", session="s", mode="batch" if waits == "in a batch" else None)
        await happens(about_to)
        await run.interrupt()
        stopped.set()
        assert (await run.result()).outcome == "truncated"


async def test_a_refused_message_leaves_nothing_in_the_callers_transaction(make_app: MakeApp, place: Place) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("guide", model="scripted:")
    await agent.enqueue("Go", session="s")
    async with transaction(place, commit=True) as tx:
        with pytest.raises(SessionBusy):
            await agent.enqueue("Me too", session="s", during="reject", key="k", tx=tx)
    assert len(await hf.jobs.list()) == 1
    assert len(await hf.runs.list()) == 1
    assert (await hf.sessions.get("s")).runs == 1
    await agent.enqueue("Me too", session="other", key="k")  # the key is free


async def test_what_is_cancelled_half_way_leaves_nothing_in_the_callers_transaction(
    make_app: MakeApp, place: Place
) -> None:
    hf = make_app(embedded=False)
    await core_of(hf).runtime().open()

    async def half(tx: Transaction) -> None:
        await tx.run(InboxSql.add_steer, id="half", run="a run", body="[]")
        raise asyncio.CancelledError

    async with transaction(place, commit=True) as tx:
        with pytest.raises(asyncio.CancelledError):
            await core_of(hf).intake(tx).transact(half)
    assert await core_of(hf).runtime().transact(joined_by, "half") is None


@reading
async def joined_by(tx: Transaction, id: str) -> Steer | None:
    return await tx.one(InboxSql.find_steer, id=id)


async def test_a_sessions_own_policy_does_not_let_a_callers_transaction_hold_a_run(
    make_app: MakeApp, place: Place
) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("guide", model="scripted:")
    session = await hf.session("s", during="steer")
    await session.send("Go", agent)
    async with transaction(place, commit=True) as tx:
        with pytest.raises(UsageError, match="leave tx out"):
            await session.send("Faster", agent, tx=tx)
