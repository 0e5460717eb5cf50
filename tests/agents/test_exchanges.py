"""Exchanges that somebody takes out of a session: whole, for good, and kept for those who read it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Compaction, Holdfast
from holdfast.agents import listings
from holdfast.app import core_of
from holdfast.errors import NotFound, SessionBusy, UsageError
from holdfast.events import MessagesRetired
from holdfast.models.script import Script, call, calls, say, think
from holdfast.testing import Lab, Labs
from tests.agents.test_bad_days import an_app, provider
from tests.support.agents import MODEL, Noting, audit, settle

NOWHERE = "sqlite:////nowhere/at-all.db"
THINKING = {"thinking": {"type": "adaptive"}}
pytestmark = pytest.mark.asyncio


def add_of(hf: Holdfast) -> Any:
    @hf.tool(effect="read")
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    return add


async def said(lab: Lab, agent: Any, text: str, session: str = "s") -> Any:
    run = await agent.enqueue(text, session=session)
    await settle(lab, run)
    return run


def texts(body: dict[str, Any]) -> list[str]:
    return [block["text"] for message in body["messages"] for block in message["content"] if block["type"] == "text"]


async def test_an_exchange_is_taken_out_whole_and_what_remains_is_accepted(provided: Labs) -> None:
    """The simulator refuses calls without results, and thinking that was signed after other words."""
    script = Noting(calls(think("Hm."), say("Adding."), call("add", a=1, b=2)), calls(think("Ah."), say("Three.")))
    async with provider(script) as running:
        hf = an_app(running.url)
        agent = hf.agent("adder", model=MODEL, tools=[add_of(hf)], options=THINKING)
        lab = await provided.use(hf)
        runs = [await said(lab, agent, text) for text in ("one", "two", "three")]
        session = hf.sessions["s"]
        second = [message for message in await session.messages() if message.run_id == runs[1].id]
        assert [message.kind for message in second] == ["prompt", "answer", "results", "answer"]
        await session.retire(second[2])
        run = await said(lab, agent, "four")
        assert texts(script.bodies[-2]) == ["one", "Adding.", "Three.", "three", "Adding.", "Three.", "four"]
        shown = await session.messages()
        assert [message.id for message in shown if message.retired] == [message.id for message in second]
        assert [message.live for message in shown if message.retired] == [False] * 4
        assert (await run.result()).text == "Three."
        (told,) = [event for event in await hf.runs[second[0].run_id].events() if isinstance(event, MessagesRetired)]
        assert told.messages == [message.id for message in second]
        await audit(hf, running)


async def test_taking_an_exchange_out_again_does_nothing(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)
    lab = await labs.use(hf, Script(say("Hello.")))
    run = await said(lab, hf.agent("talker", model="scripted:"), "one")
    session = hf.sessions["s"]
    first = (await session.messages())[0].id
    await session.retire(first)
    events = len(await run.events())
    await session.retire(first)
    assert len(await run.events()) == events
    assert [message.retired for message in await session.messages()] == [True, True]


async def test_an_exchange_stays_while_a_run_is_open(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)
    lab = await labs.use(hf, Script(say("Hello.")))
    agent = hf.agent("talker", model="scripted:")
    await said(lab, agent, "one")
    session = hf.sessions["s"]
    first = (await session.messages())[0]
    waiting = await agent.enqueue("two", session="s")
    with pytest.raises(SessionBusy, match=waiting.id):
        await session.retire(first)
    await settle(lab, waiting)
    await session.retire(first)


async def test_what_is_not_there_or_not_whole_is_not_taken_out(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)
    child = hf.agent("child", model="scripted:", description="Helps.")
    parent = hf.agent("parent", model="scripted:", agents=[child])
    scripts = {"parent": Script(call("child", task="Help"), say("Done.")), "child": Script(say("Helped."))}
    lab = await labs.use(hf, Script.by_agent(scripts))
    run = await said(lab, parent, "Go")
    await said(lab, child, "Hello", session="other")
    session = hf.sessions["s"]
    elsewhere = (await hf.sessions["other"].messages())[0]
    with pytest.raises(NotFound, match=elsewhere.id):
        await session.retire(elsewhere)
    row = (await run.children())[0]
    below = await core_of(hf).runtime().transact(listings.list_messages, row.session, branch=row.branch)
    with pytest.raises(UsageError, match="called as a tool"):
        await session.retire(below[0])
    with pytest.raises(NotFound):
        await hf.tenant("acme").sessions[session.id].retire((await session.messages())[0])


async def test_undoing_a_compaction_does_not_bring_back_what_was_taken_out(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)
    script = Noting(say("Hello."))
    lab = await labs.use(hf, script)
    agent = hf.agent("talker", model="scripted:")
    for text in ("one", "two", "three"):
        await said(lab, agent, text)
    session = hf.sessions["s"]
    first = (await session.messages())[0]
    config = Compaction(strategy="summarize", target_tokens=1, preserve_last=2, protected_tokens=0)
    await session.compact(config)
    summary = next(message for message in await session.messages() if message.kind == "summary")
    with pytest.raises(UsageError, match="restore"):
        await session.retire(summary)
    await session.retire(first)
    shown = await session.messages()
    assert [message.text for message in shown if message.retired] == ["one", "Hello."]
    await session.restore()
    await said(lab, agent, "four")
    assert texts(script.bodies[-1]) == ["two", "Hello.", "three", "Hello.", "four"]


async def test_a_run_that_saw_an_exchange_sees_it_in_its_forks_and_replays(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)
    script = Noting(calls(think("Hm."), call("add", a=1, b=2)), calls(think("Ah."), say("Three.")))
    lab = await labs.use(hf, script)
    agent = hf.agent("adder", model="scripted:", tools=[add_of(hf)], options=THINKING)
    await said(lab, agent, "one")
    saw = await said(lab, agent, "two")
    session = hf.sessions["s"]
    await session.retire((await session.messages())[0])
    after = await said(lab, agent, "three")
    assert texts(script.bodies[-1]) == ["two", "Three.", "three"]
    for run, says in ((saw, ["one", "Three.", "two"]), (after, ["two", "Three.", "three"])):
        assert (await hf.runs.replay(run)).differences == ()
        fork = await run.fork(1)
        await settle(lab, fork)
        assert texts(script.bodies[-2]) == says
    forked = await session.fork()
    await settle(lab, await forked.send("four", agent))
    assert texts(script.bodies[-1]) == ["two", "Three.", "three", "Three.", "four"]


async def test_outputs_that_a_compaction_removed_go_with_their_exchange(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)

    @hf.tool(effect="read")
    def look_up(what: str) -> str:
        """Look something up."""
        return f"{what}: " + "rain and wind, " * 200

    script = Noting(call("look_up", what="weather"), say("Rain."))
    lab = await labs.use(hf, script)
    agent = hf.agent("guide", model="scripted:", tools=[look_up])
    runs = [await said(lab, agent, text) for text in ("one", "two", "three")]
    session = hf.sessions["s"]
    pruning = Compaction(window=10_000, target_tokens=9_000, preserve_last=2, protected_tokens=50)
    assert (await session.compact(pruning)).pruned == 2
    first = [message.id for message in await session.messages(archived=True) if message.run_id == runs[0].id]
    await session.retire(first[0])
    shown = await session.messages()
    assert len({message.ordinal for message in shown}) == len(shown) == 12
    assert [message.retired for message in shown] == [True] * 4 + [False] * 8
    saw = (await hf.runs.replay(runs[2])).differences
    assert saw == ()
    await session.restore()
    await said(lab, agent, "four")
    assert texts(script.bodies[-1]) == ["two", "Rain.", "three", "Rain.", "four"]
    assert "rain and wind" in str(script.bodies[-1]["messages"][2])
