"""Sessions: whose turn it is, what a cancel leaves, and readers who come late."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Holdfast
from holdfast.agents.tools import ServerTool
from holdfast.app import core_of
from holdfast.errors import NotFound, SessionBusy, UsageError
from holdfast.models.script import say
from tests.support.agents import Gated, scripted
from tests.support.apps import MakeApp, in_state, working


async def test_a_run_cancelled_while_it_waits_lets_the_next_one_go(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    core_of(hf).book.substitute = model = Gated(say("done"), waits=1)
    agent = hf.agent("a", model="scripted:")
    runs = [await agent.enqueue(f"message {n}", session="s") for n in range(4)]
    async with working(hf):
        await model.reached(1)
        await in_state(hf, runs[1].id, "waiting")
        assert await runs[1].cancel("not needed") == "cancelled"
        model.gate.set()
        assert [await runs[n].text() for n in (0, 2, 3)] == ["done"] * 3
    messages = await hf.sessions[(await runs[0].refresh()).session].messages()
    assert [m.text for m in messages if m.kind == "prompt"] == ["message 0", "message 2", "message 3"]


async def test_a_message_may_insist_on_not_waiting(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("a", model=scripted(hf, say("done")))
    session = await hf.session("s")
    first = await session.send("One", agent)
    with pytest.raises(SessionBusy, match="has an active run"):
        await session.send("Two", agent, during="reject")
    async with working(hf):
        await first.result()
    assert (await session.send("Three", agent, during="reject")).session_id == session.id


async def test_a_reader_who_has_seen_the_end_is_not_kept_waiting(hf: Holdfast) -> None:
    run = hf.runs[(await hf.agent("a", model=scripted(hf, say("one two three"))).run("Go")).run_id]
    events = [event async for event in run.stream()]
    async with asyncio.timeout(30):
        assert [event async for event in run.stream(after=events[-1].seq)] == []
        assert [event.seq async for event in run.stream(after=events[-2].seq)] == [events[-1].seq]
        with pytest.raises(NotFound):
            await anext(aiter(hf.runs["018f0000-0000-7000-8000-000000000000"].stream()))


async def test_a_session_has_a_parent_that_is_there_and_of_the_same_tenant(hf: Holdfast) -> None:
    parent = await hf.session("parent")
    assert (await (await hf.session("child", parent=parent)).refresh()).parent == parent.id
    with pytest.raises(NotFound):
        await hf.tenant("other").session("child", parent=parent)
    with pytest.raises(NotFound):
        await hf.session("orphan", parent="018f0000-0000-7000-8000-000000000000")
    assert await hf.sessions.count() == 2


def test_a_server_tool_needs_a_name_of_its_own(hf: Holdfast) -> None:
    @hf.tool
    def web_search(query: str) -> str:
        """Search."""
        return query

    agent = hf.agent("a", model="scripted:", tools=[web_search, ServerTool("web_search_20260318")])
    with pytest.raises(UsageError, match="two tools named 'web_search'"):
        _ = agent.spec


async def test_the_id_of_a_session_as_text_means_that_session(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("a", model=scripted(hf, say("done")))
    mine = await hf.session("ann")
    alone = await hf.session()
    for session in (mine, alone):
        for name in (session.id, session.id.upper()):
            run = await agent.enqueue("Hello", session=name)
            assert run.session_id == session.id
            assert (await hf.session(name)).id == session.id
            assert (await hf.sessions[name].refresh()).id == session.id
    assert await hf.sessions.count() == 2


async def test_a_text_in_the_form_of_an_id_that_is_none_makes_no_session(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("a", model=scripted(hf, say("done")))
    nobody = "0190a5b4-0000-7000-8000-000000000000"
    with pytest.raises(NotFound, match="has the form of an id"):
        await agent.enqueue("Hello", session=nobody)
    with pytest.raises(NotFound, match="has the form of an id"):
        await hf.session(nobody)
    with pytest.raises(UsageError, match="has the form of an id"):
        await (await hf.session("ann")).fork(key=nobody)
    assert (await hf.sessions.count(), len(await hf.runs.list())) == (1, 0)


async def test_the_id_of_another_tenants_session_is_nobodys(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("a", model=scripted(hf, say("done")))
    theirs = await hf.tenant("acme").session("ann")
    for tenant in ("", "globex"):
        with pytest.raises(NotFound, match="there is no session"):
            await agent.enqueue("Hello", session=theirs.id, tenant=tenant)
    with pytest.raises(NotFound, match="there is no session"):
        await hf.tenant("globex").session(theirs.id)
    run = await agent.enqueue("Hello", session=theirs.id, tenant="acme")
    assert run.session_id == theirs.id
