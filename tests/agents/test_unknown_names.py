"""Names that nothing has, and the names that something has: the same on both databases, and never an empty answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.api.agent import Agent
from holdfast.agents.api.run import Run
from holdfast.agents.api.session import Session
from holdfast.errors import NotFound
from holdfast.models.script import Script, say
from holdfast.testing import Labs

UNKNOWN = "01a1e125-4e0c-70a5-abaa-9455e3e70682"

Ask = Callable[[Any], Awaitable[Any]]


async def streamed(run: Run[Any]) -> list[Any]:
    return [event async for event in run.stream()]


OF_RUNS: dict[str, Ask] = {
    "refresh": Run.refresh,
    "result": Run.result,
    "text": Run.text,
    "stream": streamed,
    "cancel": Run.cancel,
    "steer": lambda run: run.steer("on"),
    "interrupt": Run.interrupt,
    "turns": Run.turns,
    "calls": Run.calls,
    "events": Run.events,
    "inquiries": Run.inquiries,
    "children": Run.children,
    "usage": Run.usage,
    "why": Run.why,
    "fork": Run.fork,
    "forked_from": Run.forked_from,
}
OF_SESSIONS: dict[str, Ask] = {
    "refresh": Session.refresh,
    "messages": Session.messages,
    "runs": Session.runs,
    "usage": Session.usage,
    "compactions": Session.compactions,
    "compact": Session.compact,
    "fork": Session.fork,
    "update": Session.update,
    "delete": Session.delete,
}


@pytest.fixture
def desk(hf: Holdfast) -> Agent[str]:
    return hf.agent("desk", model="scripted:")


@pytest.mark.sample(6)
@pytest.mark.parametrize("asked", OF_RUNS)
@pytest.mark.parametrize("id", ["nope", UNKNOWN])
async def test_a_run_that_is_not_there_is_not_found(hf: Holdfast, asked: str, id: str) -> None:
    for runs in (hf.runs, hf.tenant("acme").runs):
        with pytest.raises(NotFound, match=f"there is no run {id}"):
            await OF_RUNS[asked](runs[id])


@pytest.mark.parametrize("id", ["nope", UNKNOWN])
async def test_why_and_a_lab_know_no_such_run_either(hf: Holdfast, labs: Labs, id: str) -> None:
    with pytest.raises(NotFound, match=f"there is no run {id}"):
        await hf.why(id)
    other = Holdfast("sqlite:///never.db")
    await labs.use(other, Script(say("hi")))
    for asked in ("result", "stream", "cancel"):
        with pytest.raises(NotFound, match=f"there is no run {id}"):
            await OF_RUNS[asked](other.runs[id])


@pytest.mark.sample(6)
@pytest.mark.parametrize("asked", OF_SESSIONS)
@pytest.mark.parametrize("id", ["nope", UNKNOWN])
async def test_a_session_that_is_not_there_is_not_found(hf: Holdfast, asked: str, id: str) -> None:
    for sessions in (hf.sessions, hf.tenant("acme").sessions):
        with pytest.raises(NotFound, match=f"there is no session {id}"):
            await OF_SESSIONS[asked](sessions[id])
    with pytest.raises(NotFound, match=f"there is no session {id}"):
        await hf.runs.list(session=id)


async def test_a_key_stands_for_its_session_wherever_its_id_does(hf: Holdfast, desk: Agent[str]) -> None:
    mine = await desk.enqueue("hi", session="ann")
    theirs = await desk.enqueue("hi", session="ann", tenant="acme")
    assert [row.id for row in await hf.runs.list(session="ann")] == [mine.id]
    assert [row.id for row in await hf.runs.list(session="ann", tenant="acme")] == [theirs.id]
    assert [row.id for row in await hf.tenant("acme").runs.list(session="ann")] == [theirs.id]
    ann = hf.sessions["ann"]
    assert ([row.id for row in await ann.runs()], ann.id, ann.tenant) == ([mine.id], mine.session_id, "")
    assert (await hf.tenant("acme").sessions["ann"].refresh()).id == theirs.session_id
    second = await hf.sessions["ann"].send("more", desk)
    assert second.session_id == mine.session_id
    third = await hf.tenant("acme").sessions["ann"].send("more", desk)
    assert third.session_id == theirs.session_id
    assert (await hf.session("bob", parent="ann").refresh()).parent == mine.session_id
    assert [row.key for row in await hf.sessions.list(parent="ann")] == ["bob"]


async def test_a_run_may_be_named_in_capitals(hf: Holdfast, desk: Agent[str]) -> None:
    run = await desk.enqueue("hi", session="ann")
    assert run.session_id is not None
    assert (await hf.runs.get(run.id.upper())).id == run.id
    assert (await hf.sessions.get(run.session_id.upper())).key == "ann"


async def test_why_speaks_of_an_ended_run_in_its_own_words(labs: Labs) -> None:
    hf = Holdfast("sqlite:///never.db")
    desk = hf.agent("desk", model="scripted:")
    lab = await labs.use(hf, Script(say("hi")))
    done, gone = await desk.enqueue("hi"), await desk.enqueue("hi", delay="1h")
    await gone.cancel("no more")
    await lab.drain()
    assert str(await done.why()).startswith("it completed at 20")
    assert str(await done.why()).endswith(", answered")
    assert str(await gone.why()).startswith("it was cancelled at 20")
