"""A handler that blocks the event loop: its lease is kept for one TTL, then it is lost, and the late result is dropped.

A heartbeat must show progress, not only life.
"""

from __future__ import annotations

import pytest

from tests.chaos.jobs import block, block_until, quick
from tests.chaos.scene import Scene
from tests.support.apps import eventually

pytestmark = pytest.mark.timed


@pytest.mark.long
async def test_a_loop_that_is_blocked_for_less_than_a_lease_keeps_it(scene: Scene) -> None:
    settings = {"lease_ttl": "4s", "heartbeat": "500ms", "worker_ttl": "4s"}
    first = scene.worker(**settings)
    job = await block.enqueue(str(scene.witness), 2.5, 2)
    await scene.witness.saw(f"running {job.id} {first.pid}")
    claimed_until = (await scene.watch.job(job.id)).lease_until or 0
    await scene.registered(**settings)

    async def is_renewed() -> bool:
        """While the loop is blocked, so not by the loop."""
        row = await scene.watch.job(job.id)
        assert row.state == "running"
        return (row.lease_until or 0) > claimed_until

    await eventually(is_renewed)
    assert await job.result(timeout="60s") == f"blocked by {first.pid}"
    assert await scene.watch.outcomes(job.id) == ["succeeded"]


@pytest.mark.long
async def test_a_loop_that_is_blocked_for_longer_loses_the_lease_and_its_result(scene: Scene) -> None:
    settings = {"lease_ttl": "2s", "heartbeat": "500ms", "worker_ttl": "60s"}
    gate = scene.gate()
    blocked = scene.worker(**settings)
    job = await block_until.enqueue(str(scene.witness), str(gate))
    await scene.witness.saw(f"running {job.id} {blocked.pid}")
    rescuer = await scene.registered(**settings)
    await scene.witness.saw(f"running {job.id} {rescuer.pid}")
    row = await scene.watch.job(job.id)
    assert (row.rescues, row.token) == (1, 2)

    gate.open()
    assert await job.result(timeout="60s") == f"blocked by {rescuer.pid}"
    await scene.witness.saw(f"ended {job.id} {blocked.pid}")
    await blocked.says("handler block_until held the event loop for")
    await blocked.says("its result is dropped")
    assert await scene.watch.outcomes(job.id) == ["lost", "succeeded"]
    assert (await scene.watch.job(job.id)).result == f'"blocked by {rescuer.pid}"'

    rescuer.kill()
    after = await quick.enqueue(1)
    assert await after.result(timeout="60s") == 1
    assert [a.worker for a in await scene.watch.attempts(after.id)] == [(await scene.row_of(blocked)).seq]
