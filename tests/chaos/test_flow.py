"""Flow control with real processes: limits while they contend, and every tick once while leaders are killed."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

import pytest

from tests.chaos import ticking
from tests.chaos.crew import Member
from tests.chaos.scene import Scene
from tests.support.apps import eventually

pytestmark = pytest.mark.chaos

APP = "tests.chaos.ticking:hf"
SHORT = {"duty_ttl": "1s", "lease_ttl": "3s", "heartbeat": "1s", "worker_ttl": "3s"}


def worker(scene: Scene) -> Member:
    changes = [word for name, value in SHORT.items() for word in ("--set", f"{name}={value}")]
    return scene.crew.start("holdfast", "worker", APP, "--url", scene.url, *changes)


@pytest.mark.long
async def test_no_tick_is_lost_or_fired_twice_while_leaders_are_killed(scene: Scene) -> None:
    members = {member.pid: member for member in (worker(scene) for _ in range(3))}
    ticking.hf.settings = ticking.hf.settings.override({"url": scene.url})

    async def leader() -> Member | None:
        pids = {row.seq: row.pid for row in await scene.hf.workers.list(all=True)}
        duties = await scene.hf.workers.duties()
        holders = [members[pids[duty.holder]] for duty in duties if duty.name == "schedules" and duty.holder in pids]
        return next((member for member in holders if member.running), None)

    async def fired() -> int:
        return len(await scene.hf.jobs.list(kind=ticking.tick.definition.kind, limit=1_000))

    async def declared() -> datetime | None:
        rows = await scene.hf.schedules.list()
        return (rows[0].last_at or rows[0].next_at) if rows else None

    first_tick = await eventually(declared)
    for _ in range(2):
        before = await fired()
        first = await eventually(leader)

        async def more(before: int = before) -> bool:
            return await fired() >= before + 2

        await eventually(more)
        first.kill()
    total = await fired()

    async def still_fires() -> bool:
        return await fired() > total

    await eventually(still_fires)
    (schedule,) = await scene.hf.schedules.list()
    rows = await scene.hf.jobs.list(kind=ticking.tick.definition.kind, limit=1_000)
    assert schedule.last_at is not None
    # Caught up one for one: as many jobs as seconds from the first tick to the last.
    assert len(rows) == (schedule.last_at - first_tick) // timedelta(seconds=1) + 1
    await ticking.hf.close()


async def test_a_lane_holds_while_processes_contend_and_die(scene: Scene) -> None:
    ticking.hf.settings = ticking.hf.settings.override({"url": scene.url})
    members = [worker(scene) for _ in range(3)]
    jobs = await ticking.narrow.enqueue_many([(str(scene.witness),)] * 60)

    async def some_ended() -> bool:
        return len(await scene.hf.jobs.list(kind="narrow", state="succeeded", limit=100)) >= 15

    await eventually(some_ended)
    members[0].kill()

    async def all_ended() -> bool:
        return len(await scene.hf.jobs.list(kind="narrow", state="succeeded", limit=100)) == len(jobs)

    await eventually(all_ended)
    inside: Counter[str] = Counter()
    most = 0
    for line in sorted(scene.witness.lines, key=lambda line: int(line.split()[1])):
        what, _, pid = line.split()
        if pid == str(members[0].pid):
            continue  # its last ones never said that they were out
        inside["n"] += 1 if what == "in" else -1
        most = max(most, inside["n"])
    assert most <= 2
    await ticking.hf.close()
