"""Why a job does not run: a sentence for each gate, and silence exactly when a claim would take it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import NotFound
from holdfast.kernel.cancel import cancel
from holdfast.kernel.claim import claim
from holdfast.kernel.complete import complete_and_settle
from holdfast.kernel.enqueue import enqueue, enqueue_unique
from holdfast.kernel.ids import JobId, new_id
from holdfast.kernel.lanes import claim_in_lanes, open_lanes
from holdfast.kernel.queues import pause_queue, resume_queue
from holdfast.kernel.routes import is_laned, route_for, serves
from holdfast.kernel.rows import Lease
from holdfast.kernel.waiting import park, wake
from holdfast.kernel.why import why
from holdfast.kernel.workers import list_routes
from holdfast.outcomes import Done, Fail, Snooze, TryAgain
from tests.support.lanes import block
from tests.support.stores import TTL_US, Store

UNLIMITED = 1_000
SECOND = 1_000_000


async def worker_for(store: Store, *capabilities: str, queues: tuple[str, ...] | None = None) -> tuple[int, str]:
    id = f"w-{new_id(store.ports)}"
    return await store.worker(id=id, capabilities=capabilities, queues=queues), id


async def said(store: Store, id: JobId) -> str:
    return "; ".join(reason.sentence for reason in await store.do(why, id))


async def test_nothing_is_said_of_a_job_that_a_worker_will_take(store: Store) -> None:
    await worker_for(store, "job:work")
    assert await said(store, await store.enqueue()) == ""


async def test_a_job_that_nobody_can_serve(store: Store) -> None:
    id = await store.enqueue()
    assert (
        await said(store, id) == "there is no live worker; the job needs one that serves queue 'default' with job:work"
    )
    await worker_for(store, "job:other")
    assert await said(store, id) == "none of the 1 live workers serves queue 'default' with job:work"
    _, name = await worker_for(store, "job:work", queues=("mail",))
    (reason,) = await store.do(why, id, worker=name)
    assert reason.sentence == f"worker '{name}' does not serve queue 'default' with job:work"


async def test_a_worker_that_has_been_silent_for_too_long_serves_nobody(store: Store) -> None:
    """Nobody may be left to declare it lost: then `why` is asked, and must not say that all is well."""
    worker, _ = await worker_for(store, "job:work")
    running, waiting = await store.enqueue(), await store.enqueue()
    await store.claim(worker, 1)
    await store.advance("1h")
    assert (await said(store, waiting)).startswith("there is no live worker; the job needs one")
    assert (await said(store, running)).endswith(": the next worker that looks takes it over")


async def test_each_state_has_its_sentence(store: Store) -> None:
    worker, name = await worker_for(store, "job:work")
    later = await store.enqueue(delay_us=90 * SECOND)
    assert (await said(store, later)).endswith(" UTC, in 1m30s")
    latest = await store.enqueue(delay_us=3_000_000 * 7 * 86_400 * SECOND)
    assert "a time after the year 9999" in await said(store, latest)
    for _ in range(5):
        await store.enqueue()
    running, parked, ended, retried, snoozed = await store.claim(worker, 5)
    assert (await said(store, running.id)).startswith(f"worker {name} on test has been running it since 20")
    await store.do(park, parked, channel="approval", timeout_us=SECOND)
    assert (await said(store, parked.id)).startswith("it waits for a signal on channel 'approval', until 20")
    await store.end(ended, Fail())
    (how, again) = await store.do(why, ended.id)
    assert how.sentence.startswith("it failed at 20")
    assert how.sentence.endswith(" UTC, after attempt 1 of 3: the handler gave up (processing_error)")
    assert again.sentence == f"`holdfast jobs retry {ended.id}` enqueues it again, as a new job"
    await store.end(retried, TryAgain(after="10s"))
    assert (await said(store, retried.id)).endswith("in 10s, after attempt 1 of 3: the handler asked for a retry")
    await store.end(snoozed, Snooze("10s", "the printer is out of paper"))
    assert (await said(store, snoozed.id)).endswith("in 10s: the printer is out of paper")
    await store.launch(running, 2)
    await store.do(park, running, channel=None, timeout_us=None)
    assert await said(store, running.id) == "it waits for 2 children to end"


async def test_a_paused_queue_says_since_when_and_why(store: Store) -> None:
    await worker_for(store, "job:work")
    id = await store.enqueue()
    await store.do(pause_queue, "default", reason="the printer is on fire")
    text = await said(store, id)
    assert text.startswith("queue 'default' was paused at 20")
    assert text.endswith("UTC: the printer is on fire")


async def test_a_lane_says_how_full_it_is_or_when_it_opens(store: Store) -> None:
    worker, _ = await worker_for(store, "job:work")
    route = route_for("default", "work", laned=True)
    full = [store.job(route=route.id, lane="few", concurrency=1) for _ in range(2)]
    slow = [store.job(route=route.id, lane="slow", interval_us=60 * SECOND) for _ in range(2)]
    await store.do(enqueue, [*full, *slow], [route])
    assert await said(store, full[1].id) == "other jobs come first in lane 'few', which has no room for all of them"
    await store.do(claim_in_lanes, worker, [route.id], UNLIMITED, TTL_US)
    assert await said(store, full[1].id) == "lane 'few' is full: 1 of 1 running"
    (reason,) = await store.do(why, slow[1].id)
    assert reason.until == store.clock.us + 60 * SECOND
    assert reason.sentence.startswith("lane 'slow' is closed until 20")
    assert reason.sentence.endswith("by its rate, one every 1m")


async def test_a_job_that_its_lane_has_room_for_is_let_through_at_the_next_look(store: Store) -> None:
    await worker_for(store, "job:work")
    route = route_for("default", "work", laned=True)
    job = store.job(route=route.id, lane="key", concurrency=1)
    await store.do(enqueue, [job], [route])
    assert await said(store, job.id) == ""
    await block(store, "key")
    assert await said(store, job.id) == "lane 'key' has room for it, and lets it through at the next check"


async def test_a_job_in_a_lane_without_a_row_waits_for_the_one_that_runs(store: Store) -> None:
    worker, _ = await worker_for(store, "job:work")
    route = route_for("default", "work", laned=True)
    jobs = [store.job(route=route.id, lane="key", concurrency=5) for _ in range(2)]
    await store.do(enqueue, jobs, [route])
    await store.do(claim_in_lanes, worker, [route.id], 1, TTL_US)
    await store.query("delete from holdfast.lane returning 1")
    assert await said(store, jobs[1].id) == "lane 'key' is full: 1 of 1 running"


async def test_a_job_that_is_not_there(store: Store) -> None:
    with pytest.raises(NotFound):
        await store.do(why, new_id(store.ports))


LANES: list[dict[str, Any]] = [
    {},
    {"lane": "one", "concurrency": 1},
    {"lane": "two", "concurrency": 2},
    {"lane": "rate", "interval_us": SECOND, "burst": 2},
    {"lane": "both", "concurrency": 2, "interval_us": SECOND},
]
QUEUES = ("default", "mail")
KINDS = ("work", "other")

jobs = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(KINDS),
        "queue": st.sampled_from(QUEUES),
        "lane": st.sampled_from([0, 1, 2, 3, 3, 4]),
        "cost": st.integers(1, 3),
        "priority": st.sampled_from([1, 100]),
        "delay_us": st.sampled_from([None, None, None, SECOND]),
    }
)
moves = st.one_of(
    *[st.tuples(st.just("enqueue"), jobs)] * 3,
    st.tuples(st.just("pause"), st.sampled_from(QUEUES)),
    st.tuples(st.just("resume"), st.sampled_from(QUEUES)),
    st.tuples(st.just("claim"), st.integers(1, 4)),
    st.tuples(st.just("end"), st.integers(0, 9)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("wait"), st.sampled_from(["300ms", "1s", "5s"])),
    st.tuples(st.just("replace"), st.sampled_from([None, SECOND])),
    st.tuples(st.just("forget"), st.sampled_from(["one", "rate"])),
    st.tuples(st.just("strand"), st.sampled_from(["two", "both"])),
)
offers = st.tuples(
    st.sampled_from([{"job:work", "job:other"}, {"job:work", "job:other"}, {"job:work"}]),
    st.sampled_from([None, None, ("default",)]),
)
histories = st.lists(moves, min_size=15, max_size=40)
Offer = tuple[set[str], tuple[str, ...] | None]


class Scene:
    """A store that is moved about, and what a claim would take from it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.ids: list[JobId] = []
        self.leases: list[Lease] = []

    async def move(self, name: str, what: Any) -> None:
        store = self.store
        match name:
            case "enqueue":
                await self._enqueue(**what)
            case "pause":
                await store.do(pause_queue, what, reason="")
            case "resume":
                await store.do(pause_queue, what, reason="")
                await store.do(resume_queue, what)
            case "claim":
                self.leases += await self.take(await store.worker(), what, {f"job:{kind}" for kind in KINDS}, None)
            case "end" if self.leases:
                lease = self.leases.pop(what % len(self.leases))
                await store.do(complete_and_settle, [store.ending(lease, Done())], [])
            case "cancel" if self.ids:
                await store.do(cancel, self.ids[what % len(self.ids)], reason="")
            case "wait":
                await store.advance(what)
                await store.do(wake, limit=100)
                await store.do(open_lanes, limit=100)
            case "replace":
                await self._replace(what)
            case "forget":  # somebody removes the row of a lane by hand
                await store.query(f"delete from holdfast.lane where name = '{what}' returning 1")
            case "strand":  # as a program of an older schema does
                await store.query(f"update holdfast.lane set opens_at = null where name = '{what}' returning 1")
            case _:
                pass

    async def _enqueue(self, kind: str, queue: str, lane: int, **changes: Any) -> None:
        route = route_for(queue, kind, laned=bool(LANES[lane]))
        job = self.store.job(kind, queue, route=route.id, **changes)._replace(**LANES[lane])
        await self.store.do(enqueue, [job], [route])
        self.ids.append(job.id)

    async def _replace(self, delay_us: int | None) -> None:
        route = route_for("default", "work", laned=True)
        unique: dict[str, Any] = {"unique_key": "k", "unique_scope": "pending", "replaces": True, "delay_us": delay_us}
        job = self.store.job(route=route.id)._replace(**LANES[1], **unique)
        accepted = await self.store.do(enqueue_unique, job, [route])
        if accepted.fresh:
            self.ids.append(accepted.id)

    async def take(self, worker: int, n: int, capabilities: set[str], queues: tuple[str, ...] | None) -> list[Lease]:
        served = [r for r in await self.store.do(list_routes, since=0) if serves(r, queues, capabilities)]
        plain = [route.id for route in served if not is_laned(route)]
        laned = [route.id for route in served if is_laned(route)]
        taken = await self.store.do(claim, worker, plain, n, TTL_US) if plain else []
        return taken + (await self.store.do(claim_in_lanes, worker, laned, n, TTL_US) if laned else [])


async def empty(store: Store) -> None:
    jobs = ("job", "ready", "later", "lease", "ended", "attempt", "family", "progress", "unique_key")
    for table in (*jobs, "lane", "queue", "route", "worker"):
        await store.query(f"delete from holdfast.{table} returning 1")


@given(played=histories, offer=offers)
@settings(max_examples=12, derandomize=True, suppress_health_check=list(HealthCheck))
async def test_a_claim_takes_exactly_those_of_whom_nothing_is_said(
    store: Store, played: Sequence[tuple[str, Any]], offer: Offer
) -> None:
    await assert_silent_are_taken(store, played, offer)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@given(played=histories, offer=offers)
@settings(max_examples=100, derandomize=True, suppress_health_check=list(HealthCheck))
async def test_it_does_so_after_many_histories(store: Store, played: Sequence[tuple[str, Any]], offer: Offer) -> None:
    await assert_silent_are_taken(store, played, offer)


async def assert_silent_are_taken(store: Store, played: Sequence[tuple[str, Any]], offer: Offer) -> None:
    await empty(store)
    scene = Scene(store)
    for name, what in played:
        await scene.move(name, what)
    worker, id = await worker_for(store, *sorted(offer[0]), queues=offer[1])
    silent = {job for job in scene.ids if not await store.do(why, job, worker=id)}
    taken = {lease.id for lease in await scene.take(worker, UNLIMITED, *offer)}
    assert taken == silent
