"""All verbs at once, from several processes, on the same few families: no deadlock, and every count still right."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import asyncpg
import pytest

from holdfast.clock import Ports
from holdfast.kernel import ids, waiting
from holdfast.kernel.cancel import cancel, cancel_family
from holdfast.kernel.complete import complete, complete_and_settle, release
from holdfast.kernel.enqueue import enqueue, enqueue_children
from holdfast.kernel.ids import JobId
from holdfast.kernel.lanes import claim_in_lanes, open_lanes
from holdfast.kernel.leases import expire
from holdfast.kernel.queries import JobFilters, find_job, list_jobs
from holdfast.kernel.rows import Ending, Lease
from holdfast.kernel.states import TERMINAL, State
from holdfast.kernel.workers import list_workers
from holdfast.workers.endings import Endings
from holdfast.workers.telemetry import WorkerTelemetry
from tests.chaos.crew import Crew
from tests.chaos.mixer import LANED, ROUTES, Mixer
from tests.chaos.watch import Watch
from tests.support.apps import eventually
from tests.support.invariants import check_swept, check_whole
from tests.support.snapshots import Snapshot

PROCESSES = 4
LIVE = [state for state in State if state not in TERMINAL]
ROUNDS = {"sqlite": 200, "postgres": 400}
VERBS = [
    *("claim", "complete", "enqueue", "enqueue_children", "enqueue_once", "beat", "park", "signal", "take_signal"),
    *("store_step", "progress", "cancel", "cancel_family", "wake", "overdue", "expire", "lose_workers", "duties"),
    *("clean_up", "look", "drain", "enqueue_laned", "claim_in_lanes", "open_lanes", "enqueue_unique", "replace"),
]
IN_LANES = ["debounce", "enqueue_laned", "claim_in_lanes", "complete", "open_lanes", "wake", "cancel"]
STILL_US = 80_000_000  # nothing runs for longer than a lane that everybody passed over is left alone for: never will


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_no_deadlock_reaches_a_caller_and_every_count_is_right(
    url: str, dialect: str, watch: Watch, crew: Crew
) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    await mixed(url, crew, seed, ROUNDS[dialect], VERBS)
    check_whole(await watch.snapshot())

    begun = watch.now()
    while await watch.do(expire, gone=[], limit=100, backoff_us=1, chance=random.Random(seed)):
        pass
    while await watch.do(waiting.overdue, limit=100):
        pass
    swept = await watch.snapshot()
    check_swept(Snapshot(begun, swept.tables))
    check_whole(swept)
    await come_to_rest(watch)


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_no_job_is_stranded_and_none_is_dropped_where_calls_replace_each_other_in_lanes(
    url: str, dialect: str, watch: Watch, crew: Crew
) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    reports = await mixed(url, crew, seed, ROUNDS[dialect], IN_LANES, "debounced")
    await come_to_rest(watch)
    given: dict[str, list[str]] = {}
    for id, payload in (pair for report in reports for pair in report["replaced"]):
        given.setdefault(id, []).append(payload)
    jobs = [await watch.do(find_job, JobId(id)) for id in given]
    dropped = [job.id for job in jobs if job.payload not in given[job.id]]
    assert dropped == [], f"of {len(jobs)} jobs these have none of the payloads that they were said to have now"


async def mixed(
    url: str, crew: Crew, seed: int, rounds: int, verbs: Sequence[str], *options: str
) -> list[dict[str, Any]]:
    """Let several processes use verbs at random; what each reports. Every verb must have done something."""
    mixers = [crew.script("mixer", url, f"{seed}-{number}", rounds, *options) for number in range(PROCESSES)]
    await asyncio.gather(*(mixer.says("ready") for mixer in mixers))
    for mixer in mixers:
        mixer.say("go")
    assert await asyncio.gather(*(mixer.leaves() for mixer in mixers)) == [0] * PROCESSES
    reports = [json.loads(mixer.output.splitlines()[-1]) for mixer in mixers]
    answered: Counter[str] = sum((Counter(report["answered"]) for report in reports), Counter())
    print(f"answered {answered}")
    assert [verb for verb in verbs if not answered[verb]] == [], "these verbs never did anything"
    return reports


async def come_to_rest(watch: Watch) -> None:
    """What a fleet does at its polls, until every job has ended: one that has not by then never will."""
    mixer = Mixer(watch.database, "rest")
    await mixer.register()
    until = watch.now() + STILL_US
    while left := [row for state in LIVE for row in await watch.do(list_jobs, JobFilters(state=state), limit=1_000)]:
        told = [f"{row.kind} {row.id} {row.state} {row.gate} {row.due_at}" for row in left]
        assert watch.now() < until, f"{len(left)} jobs are stranded: {told}"
        moved = await watch.do(waiting.wake, limit=100)
        moved += len(await watch.do(waiting.overdue, limit=100))
        moved += await watch.do(open_lanes, limit=100)
        gone = [worker.seq for worker in await watch.do(list_workers, all=True, limit=1_000)]
        moved += len(await watch.do(expire, gone=gone, limit=100, backoff_us=1, chance=random.Random(0)))
        while await watch.do(cancel_family, limit=100):
            moved += 1
        leases = await mixer.claim_all()
        leases += await watch.do(claim_in_lanes, mixer.worker, [LANED.id], 100, 60_000_000)
        if leases:
            parents = sorted({lease.parent for lease in leases if lease.parent is not None})
            endings = [Ending(*lease.held, "succeeded", State.SUCCEEDED, 0, 1, "1", None) for lease in leases]
            await watch.do(complete_and_settle, endings, parents)
            until = watch.now() + STILL_US
        elif not moved:
            await asyncio.sleep(0.02)  # for what is due in a moment


class Contest(NamedTuple):
    """A call that locks two jobs, the older one first if it keeps the order."""

    older: int
    newer: int
    call: Callable[[], Awaitable[object]]


class Family(NamedTuple):
    """Two running jobs, and a running child of the second."""

    older: Lease
    newer: Lease
    child: Lease


@pytest.fixture
async def family(watch: Watch) -> Family:
    mixer = Mixer(watch.database, "family")
    await mixer.register()
    plain = {"priority": 100, "delay_us": None, "deadline_us": None}
    await watch.do(enqueue, [mixer.job("parent", **plain), mixer.job("parent", **plain)], ROUTES)
    older, newer = await mixer.claim_all()
    child = mixer.job("child", id=ids.derived_id(newer.id, "a", 0), **plain)
    await watch.do(enqueue_children, newer, [child], ROUTES)
    return Family(older, newer, *await mixer.claim_all())


async def completing_two(watch: Watch, family: Family) -> Contest:
    endings = [release(family.newer), release(family.older)]
    return Contest(family.older.seq, family.newer.seq, partial(watch.do, complete, endings))


async def releasing_a_child_that_was_cancelled(watch: Watch, family: Family) -> Contest:
    """The cancel wins over the release and ends the child, so its parent is told."""
    await watch.do(cancel, family.child.id, reason="chance")
    ports = Ports()
    endings = Endings(
        watch.database, ports, WorkerTelemetry(ports, "w"), batch=10, settled=lambda lease, ending, state: None
    )

    async def call() -> None:
        endings.put(family.child, release(family.child))
        await endings.flushed()

    return Contest(family.newer.seq, family.child.seq, call)


async def signalling_two(watch: Watch, family: Family) -> Contest:
    for lease in (family.newer, family.older):
        await watch.do(waiting.park, lease, channel="left", timeout_us=None)
    signal = partial(watch.do, waiting.signal, ids.new_id(Ports()), "left", "1")
    return Contest(family.older.seq, family.newer.seq, signal)


async def cancelling_a_family(watch: Watch, family: Family) -> Contest:
    await watch.do(cancel, family.newer.id, reason="chance")
    return Contest(family.newer.seq, family.child.seq, partial(watch.do, cancel_family, limit=10))


@pytest.mark.sample(1)
@pytest.mark.parametrize("dialect", ["postgres"])
@pytest.mark.parametrize(
    "contest", [completing_two, releasing_a_child_that_was_cancelled, signalling_two, cancelling_a_family]
)
async def test_postgres_jobs_are_locked_oldest_first(
    url: str, watch: Watch, family: Family, contest: Callable[[Watch, Family], Awaitable[Contest]]
) -> None:
    """Whoever holds the older of two jobs gets the newer one: nobody has that already and waits for the older."""
    older, newer, call = await contest(watch, family)
    rival = await asyncpg.connect(url)
    try:
        async with rival.transaction():
            await lock_whole(rival, older)
            calling = asyncio.ensure_future(call())
            await eventually(partial(someone_waits, watch))
            await lock_whole(rival, newer, "nowait")
        await calling
    finally:
        await rival.close()


async def lock_whole(rival: asyncpg.Connection[Any], seq: int, patience: str = "") -> None:
    """Lock a job and its place, wherever that is."""
    for table in ("job", "later", "lease", "ready"):
        await rival.fetch(f"select seq from holdfast.{table} where seq = $1 for update {patience}", seq)


async def someone_waits(watch: Watch) -> bool:
    return bool(await watch.query("select 1 from pg_locks where not granted"))
