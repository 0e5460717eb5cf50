"""Every (state, verb) pair: what the table allows happens, and everything else leaves the row as it was."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from holdfast.errors import LeaseLost, NotFound
from holdfast.kernel.cancel import cancel
from holdfast.kernel.complete import release
from holdfast.kernel.enqueue import enqueue_unique
from holdfast.kernel.ids import JobId, new_id
from holdfast.kernel.leases import renew
from holdfast.kernel.migrate import migrations
from holdfast.kernel.retention import BEGIN, prune
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import Lease, Resolution, Suspension
from holdfast.kernel.sql import Dialect
from holdfast.kernel.states import JOB, TERMINAL, State, Verb
from holdfast.kernel.waiting import overdue, park, resolve, signal, suspend, wake
from holdfast.outcomes import Cancel, Done, Fail, Snooze, TryAgain
from tests.support.stores import TTL_US, Ends, Store

PAIRS = [(state, verb) for state in State for verb in Verb]
DAY_US = 86_400_000_000
HOUR_US = 3_600_000_000

UNIQUE: dict[str, Any] = {"unique_key": "one", "unique_scope": "live"}

Apply = Callable[[Store, Lease], Awaitable[bool]]


async def end(store: Store, lease: Lease, outcome: Ends) -> bool:
    return bool(await store.end(lease, outcome))


async def apply_release(store: Store, lease: Lease) -> bool:
    return bool(await store.complete(lease, release(lease)))


async def apply_replace(store: Store, lease: Lease, delay_us: int | None = None) -> bool:
    newer = store.job(payload='"newer"', delay_us=delay_us, replaces=True, **UNIQUE)
    await store.do(enqueue_unique, newer, [route_for("default", "work")])
    return (await store.find(lease.id)).payload == '"newer"'


async def apply_claim(store: Store, _: Lease) -> bool:
    return bool(await store.claim(await store.worker()))


async def apply_renew(store: Store, lease: Lease) -> bool:
    renewed, lost = await store.do(renew, [lease.held], ttl_us=2 * TTL_US, ceiling_us=DAY_US)
    assert lost == ([] if renewed else [lease.held])
    return bool(renewed)


async def apply_park(store: Store, lease: Lease) -> bool:
    try:
        await store.do(park, lease, channel="ready", timeout_us=HOUR_US)
    except LeaseLost:
        return False
    return True


async def apply_suspend(store: Store, lease: Lease) -> bool:
    return bool(await store.do(suspend, [Suspension(lease.id, "ready")]))


async def apply_resolve(store: Store, lease: Lease, **how: Any) -> bool:
    resolution = Resolution(lease.seq, "ready", **{"state": State.SUCCEEDED, "result": "1", **how})
    return bool(await store.do(resolve, [resolution]))


async def apply_signal(store: Store, _: Lease) -> bool:
    return bool(await store.do(signal, new_id(store.ports), "ready", "1"))


async def apply_wake(store: Store, _: Lease) -> bool:
    await store.advance("2h")
    return await store.do(wake, limit=10) > 0


async def apply_cancel(store: Store, lease: Lease) -> bool:
    before = await store.state(lease.id)
    after = await store.do(cancel, lease.id, reason="no longer wanted")
    return after is State.RUNNING or after is not before


async def apply_expire(store: Store, _: Lease) -> bool:
    await store.advance("2m")
    return bool(await store.expire())


async def apply_overdue(store: Store, _: Lease) -> bool:
    await store.advance("2d")
    return bool(await store.do(overdue, limit=10))


async def apply_prune(store: Store, _: Lease) -> bool:
    await store.advance("8d")
    week_ago = store.clock.us - 7 * DAY_US
    return (await store.do(prune, "default", after=BEGIN, before=week_ago, look=10)).jobs > 0


# Each applies its verb under the best conditions the verb could wish for, and says whether the store obeyed.
OPERATIONS: dict[Verb, Apply] = {
    Verb.REPLACE: apply_replace,
    Verb.CLAIM: apply_claim,
    Verb.RENEW: apply_renew,
    Verb.COMPLETE: partial(end, outcome=Done(1)),
    Verb.RETRY: partial(end, outcome=TryAgain()),
    Verb.FAIL: partial(end, outcome=Fail()),
    Verb.SNOOZE: partial(end, outcome=Snooze("1h")),
    Verb.RELEASE: apply_release,
    Verb.PARK: apply_park,
    Verb.SUSPEND: apply_suspend,
    Verb.RESOLVE: apply_resolve,
    Verb.SIGNAL: apply_signal,
    Verb.WAKE: apply_wake,
    Verb.CANCEL: apply_cancel,
    Verb.EXPIRE: apply_expire,
    Verb.OVERDUE: apply_overdue,
    Verb.PRUNE: apply_prune,
}

PREPARATIONS: dict[State, Apply] = {
    State.SCHEDULED: partial(end, outcome=Snooze("1h")),
    State.PENDING: apply_release,
    State.WAITING: apply_park,
    State.SUCCEEDED: partial(end, outcome=Done()),
    State.FAILED: partial(end, outcome=Fail()),
    State.CANCELLED: partial(end, outcome=Cancel()),
}


async def job_in(store: Store, state: State) -> Lease:
    """A job in that state, by way of a lease that its worker still remembers."""
    lease = await store.claimed(deadline_us=DAY_US, **UNIQUE)
    if state is not State.RUNNING:
        assert await PREPARATIONS[state](store, lease)
    assert await store.state(lease.id) is state
    return lease


async def unclaimed(store: Store, state: State) -> Lease:
    """A job that nobody has claimed, as a replace wishes it, under a lease that was never given."""
    lease = await store.claimed()
    id = await store.enqueue(delay_us=HOUR_US if state is State.SCHEDULED else None, **UNIQUE)
    row = await store.find(id)
    assert row.state == state
    return lease._replace(id=id, seq=row.seq)


@pytest.mark.sample(60)
@pytest.mark.parametrize(("source", "verb"), PAIRS, ids=[f"{state}-{verb}" for state, verb in PAIRS])
async def test_a_verb_does_what_the_table_says_or_nothing(store: Store, source: State, verb: Verb) -> None:
    never_claimed = verb is Verb.REPLACE and JOB.move(source, verb)
    lease = await (unclaimed if never_claimed else job_in)(store, source)
    row, attempts = await store.find(lease.id), await store.attempts(lease)

    obeyed = await OPERATIONS[verb](store, lease)

    allowed = JOB.move(source, verb)
    assert obeyed == (allowed is not None)
    if allowed is not None and not allowed.targets:
        with pytest.raises(NotFound):
            await store.find(lease.id)
        return
    after = await store.find(lease.id)
    if allowed is None:
        assert after == row
        assert await store.attempts(lease) == attempts
    else:
        assert after != row
        assert after.state in allowed.targets


@pytest.mark.parametrize("source", [t.source for t in JOB.moves if t.verb is Verb.REPLACE])
async def test_what_was_claimed_once_is_not_replaced(store: Store, source: State) -> None:
    lease = await job_in(store, source)
    row = await store.find(lease.id)
    assert not await apply_replace(store, lease)
    assert await store.find(lease.id) == row


async def lapse(store: Store, **changes: int) -> Lease:
    lease = await store.claimed(**changes)
    await apply_expire(store, lease)
    return lease


async def lapse_twice(store: Store) -> Lease:
    lease = await lapse(store)
    await store.claim(lease.worker)
    await apply_expire(store, lease)
    return lease


async def cancel_then(store: Store, then: Apply | None = None) -> Lease:
    lease = await store.claimed()
    await apply_cancel(store, lease)
    if then is not None:
        await then(store, lease)
    return lease


async def ended(store: Store, outcome: Ends) -> Lease:
    lease = await store.claimed()
    await store.end(lease, outcome)
    return lease


async def parked(store: Store, *, signalled: bool) -> Lease:
    lease = await store.claimed()
    if signalled:
        await apply_signal(store, lease)
    await apply_park(store, lease)
    return lease


async def resolved(store: Store, **how: Any) -> Lease:
    lease = await store.claimed()
    await apply_park(store, lease)
    assert await apply_resolve(store, lease, **how)
    return lease


async def replaced(store: Store, source: State, *, delay_us: int | None) -> Lease:
    lease = await unclaimed(store, source)
    assert await apply_replace(store, lease, delay_us)
    return lease


# Where the table names several targets, the way to each of them.
WAYS: dict[tuple[State, Verb, State], Callable[[Store], Awaitable[Lease]]] = {
    (State.SCHEDULED, Verb.REPLACE, State.SCHEDULED): partial(replaced, source=State.SCHEDULED, delay_us=DAY_US),
    (State.SCHEDULED, Verb.REPLACE, State.PENDING): partial(replaced, source=State.SCHEDULED, delay_us=None),
    (State.PENDING, Verb.REPLACE, State.PENDING): partial(replaced, source=State.PENDING, delay_us=None),
    (State.PENDING, Verb.REPLACE, State.SCHEDULED): partial(replaced, source=State.PENDING, delay_us=DAY_US),
    (State.RUNNING, Verb.RETRY, State.PENDING): partial(ended, outcome=TryAgain(after="0s")),
    (State.RUNNING, Verb.RETRY, State.SCHEDULED): partial(ended, outcome=TryAgain(after="1s")),
    (State.RUNNING, Verb.SNOOZE, State.PENDING): partial(ended, outcome=Snooze("0s")),
    (State.RUNNING, Verb.SNOOZE, State.SCHEDULED): partial(ended, outcome=Snooze("1s")),
    (State.RUNNING, Verb.PARK, State.WAITING): partial(parked, signalled=False),
    (State.RUNNING, Verb.PARK, State.PENDING): partial(parked, signalled=True),
    (State.WAITING, Verb.RESOLVE, State.PENDING): partial(resolved, state="pending", result=None),
    (State.WAITING, Verb.RESOLVE, State.WAITING): partial(resolved, state="waiting", children=1, result=None),
    (State.WAITING, Verb.RESOLVE, State.SUCCEEDED): resolved,
    (State.WAITING, Verb.RESOLVE, State.FAILED): partial(resolved, state="failed", result=None, error='{"type":"x"}'),
    (State.RUNNING, Verb.CANCEL, State.RUNNING): cancel_then,
    (State.RUNNING, Verb.CANCEL, State.CANCELLED): partial(cancel_then, then=OPERATIONS[Verb.COMPLETE]),
    (State.RUNNING, Verb.EXPIRE, State.PENDING): lapse,
    (State.RUNNING, Verb.EXPIRE, State.SCHEDULED): lapse_twice,
    (State.RUNNING, Verb.EXPIRE, State.FAILED): partial(lapse, max_rescues=0),
    (State.RUNNING, Verb.EXPIRE, State.CANCELLED): partial(cancel_then, then=apply_expire),
}


@pytest.mark.sample(20)
@pytest.mark.parametrize("way", WAYS, ids="-".join)
async def test_every_target_of_the_table_is_reached(store: Store, way: tuple[State, Verb, State]) -> None:
    lease = await WAYS[way](store)
    assert await store.state(JobId(lease.id)) is way[2]


def test_the_ways_are_those_of_the_table() -> None:
    forked = [t for t in JOB.moves if len(t.targets) > 1]
    assert set(WAYS) == {(t.source, t.verb, target) for t in forked for target in t.targets}


def test_every_verb_has_its_operation() -> None:
    assert set(OPERATIONS) == set(Verb)


def test_every_verb_has_its_place_in_the_table() -> None:
    assert {t.verb for t in JOB.moves} == set(Verb)


def test_terminal_states_are_the_three_that_nothing_leaves() -> None:
    assert {State.SUCCEEDED, State.FAILED, State.CANCELLED} == TERMINAL
    assert {t.verb for t in JOB.moves if t.source in TERMINAL} == {Verb.PRUNE}


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_the_check_constraints_list_the_states_of_the_table(dialect: Dialect) -> None:
    """Those of jobs that are in `ready` and in `lease` are known by the table; what a lane blocks is pending."""
    text = migrations(dialect)[0].up
    assert _listed(text, r"ended_state check \(state in \(([^)]*)\)") == TERMINAL
    elsewhere = {*TERMINAL, State.PENDING, State.RUNNING}
    assert _listed(text, r"later_state check \(case state(.*?)else") == {*State, "blocked"} - elsewhere


def _listed(text: str, constraint: str) -> set[str]:
    match = re.search(rf"constraint {constraint}", text, re.DOTALL)
    assert match is not None
    return set(re.findall(r"'(\w+)'", match[1]))
