"""Plain attempts: the short way to a handler ends in the same outcome as the long one, which every listener takes."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from holdfast import Cancel, Discard, Holdfast, Retry, Snooze
from holdfast.app import core_of
from holdfast.errors import BadPayload, LeaseLost
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import new_id
from holdfast.kernel.rows import Token
from holdfast.kernel.states import TERMINAL
from holdfast.outcomes import Done, Fail
from holdfast.outcomes import TryAgain as Again
from holdfast.values.jobs import JobRecord
from tests.support.apps import MakeApp, attempts, eventually, happens, in_state, working

ONCE = Retry(attempts=1)
COUNTED = contextvars.ContextVar("counted", default=0)


class Odd(BaseException):
    """Not an Exception, and none of ours."""


async def nothing() -> None: ...


async def a_result() -> dict[str, int]:
    return {"a": 1}


async def done() -> object:
    return Done([1])


async def a_result_too_large() -> str:
    return "x" * 2_000


async def no_json() -> object:
    return {"a": float("nan")}


async def fails_for_good() -> object:
    return Fail("no", "mine")


async def wants_again() -> object:
    return Again(error="again", type="mine")


async def returns_a_policy() -> object:
    return Retry(attempts=3)


async def raises() -> None:
    raise ValueError("bad")


async def raises_oddly() -> None:
    raise Odd("strange")


async def exits() -> None:
    raise SystemExit(3)


async def cancels() -> None:
    raise Cancel("mine")


async def discards() -> None:
    raise Discard("mine")


async def cancels_itself() -> None:
    raise asyncio.CancelledError


async def makes_what_cannot_be_stored() -> None:
    raise BadPayload("not that")


async def raises_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(raises())


async def waits_and_returns(n: int = 3) -> int:
    for _ in range(n):
        await asyncio.sleep(0)
    return n


ENDINGS: list[Callable[..., Any]] = [
    nothing,
    a_result,
    done,
    a_result_too_large,
    no_json,
    fails_for_good,
    wants_again,
    returns_a_policy,
    raises,
    raises_oddly,
    exits,
    cancels,
    discards,
    cancels_itself,
    makes_what_cannot_be_stored,
    raises_a_group,
    waits_and_returns,
]


async def ended(app: Holdfast, id: str) -> JobRecord:
    async def look() -> JobRecord | None:
        row = await app.jobs.get(id)
        return row if row.state in TERMINAL else None

    return await eventually(look)


async def account(app: Holdfast, id: str) -> tuple[Any, ...]:
    """How a job ended, as far as it does not depend on where its handler was called from."""
    row = await ended(app, id)
    error = dict(row.error or {})
    error.pop("trace", None)
    return row.state, row.result, error, row.attempts, [each.outcome for each in await attempts(app, id)]


async def test_every_ending_is_the_same_on_both_ways(make_app: MakeApp) -> None:
    app = make_app(embedded=False, result_cap=1_000)
    jobs = [app.job(retry=ONCE)(function) for function in ENDINGS]
    async with working(app):
        told = {}
        for listening in (False, True):
            with app.events(to=lambda _: None) if listening else nullcontext():
                ids = [(await job.enqueue()).id for job in jobs]
                told[listening] = {job.__name__: await account(app, id) for job, id in zip(jobs, ids, strict=True)}
    assert told[False] == told[True]
    assert {name: (state, error.get("type")) for name, (state, _, error, _, _) in told[False].items()} == {
        "nothing": ("succeeded", None),
        "a_result": ("succeeded", None),
        "done": ("succeeded", None),
        "a_result_too_large": ("failed", "result_error"),
        "no_json": ("failed", "result_error"),
        "fails_for_good": ("failed", "mine"),
        "wants_again": ("failed", "mine"),
        "returns_a_policy": ("failed", "result_error"),
        "raises": ("failed", "processing_error"),
        "raises_oddly": ("failed", "outcome_error"),
        "exits": ("failed", "processing_error"),
        "cancels": ("cancelled", "cancelled"),
        "discards": ("failed", "discarded"),
        "cancels_itself": ("failed", "processing_error"),
        "makes_what_cannot_be_stored": ("failed", "result_error"),
        "raises_a_group": ("failed", "processing_error"),
        "waits_and_returns": ("succeeded", None),
    }


@pytest.mark.parametrize("payload", ['{"n": "many"}', '{"m": 1}', "[1]"])
async def test_arguments_that_do_not_fit_are_refused_in_the_same_words(make_app: MakeApp, payload: str) -> None:
    app = make_app(embedded=False)
    entered = False

    @app.job
    async def work(n: int) -> None:
        nonlocal entered
        entered = True

    async with working(app):
        told = []
        for listening in (False, True):
            with app.events(to=lambda _: None) if listening else nullcontext():
                job, route = work.new_job((1,), {}, id=new_id(core_of(app).runtime().ports), settings=app.settings)
                await core_of(app).runtime().transact(enqueue, [job._replace(payload=payload)], [route])
                told.append(await account(app, job.id))
    assert told[0] == told[1]
    assert told[0][2]["type"] == "invalid_input"
    assert not entered


async def test_a_snooze_costs_no_attempt_on_either_way(hf: Holdfast) -> None:
    runs = 0

    @hf.job(retry=ONCE)
    async def later() -> int:
        nonlocal runs
        runs += 1
        if runs % 2:
            raise Snooze("1ms")
        return runs

    async with hf:
        assert await later.run() == 2
        with hf.events(to=lambda _: None):
            assert await later.run() == 4


async def test_a_plain_handler_is_called_from_the_attempt_itself_unless_somebody_listens(hf: Holdfast) -> None:
    @hf.job
    async def caller() -> str:
        return inspect.stack()[1].function

    async with hf:
        assert await caller.run() == "_attempt"
        with hf.events(to=lambda _: None):
            assert await caller.run() != "_attempt"
        assert await caller.options(timeout="1h").run() != "_attempt"
        assert await caller.options(deadline="1h").run() != "_attempt"


@pytest.mark.parametrize("listening", [False, True])
async def test_a_running_handler_hears_of_a_cancel(hf: Holdfast, listening: bool) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    @hf.job
    async def long() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    with hf.events(to=lambda _: None) if listening else nullcontext():
        async with hf:
            await hf.ensure_worker()
            job = await long.enqueue()
            await happens(begun)
            await job.cancel("enough")
            row = await in_state(hf, job.id, "cancelled")
    assert stopped.is_set()
    assert "enough" in row.error["message"]


@pytest.mark.parametrize("listening", [False, True])
async def test_a_worker_that_leaves_hands_the_job_back(make_app: MakeApp, listening: bool) -> None:
    app = make_app(embedded=False, drain_grace="0s")
    begun = asyncio.Event()

    @app.job
    async def long() -> None:
        begun.set()
        await asyncio.Event().wait()

    with app.events(to=lambda _: None) if listening else nullcontext():
        async with working(app):
            job = await long.enqueue()
            await happens(begun)
    row = await app.jobs.get(job.id)
    assert (row.state, row.attempts) == ("pending", 0)
    assert [each.outcome for each in await attempts(app, job.id)] == ["released"]


@pytest.mark.parametrize("listening", [False, True])
async def test_a_handler_that_finds_its_lease_lost_writes_nothing(make_app: MakeApp, listening: bool) -> None:
    app = make_app(embedded=False)
    raised = asyncio.Event()

    @app.job
    async def late() -> None:
        raised.set()
        raise LeaseLost("a job", Token(1, 1))

    with app.events(to=lambda _: None) if listening else nullcontext():
        async with working(app):
            job = await late.enqueue()
            await happens(raised)
    outcomes = [each.outcome for each in await attempts(app, job.id)]
    assert outcomes == ["lost"], "neither ended nor handed back, but rescued from its worker"


async def test_a_handler_has_a_task_and_a_context_of_its_own(make_app: MakeApp) -> None:
    """Also one that starts in the slot of another, which has just ended."""
    app = make_app(embedded=False, concurrency=1, prefetch=10)
    tasks = []

    @app.job
    async def count() -> int:
        tasks.append(asyncio.current_task())
        COUNTED.set(COUNTED.get() + 1)
        return COUNTED.get()

    jobs = await count.enqueue_many([()] * 100)
    async with working(app):
        assert [await job.result() for job in jobs] == [1] * 100
    assert None not in tasks
    assert len(set(tasks)) == 100


async def test_handlers_that_never_wait_leave_the_loop_its_turns(make_app: MakeApp) -> None:
    """Between the rounds of its slots, however many jobs it has at hand: else it would show no sign of life."""
    app = make_app(embedded=False, concurrency=2, prefetch=10)
    turns, seen = 0, []

    @app.job
    async def busy() -> None:
        seen.append(turns)

    async def turning() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    jobs = await busy.enqueue_many([()] * 100)
    watcher = asyncio.create_task(turning())
    async with working(app):
        for job in jobs:
            await job.result()
    watcher.cancel()
    assert max(seen.count(turn) for turn in seen) <= 4, "what a claim finds free, and what follows it"
