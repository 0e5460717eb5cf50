"""PostgreSQL restarted under load, cleanly or by a crash: nothing accepted is lost, all comes back by itself."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.errors import StoreUnavailable, Unavailable
from holdfast.kernel.queries import list_jobs
from tests.chaos.jobs import hold, nap, quick
from tests.chaos.scene import Scene
from tests.chaos.watch import Watch
from tests.support.apps import eventually, settings_with
from tests.support.invariants import check_whole
from tests.support.postgres import Server, StopMode

pytestmark = pytest.mark.timed

# A claim whose answer is lost in the restart is only found when its lease ends. Polls far apart: hints do the work.
SETTINGS = {"lease_ttl": "5s", "heartbeat": "1s", "duty_ttl": "2s", "poll_interval": "30s"}
MODES: list[StopMode] = ["fast", "immediate"]
# Seconds: hardly any, and then longer than a call repeats itself.
OUTAGES: dict[StopMode, tuple[float, ...]] = {"fast": (0.0,), "immediate": (0.0, 6.0)}
_numbers = itertools.count()
MORE = 40  # jobs accepted after each restart
OPEN = 8  # how many more descriptors than at rest a worker under load may have: statements, not leaks


class Client:
    """Enqueues as long as it is wanted, and remembers what was accepted."""

    def __init__(self) -> None:
        self.accepted: list[str] = []
        self.refused = 0
        self.wanted = True

    async def enqueue(self) -> None:
        while self.wanted:
            try:
                self.accepted.append((await nap.enqueue(0.02)).id)
            except Unavailable:
                self.refused += 1
            await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of our own to restart."""
    with Server() as server:
        yield server


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> StopMode:
    mode: StopMode = request.param
    return mode


@pytest.fixture
async def url(server: Server) -> str:
    app = Holdfast(server.create_database(f"restarted_{next(_numbers)}"))
    await app.migrate()
    return app.settings.url


@pytest.mark.sample(1)
async def test_nothing_accepted_is_lost_and_everything_comes_back(server: Server, mode: StopMode, scene: Scene) -> None:
    workers = [await scene.registered(**SETTINGS) for _ in range(2)]
    numbers = {(await scene.row_of(worker)).seq for worker in workers}
    descriptors = {worker.pid: open_descriptors(worker.pid) for worker in workers}
    clients = await restart_under_load(server, mode, scene)

    accepted = {id for client in clients for id in client.accepted}
    await eventually(partial(nothing_is_left_to_do, scene))
    ended = await scene.watch.query("select cast(id as text), state from holdfast.job_now")
    assert {state for _, state in ended} == {"succeeded"}
    assert accepted <= {id for id, _ in ended}
    succeeded = [attempt.job for attempt in await scene.watch.attempts() if attempt.outcome == "succeeded"]
    assert sorted(succeeded) == sorted(id for id, _ in ended)
    check_whole(await scene.watch.snapshot())

    assert {row.seq for row in await scene.watch.workers()} == numbers, "registrations are not what they were"
    await eventually(partial(presence_is_back, scene, numbers))
    await eventually(partial(leadership_is_back, scene, numbers))
    await a_hint_is_heard(scene)
    for worker in workers:
        assert open_descriptors(worker.pid) <= descriptors[worker.pid] + OPEN
        assert "Traceback" not in worker.output, worker.output


async def test_the_log_says_once_that_the_store_is_away_and_once_that_it_is_back(server: Server, scene: Scene) -> None:
    """Many heartbeats, looks and outcomes fail meanwhile."""
    gate = scene.gate()
    often = {"heartbeat": "1s", "poll_interval": "200ms", "store_patience": "100ms"}
    worker = await scene.registered(lease_ttl="60s", **often)
    job = await hold.enqueue(str(scene.witness), str(gate))
    await scene.witness.saw(f"running {job.id} {worker.pid}")
    await asyncio.to_thread(server.stop)
    try:
        gate.open()
        await worker.says("the store is away")
        await asyncio.sleep(3)
    finally:
        await asyncio.to_thread(server.start)
    await worker.says("the store is back after")
    assert await job.result(timeout="60s")
    away, back = [line for line in worker.output.splitlines() if " WARNING " in line]
    assert "the store is away: PostgreSQL at" in away
    assert "Holdfast keeps trying." in away
    assert "the store is back after" in back


@pytest.mark.long
async def test_a_call_repeats_itself_no_longer_than_its_patience(server: Server, url: str) -> None:
    async with Watch(url, store_patience=timedelta(seconds=2)) as watch:
        server.stop()
        try:
            begun = watch.now()
            with pytest.raises(StoreUnavailable):
                await watch.do(list_jobs)
            assert 1.9 <= (watch.now() - begun) / 1e6 <= 4.0
        finally:
            server.start()
        assert await watch.do(list_jobs) == []


async def restart_under_load(server: Server, mode: StopMode, scene: Scene) -> list[Client]:
    scene.hf.settings = settings_with(url=scene.url, store_patience="2s")
    clients = [Client() for _ in range(3)]
    enqueuing = [asyncio.create_task(client.enqueue()) for client in clients]
    for outage in OUTAGES[mode]:
        await scene.watch.until_ended(sum(len(client.accepted) for client in clients) + MORE // 2)
        await asyncio.to_thread(server.stop, mode)
        await asyncio.sleep(outage)
        await asyncio.to_thread(server.start)
        back_at = scene.watch.now()
        accepted = sum(len(client.accepted) for client in clients)
        await eventually(partial(has_accepted, clients, accepted + MORE))
        await eventually(partial(claims_since, scene, back_at))
    for client in clients:
        client.wanted = False
    await asyncio.gather(*enqueuing)
    return clients


async def has_accepted(clients: list[Client], count: int) -> bool:
    return sum(len(client.accepted) for client in clients) >= count


async def claims_since(scene: Scene, moment: int) -> bool:
    """Whether anything was claimed since the server is back; says how soon."""
    ((first,),) = await scene.watch.query(
        f"select min(started_at) from holdfast.attempt_now where started_at > {moment}"
    )
    if first is not None:
        print(f"claims went on after {(first - moment) / 1e6} s")
    return first is not None


async def nothing_is_left_to_do(scene: Scene) -> bool:
    return not await scene.watch.query("select 1 from holdfast.job_now where finished_at is null limit 1")


async def presence_is_back(scene: Scene, numbers: set[int]) -> bool:
    rows = await scene.watch.query("select cast(objid as bigint) from pg_locks where locktype = 'advisory' and granted")
    return numbers <= {objid for (objid,) in rows}


async def leadership_is_back(scene: Scene, numbers: set[int]) -> bool:
    return any(duty.holder in numbers and duty.held_until > scene.watch.now() for duty in await scene.watch.duties())


async def a_hint_is_heard(scene: Scene) -> None:
    """Long before anybody polls."""
    job = await quick.enqueue(1)
    await job.result(timeout="20s")


def open_descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
