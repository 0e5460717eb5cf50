"""Readers of events: slow ones, those that leave, and those that come back after a restore."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.agents.api.run import Run
from holdfast.agents.events import reader
from holdfast.agents.events.reader import newest_cursor
from holdfast.app import core_of
from holdfast.kernel import epoch
from holdfast.models.script import Step, say
from tests.conftest import Place
from tests.support.agents import scripted
from tests.support.apps import PATIENCE, MakeApp
from tests.support.past_kernel import query


async def test_a_reader_without_a_loop_is_sent_no_more_than_it_takes(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = make_app()
    steps: list[Step] = [say("word " * 200)]
    agent = hf.agent("a", model=scripted(hf, *steps))

    def read() -> tuple[int, int, list[int]]:
        run = agent.enqueue_sync("Go")
        hf.sync(hf.ensure_worker())
        run.result_sync()
        given: list[int] = []
        original = Run.stream

        async def counted(self: Run[Any], after: int = 0) -> Any:
            async for event in original(self, after):
                given.append(event.seq)
                yield event

        monkeypatch.setattr(Run, "stream", counted)
        events = run.stream_sync()
        first, second = next(events), next(events)
        taken = len(given)
        events.close()
        hf.sync.close()
        return taken, second.seq - first.seq, given

    taken, apart, given = await asyncio.to_thread(read)
    assert (taken, apart, given) == (2, 1, [1, 2])


async def test_what_was_read_at_once_is_given_out_without_asking_again(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each event that is taken would otherwise ask the store, of hundreds of streams thousands of times a second."""
    agent = hf.agent("a", model=scripted(hf, say("done")))
    run = await agent.enqueue("Go")
    await hf.ensure_worker()
    await run.result()
    looks, streams = 0, core_of(hf).streams()
    once = streams._once

    async def counted() -> bool:
        nonlocal looks
        looks += 1
        return await once()

    monkeypatch.setattr(streams, "_once", counted)
    monkeypatch.setattr(reader, "_FIRST_LOOK", PATIENCE)
    given = streams.events(run.id)
    stored = len(await run.events())
    for _ in range(stored - 1):
        await anext(given)
        await asyncio.sleep(0.01)  # a busy reader; the loop beside it has time to ask
    assert (stored > 4, looks) == (True, 1)
    await given.aclose()  # type: ignore[attr-defined]  # an async generator's


async def test_a_reader_that_was_full_is_given_the_rest_when_it_has_room(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_PAGE", 3)
    agent = hf.agent("a", model=scripted(hf, say("done")))
    run = await agent.enqueue("Go")
    await hf.ensure_worker()
    await run.result()
    stored = await run.events()
    monkeypatch.setattr(reader, "_FIRST_LOOK", PATIENCE)
    found = [row.seq async for row in core_of(hf).streams().events(run.id)]
    assert found == [event.seq for event in stored]
    assert len(found) > 4


async def test_a_reader_of_all_events_that_leaves_is_not_called_any_more(hf: Holdfast) -> None:
    agent = hf.agent("a", model=scripted(hf, say("done")))
    await agent.run("Go")
    database: Any = core_of(hf).runtime().database
    before = len(database._heard)
    for _ in range(5):
        events = hf.events(after="")
        await anext(events)
        await events.aclose()  # type: ignore[attr-defined]  # an async generator's
    assert len(database._heard) == before
    await core_of(hf).streams().close()
    assert len(database._heard) == before - 1


async def test_all_events_are_read_after_a_restore_in_another_cluster(make_app: MakeApp, place: Place) -> None:
    hf = make_app()
    agent = hf.agent("a", model=scripted(hf, say("done")))
    await agent.run("before")
    seen = await _topics(hf, "")
    if not place.url.startswith("sqlite"):
        query(place, "update holdfast.run_event set tx = tx + 1000000000")  # the old cluster had been busier
    await core_of(hf).runtime().transact(epoch.bump)
    second = await agent.run("after")
    everything = await _topics(hf, "")
    assert len(everything) == 2 * len(seen)
    assert {each.run for each in everything[len(seen) :]} == {second.run_id}
    assert [each.run for each in await _topics(hf, everything[len(seen) - 1].cursor)] == [second.run_id] * len(seen)


async def test_now_is_before_what_an_open_transaction_commits_later(postgres_url: str) -> None:
    hf = Holdfast(postgres_url)
    agent = hf.agent("a", model=scripted(hf, say("done")))
    await agent.enqueue("stores the agent")
    async with await psycopg.AsyncConnection.connect(postgres_url) as open_one:
        late = await agent.enqueue("open first, committed last", tx=open_one)
        await agent.enqueue("committed")
        now = await newest_cursor(await core_of(hf).opened())
        await open_one.commit()
    async with asyncio.timeout(PATIENCE):
        async for event in hf.events("run_created", after=now):
            if event.run == late.id:
                break
    await hf.close()


async def _topics(app: Holdfast, after: str) -> list[Any]:
    """What there is until nothing comes any more: every run's last is that it is completed."""
    found: list[Any] = []
    ended = {row.id for row in await app.runs.list()}
    async with asyncio.timeout(PATIENCE):
        events = app.events(after=after)
        async for event in events:
            found.append(event)
            if event.topic == "run_finalized":
                ended.discard(event.run)
            if not ended or (after and event.topic == "run_finalized"):
                await events.aclose()  # type: ignore[attr-defined]  # an async generator's
                break
    return found
