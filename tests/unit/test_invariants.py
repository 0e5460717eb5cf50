"""Each invariant can fail: a good history passes, and every bad one below breaks the rule it is named for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.support.invariants import check, check_changes, check_swept, check_untouched, check_whole
from tests.support.places import PLACES, check_places
from tests.support.promises import PROMISES, Broken
from tests.support.snapshots import Row, Snapshot, differences, snapshot

NOW = 1_000
TTL = 60
CEILING = 100

Tables = Mapping[str, list[Row]]


def job(**changes: Any) -> Row:
    pending: dict[str, Any] = {
        "seq": 1,
        "id": "j1",
        "kind": "work",
        "queue": "default",
        "route": 7,
        "tenant": "",
        "state": "pending",
        "priority": 100,
        "slot": 0,
        "gate": None,
        "epoch": 0,
        "token": 0,
        "worker": None,
        "lease_until": None,
        "claimed_at": None,
        "attempts": 0,
        "max_attempts": 3,
        "rescues": 0,
        "max_rescues": 1,
        "timeout_us": None,
        "due_at": None,
        "deadline_at": None,
        "created_at": 900,
        "finished_at": None,
        "cancel_requested_at": None,
        "parent": None,
        "open_children": 0,
        "channel": None,
        "retry_of": None,
        "lane": None,
        "cost": 1,
        "unique_key": None,
        "unique_scope": None,
        "payload": "{}",
        "metadata": "{}",
        "progress": None,
        "result": None,
        "error": None,
    }
    return pending | changes


def running(**changes: Any) -> Row:
    lease = {"epoch": 1, "token": 1, "worker": 5, "claimed_at": NOW, "lease_until": NOW + TTL}
    return job(**{"state": "running", **lease, **changes})


def ended(state: str, **changes: Any) -> Row:
    return job(**{"state": state, "epoch": 1, "token": 1, "claimed_at": NOW, "finished_at": NOW, **changes})


def attempt(outcome: str, **changes: Any) -> Row:
    plain = {"job": 1, "epoch": 1, "token": 1, "worker": 5, "outcome": outcome, "started_at": NOW, "ended_at": NOW}
    return plain | {"error": None} | changes


def duty(**changes: Any) -> Row:
    return {"name": "cleanup", "term": 3, "holder": 5, "held_until": NOW + 30} | changes


def worker(**changes: Any) -> Row:
    return {"seq": 5, "incarnation": "i5", "id": "w5", "status": "active", "heartbeat_at": NOW} | changes


def key(**changes: Any) -> Row:
    return {"tenant": "", "key": "k", "digest": "d", "job": "j1", "created_at": NOW} | changes


def signal(**changes: Any) -> Row:
    return {"seq": 1, "id": "s1", "channel": "reply", "payload": '"yes"', "sent_at": NOW} | changes


def step(**changes: Any) -> Row:
    return {"job": 1, "name": "one", "result": '"yes"', "signal": None, "stored_at": NOW} | changes


def cluster(**changes: Any) -> Row:
    return {"one": 1, "epoch": 1, "identity": "home"} | changes


def judge(before: Tables, after: Tables, *, now: int = NOW, gone: frozenset[int] = frozenset()) -> None:
    check(snapshot(now, before), snapshot(now, after), ceiling_us=CEILING, gone=gone)


GOOD: dict[str, tuple[Tables, Tables]] = {
    "a job is enqueued": ({}, {"job": [job()]}),
    "a job is claimed": ({"job": [job()]}, {"job": [running()]}),
    "a lease is renewed": (
        {"job": [running(claimed_at=NOW - 50, lease_until=NOW + 10)]},
        {"job": [running(claimed_at=NOW - 50, lease_until=NOW + 50)]},
    ),
    "a job succeeds": (
        {"job": [running()]},
        {"job": [ended("succeeded", attempts=1, result="1")], "attempt": [attempt("succeeded")]},
    ),
    "a job is retried": (
        {"job": [running()]},
        {"job": [ended("scheduled", finished_at=None, due_at=NOW + 9, attempts=1)], "attempt": [attempt("retried")]},
    ),
    "a lost lease is rescued": (
        {"job": [running(lease_until=NOW)]},
        {"job": [ended("pending", finished_at=None, rescues=1)], "attempt": [attempt("lost")]},
    ),
    "a lost lease is the last": (
        {"job": [running(lease_until=NOW, rescues=1)]},
        {"job": [ended("failed", rescues=1, attempts=1)], "attempt": [attempt("lost")]},
    ),
    "a waiting job is cancelled": (
        {"job": [job(state="waiting", channel="reply")]},
        {"job": [job(state="cancelled", token=1, finished_at=NOW, cancel_requested_at=NOW)]},
    ),
    "the last child ends and its parent wakes": (
        {"job": [job(state="waiting", open_children=1), running(seq=2, parent=1)]},
        {
            "job": [job(), ended("failed", seq=2, parent=1, attempts=1)],
            "attempt": [attempt("failed", job=2)],
        },
    ),
    "a child outlives its parent": (
        {"job": [ended("succeeded", open_children=1), running(seq=2, parent=1)]},
        {
            "job": [ended("succeeded"), ended("succeeded", seq=2, parent=1, attempts=1)],
            "attempt": [attempt("succeeded", job=2)],
        },
    ),
    "a signal wakes": ({"job": [job(state="waiting", channel="reply")]}, {"job": [job()], "signal": [signal()]}),
    "a signal is taken": (
        {"job": [running()], "signal": [signal()]},
        {"job": [running()], "step": [step(signal="s1")]},
    ),
    "a duty changes hands": ({"duty": [duty(held_until=NOW)]}, {"duty": [duty(term=4, holder=6)]}),
    "a duty of a lost worker changes hands": (
        {"duty": [duty()], "worker": [worker(status="lost")]},
        {"duty": [duty(term=4, holder=6)], "worker": [worker(status="lost")]},
    ),
    "a duty is released": ({"duty": [duty()]}, {"duty": [duty(holder=None, held_until=0)]}),
    "a worker is lost": ({"worker": [worker()]}, {"worker": [worker(status="lost")]}),
    "an ended job is pruned": ({"job": [ended("failed")], "attempt": [attempt("failed")], "step": [step()]}, {}),
    "the epoch rises": ({"cluster": [cluster()]}, {"cluster": [cluster(epoch=2)]}),
}

BAD: dict[str, tuple[str, Tables, Tables]] = {
    "a finished job changes": ("I2", {"job": [ended("succeeded")]}, {"job": [ended("succeeded", error="late")]}),
    "a finished job runs again": ("I2", {"job": [ended("failed")]}, {"job": [ended("pending", finished_at=None)]}),
    "an unfinished job vanishes": ("I2", {"job": [job()]}, {}),
    "a pending job succeeds unclaimed": (
        "I3",
        {"job": [job()]},
        {"job": [job(state="succeeded", token=1, finished_at=NOW)]},
    ),
    "a job begins as running": ("I3", {}, {"job": [running()]}),
    "a payload changes": ("I3", {"job": [job()]}, {"job": [job(payload="[]")]}),
    "a pending job changes beside its gate": ("I3", {"job": [job()]}, {"job": [job(progress="1")]}),
    "a released job fails": (
        "I3",
        {"job": [running()]},
        {"job": [ended("failed")], "attempt": [attempt("released")]},
    ),
    "a token repeats": ("I4", {"job": [job(epoch=1, token=1)]}, {"job": [running()]}),
    "a token falls": ("I4", {"job": [job(epoch=1, token=4)]}, {"job": [running(epoch=1, token=3)]}),
    "an epoch of a token falls": ("I4", {"job": [job(epoch=2, token=4)]}, {"job": [running(epoch=1, token=5)]}),
    "a counter begins anew with the epoch": (
        "I4",
        {"job": [job(epoch=1, token=4)]},
        {"job": [running(epoch=2, token=1)]},
    ),
    "a wake takes a token": ("I4", {"job": [job(state="scheduled", due_at=NOW)]}, {"job": [job(token=1)]}),
    "the epoch falls": ("I4", {"cluster": [cluster(epoch=2)]}, {"cluster": [cluster(epoch=1)]}),
    "a result is written without a lease": (
        "I5",
        {"job": [job(state="scheduled", due_at=NOW)]},
        {"job": [job(result="1")]},
    ),
    "a job is cancelled under the old token": (
        "I5",
        {"job": [job()]},
        {"job": [job(state="cancelled", finished_at=NOW, cancel_requested_at=NOW)]},
    ),
    "a step of a job that does not run": ("I5", {"job": [job()]}, {"job": [job()], "step": [step()]}),
    "a stored step changes": (
        "I5",
        {"job": [running()], "step": [step()]},
        {"job": [running()], "step": [step(result="2")]},
    ),
    "a running job is claimed": ("I6", {"job": [running()]}, {"job": [running(token=2, worker=6)]}),
    "a lease is rescued before it ends": (
        "I6",
        {"job": [running()]},
        {"job": [ended("pending", finished_at=None, rescues=1)], "attempt": [attempt("lost")]},
    ),
    "a lease shrinks": ("I7", {"job": [running()]}, {"job": [running(lease_until=NOW + 1)]}),
    "a lease is revived": ("I7", {"job": [running(lease_until=NOW)]}, {"job": [running()]}),
    "a lease grows beyond its ceiling": ("I7", {"job": [running()]}, {"job": [running(lease_until=NOW + CEILING + 1)]}),
    "a claim ends without an attempt": ("I8", {"job": [running()]}, {"job": [ended("succeeded", attempts=1)]}),
    "an attempt of nothing": ("I8", {}, {"attempt": [attempt("succeeded")]}),
    "an attempt is recorded for another worker": (
        "I8",
        {"job": [running()]},
        {"job": [ended("succeeded", attempts=1)], "attempt": [attempt("succeeded", worker=6)]},
    ),
    "a recorded attempt changes": ("I8", {"attempt": [attempt("failed")]}, {"attempt": [attempt("succeeded")]}),
    "an outcome is not counted": (
        "I8",
        {"job": [running()]},
        {"job": [ended("succeeded")], "attempt": [attempt("succeeded")]},
    ),
    "the loss that ends a job is a rescue too": (
        "I8",
        {"job": [running(lease_until=NOW)]},
        {"job": [ended("failed", rescues=1)], "attempt": [attempt("lost")]},
    ),
    "a rescue is not counted": (
        "I8",
        {"job": [running(lease_until=NOW)]},
        {"job": [ended("pending", finished_at=None)], "attempt": [attempt("lost")]},
    ),
    "more attempts than allowed": (
        "I8",
        {"job": [running(attempts=3)]},
        {"job": [ended("failed", attempts=4)], "attempt": [attempt("failed")]},
    ),
    "a job goes on at its last attempt": (
        "I9",
        {"job": [running(attempts=2)]},
        {"job": [ended("pending", finished_at=None, attempts=3)], "attempt": [attempt("retried")]},
    ),
    "a job goes on beyond its rescues": (
        "I8",
        {"job": [running(lease_until=NOW, rescues=1)]},
        {"job": [ended("pending", finished_at=None, rescues=2)], "attempt": [attempt("lost")]},
    ),
    "a term falls": ("I16", {"duty": [duty()]}, {"duty": [duty(term=2)]}),
    "a term has two holders": ("I16", {"duty": [duty(held_until=NOW)]}, {"duty": [duty(holder=6)]}),
    "a duty is taken too early": (
        "I16",
        {"duty": [duty()], "worker": [worker()]},
        {"duty": [duty(term=4, holder=6)], "worker": [worker()]},
    ),
    "a term is revived": ("I16", {"duty": [duty(held_until=NOW)]}, {"duty": [duty()]}),
    "a duty vanishes": ("I16", {"duty": [duty()]}, {}),
    "a child's end is not counted": (
        "I17",
        {"job": [job(open_children=1), running(seq=2, parent=1)]},
        {
            "job": [job(open_children=1), ended("succeeded", seq=2, parent=1, attempts=1)],
            "attempt": [attempt("succeeded", job=2)],
        },
    ),
    "a child is born uncounted": ("I17", {"job": [running()]}, {"job": [running(), job(seq=2, parent=1)]}),
    "a key changes its job": ("I19", {"idempotency": [key()]}, {"idempotency": [key(job="j2")]}),
    "a timer fires early": ("I21", {"job": [job(state="scheduled", due_at=NOW + 1)]}, {"job": [job()]}),
    "a parent wakes before its last child ends": (
        "I21",
        {"job": [job(state="waiting", open_children=1)]},
        {"job": [job(open_children=1)]},
    ),
    "a signal on another channel wakes": (
        "I21",
        {"job": [job(state="waiting", channel="approval")]},
        {"job": [job()], "signal": [signal()]},
    ),
    "a deadline falls early": (
        "I21",
        {"job": [job(deadline_at=NOW + 1)]},
        {"job": [job(deadline_at=NOW + 1, state="failed", token=1, finished_at=NOW)]},
    ),
    "a signal vanishes untaken": ("P3", {"signal": [signal()]}, {}),
    "a signal is stored as another": (
        "P3",
        {"job": [running()], "signal": [signal()]},
        {"job": [running()], "step": [step(signal="s2")]},
    ),
    "a lost worker comes back": ("P6", {"worker": [worker(status="lost")]}, {"worker": [worker()]}),
    "a live worker vanishes": ("P6", {"worker": [worker()]}, {}),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_passes(name: str) -> None:
    judge(*GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_breaks_its_invariant(name: str) -> None:
    number, before, after = BAD[name]
    with pytest.raises(Broken) as caught:
        judge(before, after)
    assert caught.value.number == number
    assert str(caught.value).startswith(f"{number} ({PROMISES[number]})")


def test_every_promise_is_broken_by_some_history() -> None:
    broken = {number for number, _, _ in BAD.values()} | {number for number, _ in PLACED_BADLY.values()}
    assert broken == set(PROMISES)


def test_a_worker_that_is_gone_loses_its_lease_and_its_duty_early() -> None:
    lost = {"job": [ended("pending", finished_at=None, rescues=1)], "attempt": [attempt("lost")]}
    judge({"job": [running()]}, lost, gone=frozenset({5}))
    taken = {"duty": [duty(term=4, holder=6)], "worker": [worker()]}
    judge({"duty": [duty()], "worker": [worker()]}, taken, gone=frozenset({5}))


def test_changed_rows_alone_are_enough() -> None:
    """What the simulator does: it sees the rows a commit changed, and no others."""
    number, old, new = BAD["a child's end is not counted"]
    changes = [change for change in differences(snapshot(NOW, old), snapshot(NOW, new)) if change.key != 1]
    with pytest.raises(Broken, match=number):
        check_changes(changes, now=NOW)


def test_a_refused_write_that_changed_something_is_found() -> None:
    before = snapshot(NOW, {"job": [job()], "step": []})
    check_untouched(before, snapshot(NOW + 1, {"job": [job()]}))
    with pytest.raises(Broken, match="I5"):
        check_untouched(before, snapshot(NOW, {"job": [job()], "step": [step()]}))


def whole(**tables: list[Row]) -> Snapshot:
    """A snapshot in which each job and attempt stands where it belongs."""
    jobs = tables.get("job", [])
    parts: dict[str, list[Row]] = {place: [] for place in PLACES}
    for each in jobs:
        parts[place_of(each)].append(standing(each))
    ends = {(row["seq"], row["epoch"], row["token"]) for row in parts["ended"]}
    tried = [row for row in tables.get("attempt", []) if (row["job"], row["epoch"], row["token"]) not in ends]
    keys: list[Row] = [
        {"scope": j["unique_scope"], "key": j["unique_key"], "job": j["id"]} for j in jobs if j["unique_key"]
    ]
    known: dict[str, list[Row]] = {
        "cluster": [cluster()],
        "asked": jobs,
        "tried": tried,
        "unique_key": keys,
        **parts,
        **tables,
    }
    return snapshot(NOW, known)


def place_of(row: Row) -> str:
    if row["state"] == "pending":
        return "later" if row["gate"] else "ready"
    return {"running": "lease", "scheduled": "later", "waiting": "later"}.get(row["state"], "ended")


def standing(row: Row, **changes: Any) -> Row:
    """The row that a job has where it stands; it may have columns that the table has not."""
    cost = None if row["lane"] is None else row["cost"]
    tenant = row["tenant"] if row["slot"] else None
    outcome = row["state"] if row["finished_at"] and row["worker"] is None and row["epoch"] else None
    state = "blocked" if row["gate"] else row["state"]
    return {**row, "cost": cost, "tenant": tenant, "outcome": outcome, "state": state, **changes}


WHOLE_BAD: dict[str, tuple[str, Snapshot]] = {
    "a counter is off": ("I17", whole(job=[job(open_children=2), job(seq=2, id="j2", parent=1)])),
    "a grandchild of a cancelled job goes on": (
        "I17",
        whole(
            job=[
                ended("cancelled", cancel_requested_at=NOW),
                ended("succeeded", seq=2, parent=1, open_children=1, attempts=1),
                job(seq=3, parent=2),
            ],
            attempt=[attempt("cancelled"), attempt("succeeded", job=2)],
        ),
    ),
    "a token is from an epoch to come": ("I4", whole(job=[job(epoch=2, token=1)])),
    "rescues are not the lost leases": ("I8", whole(job=[job(rescues=1)])),
    "attempts are not the counted outcomes": ("I8", whole(job=[job(attempts=1)], attempt=[attempt("snoozed")])),
    "a taken signal is back": ("P3", whole(step=[step(signal="s1")], signal=[signal()])),
    "two keys name one job": ("I19", whole(idempotency=[key(), key(key="other")])),
}


def test_a_good_snapshot_passes() -> None:
    check_whole(
        whole(
            job=[
                job(open_children=1, attempts=1, cancel_requested_at=NOW),
                job(seq=2, id="j2", parent=1),
                running(seq=3, cancel_requested_at=NOW, open_children=1),
                running(seq=4, parent=3, cancel_requested_at=NOW),
            ],
            attempt=[attempt("retried"), attempt("parked", token=2)],
            idempotency=[key()],
            cancellation=[{"job": 1, "reason": "no use", "requested_at": NOW}],
        )
    )


@pytest.mark.parametrize("name", WHOLE_BAD)
def test_a_bad_snapshot_is_found(name: str) -> None:
    number, bad = WHOLE_BAD[name]
    with pytest.raises(Broken, match=f"^{number} "):
        check_whole(bad)


PLACED_BADLY: dict[str, tuple[str, Snapshot]] = {
    "a claim left the row where it was": ("I26", whole(job=[running()], ready=[standing(job())])),
    "a job stands nowhere": ("I26", whole(job=[job()], ready=[])),
    "two rows make one job ready twice": (
        "I26",
        whole(job=[job()], ready=[standing(job()), standing(job(priority=1))]),
    ),
    "a row of a job that is not there": ("I26", whole(ended=[standing(ended("failed"))])),
    "a job is shown as what it is not": ("I26", whole(job=[job()], ready=[], ended=[standing(ended("failed"))])),
    "a counter of a job that is not there": ("I26", whole(family=[{"job": 1, "open_children": 0}])),
    "an attempt stands beside the end of its job": (
        "I27",
        whole(job=[ended("succeeded", attempts=1)], attempt=[attempt("succeeded")], tried=[attempt("succeeded")]),
    ),
    "an attempt is recorded while it runs": ("I27", whole(job=[running()], tried=[attempt("lost")])),
    "a row has another priority than its job": ("I28", whole(job=[job()], ready=[standing(job(), priority=1)])),
    "a row forgot its deadline": (
        "I28",
        whole(job=[job(deadline_at=NOW + 9)], ready=[standing(job(), deadline_at=None)]),
    ),
    "a row names a tenant where there are no turns": ("I28", whole(job=[job()], ready=[standing(job(), tenant="")])),
    "a row in a lane forgot its cost": (
        "I28",
        whole(job=[job(lane="x", gate="x", cost=2)], later=[standing(job(lane="x", gate="x"), cost=None)]),
    ),
    "a lease has another parent": ("I28", whole(job=[running()], lease=[standing(running(), parent=9)])),
    "two jobs hold one key": (
        "I29",
        whole(job=[job(seq=n, id=f"j{n}", unique_key="k", unique_scope="live") for n in (1, 2)]),
    ),
    "a key forgot who holds it": ("I29", whole(job=[job(unique_key="k", unique_scope="window")], unique_key=[])),
}


def test_keys_may_name_who_no_longer_holds_them() -> None:
    claimed = running(unique_key="k", unique_scope="pending")
    check_places(whole(job=[claimed, ended("failed", seq=2, id="j2", unique_key="k", unique_scope="live")]))


@pytest.mark.parametrize("name", PLACED_BADLY)
def test_a_row_in_the_wrong_place_is_found(name: str) -> None:
    number, bad = PLACED_BADLY[name]
    with pytest.raises(Broken) as caught:
        check_places(bad)
    assert caught.value.number == number


LEFT_OVER: dict[str, Callable[[], Row]] = {
    "a lease that ran out": lambda: running(lease_until=NOW),
    "a deadline that passed": lambda: job(deadline_at=NOW),
}


@pytest.mark.parametrize("name", LEFT_OVER)
def test_what_a_sweep_left_over_is_found(name: str) -> None:
    check_swept(whole(job=[running(), job(seq=2, deadline_at=NOW + 1), ended("failed", seq=3, deadline_at=NOW)]))
    with pytest.raises(Broken, match="I9"):
        check_swept(whole(job=[LEFT_OVER[name]()]))
