"""SIGSTOP beyond the lease, then SIGCONT: whatever the zombie still writes is refused, and it becomes useful again."""

from __future__ import annotations

import json

import pytest

from tests.chaos.jobs import hold, hold_in_thread, quick
from tests.chaos.scene import Scene
from tests.chaos.watch import Watch
from tests.chaos.zombie import WRITES
from tests.support.invariants import check_untouched
from tests.support.snapshots import Snapshot

pytestmark = pytest.mark.chaos

SHORT = {"lease_ttl": "3s", "heartbeat": "1s", "worker_ttl": "3s", "fence_margin": "500ms", "duty_ttl": "1s"}
REFUSED = {
    "complete": "nothing",
    "release": "nothing",
    "store_step": "LeaseLost",
    "progress": "LeaseLost",
    "park": "LeaseLost",
    "take_signal": "LeaseLost",
    "enqueue_children": "LeaseLost",
    "renew": "nothing",
    "heartbeat": "nothing",
    "renew_duty": "nothing",
    "clean_up": "DutyLost",
}


async def test_every_late_write_of_a_zombie_is_refused(scene: Scene) -> None:
    jobs = [job.id for job in await quick.enqueue_many([(number,) for number in range(WRITES)])]
    zombie = scene.crew.script("zombie", scene.url, "outside")
    await zombie.says("holding")
    await scene.watch.freeze(zombie.pid)
    healthy = scene.worker(**SHORT)
    await scene.watch.until_ended(WRITES)
    await healthy.says("holds duty cleanup, term 2")
    await scene.given_up(zombie)

    before = await lasting(scene.watch)
    zombie.thaw()
    zombie.say("go")
    assert await zombie.leaves() == 0
    assert json.loads(zombie.output.splitlines()[-1]) == REFUSED
    check_untouched(before, await lasting(scene.watch))
    assert [await scene.watch.outcomes(job) for job in jobs] == [["lost", "succeeded"]] * WRITES
    holders = {duty.holder for duty in await scene.watch.duties()}
    assert holders == {(await scene.row_of(healthy)).seq}


@pytest.mark.long
async def test_a_worker_that_was_frozen_is_told_registers_again_and_works_on(scene: Scene) -> None:
    gate = scene.gate()
    zombie = scene.worker(**SHORT)
    held = [(await job.enqueue(str(scene.witness), str(gate))).id for job in (hold, hold_in_thread)]
    await scene.witness.saw(*(f"running {job} {zombie.pid}" for job in held))
    first = await scene.row_of(zombie)
    await scene.watch.freeze(zombie.pid)
    rescuer = await scene.registered(**SHORT)
    rescuers = await scene.row_of(rescuer)
    gate.open()
    await scene.watch.until_ended(2)
    rows = [await scene.watch.job(job) for job in held]
    assert [row.result for row in rows] == [f'"held by {rescuer.pid}"'] * 2
    await scene.given_up(zombie)

    gate.shut()
    zombie.thaw()
    await scene.witness.saw(*(f"cancelled {job} {zombie.pid} told=True" for job in held))
    second = await scene.row_of(zombie)
    assert second.seq > max(first.seq, rescuers.seq)
    await zombie.says(f"registered as {second.seq}")
    rescuer.kill()
    job = await quick.enqueue(7)
    assert await job.result(timeout="60s") == 7
    assert [attempt.worker for attempt in await scene.watch.attempts(job.id)] == [second.seq]
    assert [await scene.watch.job(job) for job in held] == rows
    assert [await scene.watch.outcomes(job) for job in held] == [["lost", "succeeded"]] * 2


@pytest.mark.long
@pytest.mark.parametrize("dialect", ["postgres"])
async def test_postgres_a_worker_frozen_in_a_transaction_holds_nobody_up(scene: Scene) -> None:
    """It has locked its own row and those of its jobs: the server ends the transaction, and the jobs go on."""
    jobs = await quick.enqueue_many([(number,) for number in range(WRITES)])
    zombie = scene.crew.script("zombie", scene.url, "in-transaction")
    await zombie.says("holding")
    scene.worker(**SHORT)
    for job in jobs:
        await job.result(timeout="60s")
    await scene.given_up(zombie)


async def lasting(watch: Watch) -> Snapshot:
    """Everything but the workers and duties, which live on."""
    whole = await watch.snapshot()
    return Snapshot(whole.now, {name: rows for name, rows in whole.tables.items() if name not in ("worker", "duty")})
