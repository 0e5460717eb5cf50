"""Lists of agents, runs and sessions come in pages: put together they are the whole list, each item once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.api.run import Run
from holdfast.errors import UsageError
from holdfast.events import EventsPruned
from holdfast.models.script import Script, call, calls, say
from holdfast.values import Page
from tests.conftest import Place
from tests.support.apps import eventually
from tests.support.compaction import SMALL, talk, talker
from tests.support.past_kernel import query

Listing = Callable[..., Awaitable[Page[Any]]]


async def whole(listing: Listing, *args: Any, limit: int) -> list[Any]:
    """All items of a list, a page at a time."""
    page = await listing(*args, limit=limit)
    items = list(page)
    while page.next is not None:
        page = await listing(*args, limit=limit, after=page.next)
        assert len(page) <= limit
        items += page
    return items


async def test_the_parts_of_a_run_come_in_pages(hf: Holdfast, place: Place) -> None:
    helper = hf.agent("helper", model="scripted:helper")
    hf.script("helper", Script(say("done")))
    lead = hf.agent("lead", model="scripted:lead", agents=[helper])
    twice = calls(call("helper", task="a"), call("helper", task="b"))
    hf.script("lead", Script(twice, call("helper", task="c"), say("all done")))
    run = await lead.enqueue("Go")
    async with hf:
        await run.result()
    listings: Sequence[Listing] = (run.turns, run.calls, run.children, run.events)
    for listing in listings:
        at_once = await listing()
        assert (len(at_once) >= 3, at_once.next) == (True, None), listing
        assert await whole(listing, limit=2) == at_once
        with pytest.raises(UsageError, match="after must be what a page of the same list has"):
            await listing(after="nonsense")
    assert [each.number for each in await run.turns()] == [1, 2, 3]
    assert [(each.turn, each.ordinal) for each in await run.calls()] == [(1, 0), (1, 1), (2, 0)]

    numbers = [event.seq for event in await run.events(after=3)]
    assert numbers == list(range(4, numbers[-1] + 1))
    query(place, f"delete from holdfast.run_event where run = '{run.id}' and (seq in (2, 3) or seq = {numbers[-1]})")
    left = await whole(run.events, limit=1)
    gaps = [(event.first, event.last) for event in left if isinstance(event, EventsPruned)]
    assert gaps == [(2, 3), (numbers[-1], numbers[-1])], "a page that is full says nothing of what comes after it"


async def test_what_a_run_asks_people_comes_in_pages(hf: Holdfast) -> None:
    """In the order of its calls, also when what the page before ended with was decided meanwhile."""

    @hf.tool(approve=True)
    def move(place: int) -> str:
        """Move."""
        return f"moved to {place}"

    agent = hf.agent("mover", model="scripted:mover", tools=[move])
    hf.script("mover", Script(calls(*(call("move", place=place) for place in range(5))), say("all moved")))
    async with hf:
        run = await agent.enqueue("Go")
        await eventually(lambda: are_asked(run, 5))
        at_once = await run.inquiries()
        assert [each.call.input["place"] for each in at_once if each.call] == [0, 1, 2, 3, 4]
        assert (await whole(run.inquiries, limit=2), at_once.next) == (at_once, None)
        first = await run.inquiries(limit=2)
        await hf.inquiries.deny(first[-1].id)
        assert await run.inquiries(after=first.next) == at_once[2:]
        with pytest.raises(UsageError, match="after must be what a page of the same list has"):
            await run.inquiries(after="nonsense")
        for each in await run.inquiries():
            await hf.inquiries.approve(each.id)
        assert (await run.result()).text == "all moved"


async def are_asked(run: Run[Any], count: int) -> bool:
    return len(await run.inquiries()) == count


async def test_what_is_in_the_store_comes_in_pages(hf: Holdfast) -> None:
    for number, town in enumerate(("Oslo", "Rome", "Oslo", 7, None, {"ways": ['"', "ж" * 5_000]}, ["→" * 5_000])):
        await hf.session(str(number), metadata={"town": town})
    towns = await hf.sessions.values("town")
    assert (towns[0], towns.next) == (("Oslo", 2), None)
    assert sorted(str(town)[:6] for town in towns[1:]) == ["('Rome", "(7, 1)", "(None,", "(['→→→", "({'way"]
    assert await whole(hf.sessions.values, "town", limit=1) == towns

    row = await hf.agents.create("clerk", model="scripted:", instructions="1")
    for number in (2, 3):
        await hf.agents.update(row.id, instructions=str(number))
    versions = await hf.agents.versions(row.id)
    assert [each.version for each in versions] == [3, 2, 1]
    assert await whole(hf.agents.versions, row.id, limit=2) == versions


async def test_compactions_come_in_pages(hf: Holdfast) -> None:
    agent, _ = talker(hf)
    session = hf.session("a")
    await talk(session, agent, 3)
    await session.compact(SMALL)
    await talk(session, agent, 2)
    await session.compact(SMALL)
    found = await session.compactions()
    assert len(found) == 2
    assert await whole(session.compactions, limit=1) == found


async def test_events_of_all_runs_say_when_they_happened(hf: Holdfast) -> None:
    hf.script("short", Script(say("done")))
    run = await hf.agent("short", model="scripted:short").enqueue("Go")
    async for event in hf.events("run_created", after=""):
        assert (event.run, event.at) == (run.id, (await run.events())[0].at)
        break
