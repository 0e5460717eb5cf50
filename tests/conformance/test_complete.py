"""Complete: how each outcome ends an attempt, what it costs, and what is stored."""

from __future__ import annotations

import json
import math

import pytest

from holdfast.errors import BadPayload
from holdfast.kernel.cancel import cancel
from holdfast.kernel.complete import complete, complete_and_settle, release, repeated
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.rows import JobRow
from holdfast.kernel.states import State
from holdfast.kernel.waiting import wake
from holdfast.outcomes import Cancel, Discard, Done, Fail, Snooze, TryAgain
from tests.conftest import MakeStore
from tests.support.stores import Ends, Store

SECOND_US = 1_000_000


async def ended(store: Store, outcome: Ends, **changes: int) -> JobRow:
    lease = await store.claimed(**changes)
    await store.advance("5s")
    (answer,) = await store.end(lease, outcome)
    row = await store.find(lease.id)
    assert (answer.seq, answer.state, answer.parent) == (row.seq, row.state, row.parent)
    assert (answer.epoch, answer.token) == lease.fence
    assert (row.worker, row.lease_until) == (None, None)
    return row


def error_of(row: JobRow) -> tuple[str, str]:
    error = json.loads(row.error or "{}")
    return error["type"], error["message"]


async def test_done_succeeds_with_its_result(store: Store) -> None:
    row = await ended(store, Done({"b": [1, None], "a": "Zoë"}))
    assert (row.state, row.attempts, row.error) == (State.SUCCEEDED, 1, None)
    assert row.result == '{"a":"Zoë","b":[1,null]}'
    assert row.finished_at == store.clock.us


async def test_done_with_nothing_stores_null(store: Store) -> None:
    assert (await ended(store, Done())).result == "null"


async def test_a_retry_waits_as_its_policy_says(store: Store) -> None:
    lease = await store.claimed()
    for attempt, pause in ((1, 10), (2, 20)):
        await store.end(lease, TryAgain(error="flaky"), RetryPolicy(base="10s", jitter=0))
        row = await store.find(lease.id)
        assert (row.state, row.attempts, row.finished_at) == (State.SCHEDULED, attempt, None)
        assert row.due_at == store.clock.us + pause * SECOND_US
        assert error_of(row) == ("processing_error", "flaky")
        await store.advance(f"{pause}s")
        await store.do(wake, limit=10)
        (lease,) = await store.claim(lease.worker)


async def test_a_retry_may_name_its_own_pause(store: Store) -> None:
    row = await ended(store, TryAgain(after="90s"))
    assert (row.state, row.due_at, row.attempts) == (State.SCHEDULED, store.clock.us + 90 * SECOND_US, 1)


async def test_a_retry_without_pause_is_pending(store: Store) -> None:
    row = await ended(store, TryAgain(after="0s"))
    assert (row.state, row.due_at, row.attempts) == (State.PENDING, None, 1)


async def test_the_last_attempt_that_fails_ends_the_job(store: Store) -> None:
    row = await ended(store, TryAgain(error="again", type="streaming_error"), max_attempts=1)
    assert (row.state, row.attempts, row.due_at) == (State.FAILED, 1, None)
    assert error_of(row) == ("streaming_error", "again")
    assert row.finished_at == store.clock.us


async def test_attempts_are_counted_up_to_their_limit(store: Store) -> None:
    worker = await store.worker()
    lease = await store.claimed(worker, max_attempts=3)
    for _ in range(2):
        await store.end(lease, TryAgain(after="0s"))
        (lease,) = await store.claim(worker)
    await store.end(lease, TryAgain(after="0s"))
    row = await store.find(lease.id)
    assert (row.state, row.attempts) == (State.FAILED, 3)


@pytest.mark.parametrize(
    ("outcome", "state", "error"),
    [
        (Fail("no such file"), State.FAILED, ("processing_error", "no such file")),
        (Fail("cut off", type="streaming_error"), State.FAILED, ("streaming_error", "cut off")),
        (Discard("useless"), State.FAILED, ("discarded", "useless")),
        (Cancel("not needed"), State.CANCELLED, ("cancelled", "not needed")),
    ],
)
async def test_final_outcomes_use_no_further_attempt(
    store: Store, outcome: Ends, state: State, error: tuple[str, str]
) -> None:
    row = await ended(store, outcome)
    assert (row.state, row.attempts, row.result) == (state, 1, None)
    assert row.finished_at == store.clock.us
    assert error_of(row) == error


async def test_a_snooze_costs_nothing(store: Store) -> None:
    row = await ended(store, Snooze("5m"), max_attempts=1)
    assert (row.state, row.attempts, row.rescues, row.error) == (State.SCHEDULED, 0, 0, None)
    assert row.due_at == store.clock.us + 300 * SECOND_US


async def test_a_release_costs_nothing(store: Store) -> None:
    lease = await store.claimed(max_attempts=1)
    await store.complete(lease, release(lease))
    row = await store.find(lease.id)
    assert (row.state, row.attempts, row.rescues, row.due_at) == (State.PENDING, 0, 0, None)


async def test_outcomes_and_lost_leases_are_counted_apart(store: Store) -> None:
    worker = await store.worker()
    lease = await store.claimed(worker)
    await store.end(lease, TryAgain(after="0s"))
    await store.claim(worker)
    await store.advance("61s")
    await store.expire()
    row = await store.find(lease.id)
    assert (row.attempts, row.rescues) == (1, 1)


async def test_each_attempt_leaves_one_row(store: Store) -> None:
    worker = await store.worker()
    first = lease = await store.claimed(worker, max_attempts=9)
    started = store.clock.us
    for ending in (store.ending(lease, TryAgain(after="0s", error="flaky")), store.ending(lease, Snooze("0s"))):
        await store.advance("1s")
        await store.complete(lease, ending._replace(token=lease.token))
        (lease,) = await store.claim(worker)
    await store.complete(lease, release(lease))
    (lease,) = await store.claim(worker)
    await store.end(lease, Done())

    rows = await store.attempts(first)
    assert [row.outcome for row in rows] == ["retried", "snoozed", "released", "succeeded"]
    assert [(row.epoch, row.token, row.worker) for row in rows] == [(1, n, worker) for n in (1, 2, 3, 4)]
    assert (rows[0].started_at, rows[0].ended_at) == (started, started + SECOND_US)
    assert json.loads(rows[0].error or "")["message"] == "flaky"
    assert [row.error for row in rows[1:]] == [None, None, None]


async def test_one_lost_lease_in_a_batch_is_lost_alone(store: Store) -> None:
    worker = await store.worker()
    leases = [await store.claimed(worker) for _ in range(5)]
    outcomes: list[Ends] = [Done(1), Fail(), TryAgain(after="1m"), Snooze("0s"), Cancel()]
    endings = [store.ending(lease, outcome) for lease, outcome in zip(leases, outcomes, strict=True)]
    endings[1] = endings[1]._replace(token=7)

    answer = await store.do(complete, endings)

    assert {ended.seq for ended in answer} == {lease.seq for lease in leases} - {leases[1].seq}
    assert [await store.state(lease.id) for lease in leases] == [
        State.SUCCEEDED,
        State.RUNNING,
        State.SCHEDULED,
        State.PENDING,
        State.CANCELLED,
    ]
    assert [len(await store.attempts(lease)) for lease in leases] == [1, 0, 1, 1, 1]


async def test_a_batch_of_hundreds_ends_together(store: Store) -> None:
    await store.do(enqueue, [store.job() for _ in range(300)], [])
    leases = await store.claim(await store.worker(), 300)
    answer = await store.do(complete, [store.ending(lease, Done(lease.seq)) for lease in leases])
    assert len(answer) == 300
    assert await store.query("select count(*) from holdfast.ended where cast(result as text) = cast(seq as text)") == [
        (300,)
    ]


OTHERS = [
    [Done(1), Done(), Done(), Done({"a": None})],
    [Done(), Fail("no"), TryAgain("5s"), Snooze("1s")],
    [TryAgain("5s", "first"), TryAgain("5s", "second"), Snooze("5s"), Fail("no")],
    [Done(), Done(), Done(), Done()],
    [Fail("no"), Fail("no"), Fail("no"), Fail("no")],
]


@pytest.mark.parametrize("outcomes", OTHERS, ids=["results", "mixed", "waits", "alike", "alike in failing"])
async def test_a_batch_ends_each_attempt_as_it_would_end_alone(store: Store, outcomes: list[Ends]) -> None:
    worker = await store.worker()
    stored: list[list[tuple[object, ...]]] = []
    for kind in ("together", "alone"):
        for _ in outcomes:
            await store.enqueue(kind)
        leases = await store.claim(worker, len(outcomes), kind=kind)
        endings = [store.ending(lease, outcome) for lease, outcome in zip(leases, outcomes, strict=True)]
        for batch in [endings] if kind == "together" else [[ending] for ending in endings]:
            assert len(await store.do(complete, batch)) == len(batch)
        rows = [await store.find(lease.id) for lease in leases]
        assert [row.state for row in rows] == [ending.state for ending in endings]
        stored.append(
            [(row.state, row.attempts, row.due_at, row.finished_at, row.result, row.error, row.token) for row in rows]
        )
    assert stored[0] == stored[1]


async def test_ending_twice_is_refused_and_recognised_as_a_repeat(store: Store) -> None:
    lease = await store.claimed()
    ending = store.ending(lease, Done(1))
    assert await store.do(complete, [ending])
    assert await store.do(complete, [ending]) == []
    assert await store.do(repeated, [ending]) == {lease.seq}
    assert len(await store.attempts(lease)) == 1


async def test_a_lost_lease_is_no_repeat(store: Store) -> None:
    lease = await store.claimed()
    await store.advance("61s")
    await store.expire()
    assert await store.do(repeated, [store.ending(lease, Done())]) == set()


async def test_another_outcome_under_the_same_token_is_no_repeat(store: Store) -> None:
    lease = await store.claimed()
    await store.end(lease, TryAgain(after="0s"))
    assert await store.do(repeated, [store.ending(lease, Done())]) == set()
    assert await store.do(repeated, [store.ending(lease, TryAgain())]) == {lease.seq}


@pytest.mark.parametrize("result", [object(), {"when": math.nan}, b"bytes", "a\x00b", "\ud800", {1, 2}, "x" * 101])
async def test_a_result_that_cannot_be_stored_is_refused_before_anything_is_written(
    make_store: MakeStore, result: object
) -> None:
    store = await make_store(result_cap=100)
    lease = await store.claimed()
    with pytest.raises(BadPayload, match="the result of work"):
        await store.end(lease, Done(result))
    assert await store.end(lease, Fail("its result cannot be stored"))


async def test_an_error_is_cut_to_its_cap_and_made_storable(make_store: MakeStore) -> None:
    store = await make_store(error_cap=20)
    lease = await store.claimed()
    await store.end(lease, Fail("\x00\ud800" + "é" * 100))
    message = json.loads((await store.find(lease.id)).error or "")["message"]
    assert message.startswith("\N{REPLACEMENT CHARACTER}?éé")
    assert message.endswith("é…")
    assert len(message.encode()) <= 20 + len("…".encode())


@pytest.mark.parametrize("outcome", [Done(1), TryAgain(), Fail("broke"), Snooze("1h"), Discard(), Cancel("my own")])
async def test_a_cancel_that_was_accepted_meanwhile_wins(store: Store, outcome: Ends) -> None:
    lease = await store.claimed()
    await store.do(cancel, lease.id, reason="changed my mind")
    (answer,) = await store.end(lease, outcome)
    row = await store.find(lease.id)
    assert answer.state == row.state == State.CANCELLED
    assert (row.result, row.due_at, row.finished_at) == (None, None, store.clock.us)
    assert error_of(row) == ("cancelled", "changed my mind")
    assert [attempt.outcome for attempt in await store.attempts(lease)] == ["cancelled"]


async def test_an_attempt_keeps_its_own_error_under_a_cancel_that_was_accepted(store: Store) -> None:
    lease = await store.claimed()
    await store.do(cancel, lease.id, reason="changed my mind")
    await store.end(lease, Fail("disk full"))
    (attempt,) = await store.attempts(lease)
    assert (attempt.outcome, attempt.token, attempt.worker) == ("cancelled", lease.token, lease.worker)
    assert json.loads(attempt.error or "")["message"] == "disk full"
    assert error_of(await store.find(lease.id)) == ("cancelled", "changed my mind")
    assert await store.do(repeated, [store.ending(lease, Cancel())._replace(outcome="cancelled")]) == {lease.seq}


async def test_a_cancelled_job_says_so_whatever_failed_before(store: Store) -> None:
    worker = await store.worker()
    lease = await store.claimed(worker)
    await store.end(lease, TryAgain(after="0s", error="flaky"))
    (lease,) = await store.claim(worker)
    await store.do(cancel, lease.id, reason="changed my mind")
    await store.complete(lease, release(lease))
    row = await store.find(lease.id)
    assert (row.state, error_of(row)) == (State.CANCELLED, ("cancelled", "changed my mind"))


async def test_success_clears_the_error_of_an_earlier_attempt(store: Store) -> None:
    lease = await store.claimed()
    await store.end(lease, TryAgain(after="0s", error="flaky"))
    (again,) = await store.claim(lease.worker)
    await store.end(again, Done())
    row = await store.find(lease.id)
    assert (row.state, row.attempts, row.error) == (State.SUCCEEDED, 2, None)


async def test_no_endings_are_nothing_to_do(store: Store) -> None:
    assert await store.do(complete, []) == []
    assert await store.do(complete_and_settle, [], []) == []
