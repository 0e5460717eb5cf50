"""Group commit: enqueue calls made while one write is in flight share the next, and each has its own answer."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any, cast

import pytest

from holdfast import Holdfast, Queue
from holdfast.app import core_of
from holdfast.client.intake import MOST_CALLS, MOST_TEXT, Grouping
from holdfast.errors import StoreUnavailable
from holdfast.kernel.database import Database
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import NewJob
from tests.support.apps import PATIENCE, MakeApp
from tests.support.stores import Store

PATIENT = 5.0  # seconds


class Gate:
    """In front of the store: notes which payloads each write has, and lets it pass while it is open."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.opened = asyncio.Event()
        self.writes: list[list[Any]] = []
        self.notified: list[bool] = []
        self.away = False

    async def transact(self, operation: Any, jobs: list[NewJob], routes: Any, *, notify: bool) -> Any:
        self.writes.append([_said(job) for job in jobs])
        self.notified.append(notify)
        await self.opened.wait()
        if self.away:
            raise StoreUnavailable("the store is away")
        return await self._store.database.transact(operation, jobs, routes, notify=notify)


class Line:
    """Grouping on a store with a gate, and calls whose payload is a number."""

    def __init__(self, store: Store) -> None:
        self.gate = Gate(store)
        self.grouping = Grouping(cast(Database, self.gate), store.ports, PATIENT)
        self._store = store

    def call(self, payload: Any, *, notify: bool = True, **changes: Any) -> asyncio.Task[None]:
        job = self._store.job(payload=json.dumps(payload), **changes)
        return asyncio.create_task(self.grouping.enqueue(job, notify=notify))

    async def calls(self, *payloads: Any) -> list[asyncio.Task[None]]:
        """All of them have been made, and none is answered."""
        tasks = [self.call(payload) for payload in payloads]
        await asyncio.sleep(0)
        return tasks

    async def answers(self, *tasks: asyncio.Task[None]) -> list[Any]:
        self.gate.opened.set()
        async with asyncio.timeout(PATIENCE):
            return await asyncio.gather(*tasks, return_exceptions=True)

    async def stored(self) -> list[Any]:
        return [
            json.loads(payload)
            for (payload,) in await self._store.query("select payload from holdfast.job order by seq")
        ]


def _said(job: NewJob) -> Any:
    return json.loads(job.payload)


@pytest.fixture
async def line(store: Store) -> Line:
    await store.do(enqueue, [], [route_for("default", "work"), route_for("default", "other")])
    return Line(store)


async def test_a_lonely_call_is_written_at_once(line: Line) -> None:
    (alone,) = await line.calls(1)
    assert line.gate.writes == [[1]], "before the loop has turned once more"
    assert await line.answers(alone) == [None]
    await line.grouping.close()
    assert await line.stored() == [1]


async def test_calls_made_while_a_write_is_in_flight_travel_together(line: Line) -> None:
    tasks = await line.calls(*range(9))
    assert await line.answers(*tasks) == [None] * 9
    assert line.gate.writes == [[0], [1, 2, 3, 4, 5, 6, 7, 8]]
    assert await line.stored() == list(range(9)), "in the order of the calls"


async def test_callers_that_call_again_when_they_are_answered_need_one_commit_for_all(line: Line, store: Store) -> None:
    async def caller(number: int) -> None:
        for n in range(10):
            await line.grouping.enqueue(store.job(payload=json.dumps([number, n])), notify=True)

    line.gate.opened.set()
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as callers:
        for number in range(8):
            callers.create_task(caller(number))
    stored = await line.stored()
    assert len(stored) == 80
    for number in range(8):
        assert [n for who, n in stored if who == number] == list(range(10)), "each caller's own order"
    assert len(line.gate.writes) <= 13, "ten of eight, and some at the beginning and the end"


async def test_jobs_of_several_kinds_share_a_statement(line: Line, store: Store) -> None:
    (first,) = await line.calls(0)
    others = [
        line.call(1, kind="work", priority=7),
        line.call(2, kind="other", tenant="acme"),
        line.call(3, kind="work"),
    ]
    await asyncio.sleep(0)
    assert await line.answers(first, *others) == [None] * 4
    assert line.gate.writes == [[0], [1, 2, 3]]
    rows = await store.query("select payload, kind, priority, tenant from holdfast.job order by seq")
    assert [tuple(row) for row in rows][1:3] == [("1", "work", 7, ""), ("2", "other", 100, "acme")]


async def test_a_call_that_the_store_refuses_fails_alone(line: Line) -> None:
    (first,) = await line.calls(0)
    refused = line.call("refused", max_attempts=None)
    others = await line.calls(1, 2)
    answers = await line.answers(first, refused, *others)
    assert [answers[0], *answers[2:]] == [None, None, None]
    assert "max_attempts" in str(answers[1])
    assert await line.stored() == [0, 1, 2]


async def test_a_lonely_call_that_the_store_refuses_keeps_nobody(line: Line) -> None:
    refused = line.call("refused", max_attempts=None)
    await asyncio.sleep(0)
    others = await line.calls(1, 2)
    answers = await line.answers(refused, *others)
    assert "max_attempts" in str(answers[0])
    assert answers[1:] == [None, None]
    assert await line.stored() == [1, 2]


@pytest.mark.parametrize("who", ["in flight alone", "in flight with others", "waiting"])
async def test_a_cancelled_call_leaves_the_others_alone(line: Line, who: str) -> None:
    tasks = await line.calls(0, 1, 2)
    if who == "in flight with others":
        line.gate.opened.set()
        await tasks[0]
        line.gate.opened.clear()
        await asyncio.sleep(0)
    cancelled = tasks[0] if who == "in flight alone" else tasks[1]
    cancelled.cancel()
    answers = await line.answers(*tasks)
    assert isinstance(answers.pop(tasks.index(cancelled)), asyncio.CancelledError)
    assert answers == [None, None]
    stored = await line.stored()
    assert {0, 1, 2} - {tasks.index(cancelled)} <= set(stored)
    if who == "waiting":
        assert stored == [0, 2], "it never was on its way"
    assert await line.answers(line.call(3)) == [None]


async def test_when_all_that_wait_are_cancelled_the_next_call_is_lonely(line: Line) -> None:
    first, *others = await line.calls(0, 1, 2)
    for task in others:
        task.cancel()
    await line.answers(first, *others)
    await line.grouping.close()
    assert await line.answers(line.call(3)) == [None]
    assert line.gate.writes == [[0], [3]]


async def test_calls_that_wake_workers_and_calls_that_do_not_are_written_apart(line: Line) -> None:
    (first,) = await line.calls(0)
    others = [line.call(n, notify=bool(n % 2)) for n in range(1, 7)]
    await asyncio.sleep(0)
    assert await line.answers(first, *others) == [None] * 7
    assert line.gate.writes == [[0], [1, 3, 5], [2, 4, 6]]
    assert line.gate.notified == [True, True, False]


async def test_a_group_has_only_so_many_calls(line: Line) -> None:
    tasks = await line.calls(*range(2 * MOST_CALLS + 11))
    assert set(await line.answers(*tasks)) == {None}
    assert [len(write) for write in line.gate.writes] == [1, MOST_CALLS, MOST_CALLS, 10]


async def test_a_group_has_only_so_much_text(line: Line) -> None:
    small, half, huge = "", "x" * (MOST_TEXT // 2), "x" * (2 * MOST_TEXT)
    tasks = await line.calls(small, half, small, half, huge, small, half)
    assert set(await line.answers(*tasks)) == {None}
    lengths = [[len(text) for text in write] for write in line.gate.writes]
    assert lengths == [[0], [len(half), 0], [len(half)], [len(huge)], [0, len(half)]]


async def test_when_the_store_is_away_every_call_is_told_after_its_own_patience(line: Line, store: Store) -> None:
    """Otherwise a thousand calls in a line would wait for as long as a thousand calls wait."""
    line.gate.away = True
    tasks = await line.calls(*range(2 * MOST_CALLS))
    await store.advance("5s")
    late = await line.calls("late")
    answers = await line.answers(*tasks, *late)
    assert {type(answer) for answer in answers} == {StoreUnavailable}
    assert len({id(answer) for answer in answers}) == len(answers), "each its own"
    assert [len(write) for write in line.gate.writes] == [1, 1], "nobody repeats it for those that have waited enough"
    line.gate.away = False
    assert await line.answers(line.call("back")) == [None]


async def test_a_group_that_meets_an_absent_store_is_not_repeated_call_by_call(line: Line) -> None:
    tasks = await line.calls(0, 1, 2, 3)
    line.gate.away = True
    answers = await line.answers(*tasks)
    assert {type(answer) for answer in answers} == {StoreUnavailable}
    assert line.gate.writes == [[0], [1, 2, 3]]


async def test_closing_waits_for_the_answers(line: Line) -> None:
    tasks = await line.calls(0, 1, 2)
    closing = asyncio.create_task(line.grouping.close())
    await asyncio.sleep(0)
    assert not closing.done()
    line.gate.opened.set()
    async with asyncio.timeout(PATIENCE):
        await closing
    assert all(task.done() for task in tasks)


def _note_writes(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the operations that the app's store is asked for."""
    asked: list[str] = []
    database = core_of(app).runtime().database
    transact = database.transact

    async def noting(operation: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(operation.__name__)
        return await transact(operation, *args, **kwargs)

    monkeypatch.setattr(database, "transact", noting)
    return asked


async def test_a_hundred_calls_at_once_are_a_few_writes_and_one_introduces_the_route(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = make_app(embedded=False)

    @hf.job
    async def work(n: int) -> None: ...

    asked = _note_writes(hf, monkeypatch)
    jobs = await asyncio.gather(*(work.enqueue(n) for n in range(100)))
    assert len({job.id for job in jobs}) == 100
    rows = await hf.jobs.list(limit=200)
    assert sorted(row.payload["n"] for row in rows) == list(range(100))
    assert asked.count("enqueue") == 3, "one has the route, the next finds no write in flight, all others wait for it"


async def test_what_has_a_key_a_lane_or_a_turn_of_its_own_is_not_grouped(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = make_app(embedded=False)
    hf.queue("fair", Queue(fair=True))

    @hf.job
    async def plain(n: int) -> None: ...

    @hf.job(unique="pending")
    async def once(n: int) -> None: ...

    @hf.job(concurrency=1)
    async def narrow(n: int) -> None: ...

    @hf.job(queue="fair")
    async def shared(n: int) -> None: ...

    await plain.enqueue(0)
    asked = _note_writes(hf, monkeypatch)
    await asyncio.gather(
        *(plain.options(key=f"k{n}").enqueue(n) for n in range(3)),
        *(once.enqueue(n % 2) for n in range(4)),
        *(narrow.options(lane="a").enqueue(n) for n in range(3)),
        *(shared.enqueue(n) for n in range(3)),
    )
    assert (asked.count("submit"), asked.count("enqueue")) == (7, 6)
    assert len(await hf.jobs.list(limit=100)) == 1 + 3 + 2 + 3 + 3


async def test_options_given_once_count_for_every_call_and_metadata_is_read_at_each(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)

    @hf.job(timeout="1m")
    async def work(n: int) -> None: ...

    about = {"by": "Ann"}
    marked = work.options(tenant="acme", priority=3, metadata=about)
    first = await marked.enqueue(1)
    about["by"] = "Bo"
    second = await marked.enqueue(2)
    third = await work.enqueue(3)
    rows = [await hf.jobs.get(job.id) for job in (first, second, third)]
    assert [(row.tenant, row.priority, row.timeout) for row in rows] == [
        ("acme", 3, timedelta(minutes=1)),
        ("acme", 3, timedelta(minutes=1)),
        ("", 100, timedelta(minutes=1)),
    ]
    assert [row.metadata for row in rows] == [{"by": "Ann"}, {"by": "Bo"}, {}]
    assert [row.payload["n"] for row in rows] == [1, 2, 3]
