"""Compaction among others: runs that begin meanwhile, another compaction, a death in the middle, a lost answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import SessionBusy
from holdfast.models import ModelFailure
from holdfast.models.script import Script, ends, say
from holdfast.models.scripted import ScriptedModel
from holdfast.models.wire import usage_of
from tests.agents.test_races import intercept
from tests.support.agents import Gated
from tests.support.apps import MakeApp, happens, working
from tests.support.compaction import SMALL, SUMMARY, sent_now, talk, talker

SUMMARIZE = replace(SMALL, strategy="summarize", summarizer="scripted:gated")


async def test_a_run_that_begins_during_a_compaction_keeps_its_history(hf: Holdfast) -> None:
    """What was paid for the summary is accounted for, and not used."""
    gated = Gated(say(SUMMARY))
    agent, _ = talker(hf, {"scripted:gated": gated})
    session = await hf.session("s")
    await talk(session, agent, 3)
    used = (await session.usage()).input_tokens
    compacting = asyncio.create_task(session.compact(SUMMARIZE))
    await gated.reached(1)
    run = await agent.run("Meanwhile?", session=session)
    before = await sent_now(hf, session)
    gated.gate.set()
    with pytest.raises(SessionBusy, match="messages were added or marked"):
        await compacting
    assert await sent_now(hf, session) == before
    (row,) = await session.compactions()
    assert (row.state, row.unknown) == ("failed", 0)
    assert row.input_tokens > 0
    assert (await session.usage()).input_tokens == used + run.usage.input_tokens + row.input_tokens
    assert (await session.compact(SUMMARIZE)).removed == 12


async def test_nothing_is_compacted_while_a_run_is_under_way(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    talking = Gated(say("done"))
    agent, _ = talker(hf, {"scripted:gated": talking})
    session = await hf.session("s")
    slow = hf.agent("slow", model="scripted:gated")
    async with working(hf):
        for number in range(3):
            await (await session.send(f"{number}", agent)).result()
        run = await session.send("And?", slow)
        await talking.reached(1)
        for refused in (session.compact(SMALL), session.compact(replace(SMALL, strategy="summarize"))):
            with pytest.raises(SessionBusy, match="has an active run"):
                await refused
        assert await session.compactions() == []
        talking.gate.set()
        await run.result()
        await session.compact(SMALL)


async def test_a_run_loaded_before_a_compaction_and_begun_after_it_sends_what_stands(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    agent, model = talker(hf)
    session = await hf.session("s")
    async with working(hf):
        for number in range(3):
            await (await session.send(f"{number}", agent)).result()
        loaded, compacted = asyncio.Event(), asyncio.Event()

        async def late(go: Callable[[], Awaitable[Any]], args: tuple[Any, ...]) -> Any:
            if not loaded.is_set():
                loaded.set()
                await happens(compacted)
            return await go()

        intercept(hf, begin=late)
        run = await session.send("And now?", agent)
        await happens(loaded)
        await session.compact(replace(SMALL, strategy="summarize"))
        compacted.set()
        assert (await run.result()).outcome == "answered"
    first, _ = model.asked("scripted:talk")[-2:]
    assert SUMMARY in first.messages[0]["content"][0]["text"]
    assert (await run.turns())[0].attempts == 1, "what was loaded too early was not sent"


@pytest.mark.parametrize("sooner", ["both at once", "one after the other"])
async def test_of_two_compactions_one_is_applied_and_both_are_paid(hf: Holdfast, sooner: str) -> None:
    gated = Gated(say(SUMMARY))
    agent, _ = talker(hf, {"scripted:gated": gated})
    session = await hf.session("s")
    await talk(session, agent, 3)
    both = [asyncio.create_task(session.compact(SUMMARIZE))]
    if sooner == "one after the other":
        await gated.reached(1)
    both.append(asyncio.create_task(session.compact(SUMMARIZE)))
    await gated.reached(2)
    gated.gate.set()
    ended = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(type(each).__name__ for each in ended) == ["CompactionRecord", "SessionBusy"]
    rows = await session.compactions()
    assert [(row.removed, row.unknown) for row in rows if row.state == "done"] == [(8, 0)]
    assert sum(row.output_tokens for row in rows) == 2 * in_tokens(SUMMARY)
    assert all(row.unknown == 0 for row in rows)
    await talk(session, agent, 1)


async def test_a_call_that_was_overtaken_is_paid_when_it_ends_last(hf: Holdfast) -> None:
    gated = Gated(say(SUMMARY))
    agent, _ = talker(hf, {"scripted:gated": gated})
    session = await hf.session("s")
    await talk(session, agent, 3)
    slow = asyncio.create_task(session.compact(SUMMARIZE))
    await gated.reached(1)
    assert (await session.compact(replace(SMALL, strategy="summarize"))).unknown == 1
    gated.gate.set()
    with pytest.raises(SessionBusy):
        await slow
    (row,) = await session.compactions()
    assert (row.state, row.attempts, row.unknown) == ("done", 2, 0)
    assert row.output_tokens == 2 * in_tokens(SUMMARY)


async def test_a_summariser_that_never_says_anything_is_asked_and_charged_as_often_as_one_likes(hf: Holdfast) -> None:
    agent, _ = talker(hf, {"scripted:silent": ScriptedModel(Script(lambda _: ends("max_tokens", say("So"))))})
    session = await hf.session("s")
    await talk(session, agent, 3)
    before = await sent_now(hf, session)
    for _ in range(70):
        with pytest.raises(ModelFailure, match="wrote no summary"):
            await session.compact(replace(SUMMARIZE, summarizer="scripted:silent"))
    rows = await session.compactions()
    assert sorted(row.attempts for row in rows) == [10, 60]
    assert sum(row.output_tokens for row in rows) == 70 * in_tokens("So")
    assert await sent_now(hf, session) == before


def in_tokens(text: str) -> int:
    """What a scripted model counts for saying this."""
    return int(usage_of({"messages": []}, [{"type": "text", "text": text}])["output_tokens"])


async def test_a_summariser_that_was_killed_is_counted_as_unknown_and_asked_again(hf: Holdfast) -> None:
    gated = Gated(say(SUMMARY))
    agent, _ = talker(hf, {"scripted:gated": gated})
    session = await hf.session("s")
    await talk(session, agent, 3)
    before = await sent_now(hf, session)
    killed = asyncio.create_task(session.compact(SUMMARIZE))
    await gated.reached(1)
    killed.cancel()
    await asyncio.gather(killed, return_exceptions=True)
    (row,) = await session.compactions()
    assert (row.state, row.attempts, row.unknown) == ("calling", 1, 0)
    assert await sent_now(hf, session) == before
    gated.gate.set()
    done = await session.compact(SUMMARIZE)
    assert (done.id, done.state, done.attempts, done.unknown) == (row.id, "done", 2, 1)
    assert gated.calls == 2


@pytest.mark.parametrize("strategy", ["hybrid", "summarize"])
async def test_lost_answers_change_nothing(hf: Holdfast, strategy: Any) -> None:
    """Each write is done a second time, as after a connection that broke when it had committed."""
    agent, model = talker(hf)
    session = await hf.session("s")
    await talk(session, agent, 3)
    original = await sent_now(hf, session)

    async def twice(go: Callable[[], Awaitable[Any]], _: tuple[Any, ...]) -> Any:
        await go()
        return await go()

    intercept(hf, apply_compaction=twice, restore_compaction=twice)
    first = await session.compact(replace(SMALL, strategy=strategy))
    second = await session.compact(replace(SMALL, strategy="summarize", preserve_last=0, protected_tokens=0))
    assert (first.attempts, second.attempts, second.unknown) == (1, 1, 0)
    assert len(model.asked("scripted:sum")) == (1 if strategy == "hybrid" else 2)
    assert second.output_tokens == in_tokens(SUMMARY)
    await session.restore()
    await session.restore()
    assert await sent_now(hf, session) == original
    assert [row.state for row in await session.compactions()] == ["restored", "restored"]


async def test_a_mark_that_comes_during_a_compaction_is_heeded(hf: Holdfast) -> None:
    gated = Gated(say(SUMMARY))
    agent, _ = talker(hf, {"scripted:gated": gated})
    session = await hf.session("s")
    await talk(session, agent, 3)
    compacting = asyncio.create_task(session.compact(SUMMARIZE))
    await gated.reached(1)
    marked = (await session.messages())[0]
    await session.preserve(marked)
    gated.gate.set()
    with pytest.raises(SessionBusy, match="marked"):
        await compacting
    await session.compact(SUMMARIZE)
    assert (await session.messages())[0].id == marked.id
