"""All verbs at once, from several processes, on the same few families: no deadlock, and every count still right."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

import asyncpg
import pytest

from holdfast.clock import Ports
from holdfast.kernel import ids, waiting
from holdfast.kernel.cancel import cancel, cancel_family
from holdfast.kernel.complete import complete, release
from holdfast.kernel.enqueue import enqueue, enqueue_children
from holdfast.kernel.leases import expire
from holdfast.kernel.records import Lease
from holdfast.workers.endings import Endings
from holdfast.workers.telling import Telling
from tests.chaos.crew import Crew
from tests.chaos.mixer import ROUTES, Mixer
from tests.chaos.watch import Watch
from tests.support.apps import eventually
from tests.support.invariants import check_swept, check_whole
from tests.support.snapshots import Snapshot

PROCESSES = 4
ROUNDS = {"sqlite": 200, "postgres": 400}
VERBS = [
    *("claim", "complete", "enqueue", "enqueue_children", "enqueue_once", "beat", "park", "signal", "take_signal"),
    *("store_step", "progress", "cancel", "cancel_family", "wake", "overdue", "expire", "lose_workers", "duties"),
    *("clean_up", "look", "drain"),
]


async def test_no_deadlock_reaches_a_caller_and_every_count_is_right(
    url: str, dialect: str, watch: Watch, crew: Crew
) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    mixers = [crew.script("mixer", url, f"{seed}-{number}", ROUNDS[dialect]) for number in range(PROCESSES)]
    await asyncio.gather(*(mixer.says("ready") for mixer in mixers))
    for mixer in mixers:
        mixer.say("go")
    assert await asyncio.gather(*(mixer.leaves() for mixer in mixers)) == [0] * PROCESSES

    reports = [json.loads(mixer.output.splitlines()[-1]) for mixer in mixers]
    answered: Counter[str] = sum((Counter(report["answered"]) for report in reports), Counter())
    print(f"answered {answered}")
    assert [verb for verb in VERBS if not answered[verb]] == [], "these verbs never did anything"
    check_whole(await watch.snapshot())

    begun = watch.now()
    while await watch.do(expire, gone=[], limit=100, backoff_us=1, chance=random.Random(seed)):
        pass
    while await watch.do(waiting.overdue, limit=100):
        pass
    swept = await watch.snapshot()
    check_swept(Snapshot(begun, swept.tables))
    check_whole(swept)


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
    endings = Endings(watch.database, ports, Telling(ports, "w"), batch=10, settled=lambda lease, ending, state: None)

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


@pytest.mark.parametrize("dialect", ["postgres"])
@pytest.mark.parametrize(
    "contest", [completing_two, releasing_a_child_that_was_cancelled, signalling_two, cancelling_a_family]
)
async def test_postgres_jobs_are_locked_oldest_first(
    url: str, watch: Watch, family: Family, contest: Callable[[Watch, Family], Awaitable[Contest]]
) -> None:
    """Whoever holds the older of two jobs gets the newer one: nobody has that already and waits for the older."""
    older, newer, call = await contest(watch, family)
    lock = "select seq from holdfast.job where seq = $1 for update"
    rival = await asyncpg.connect(url)
    try:
        async with rival.transaction():
            await rival.fetch(lock, older)
            calling = asyncio.ensure_future(call())
            await eventually(partial(someone_waits, watch))
            await rival.fetch(f"{lock} nowait", newer)
        await calling
    finally:
        await rival.close()


async def someone_waits(watch: Watch) -> bool:
    return bool(await watch.query("select 1 from pg_locks where not granted"))
