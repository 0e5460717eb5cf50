"""UA-15, UA-16, UA-20 and UA-29 with real processes and real outages: a run is lost by nobody and ended by one."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.facades.universal_agent import PoolConfig, RuntimeDb, WorkerConfig, WorkerPoolManager, connect_runtime_db
from tests.chaos.crew import Crew
from tests.chaos.watch import Watch
from tests.support.apps import eventually
from tests.support.proxy import Proxy

pytestmark = pytest.mark.chaos


@pytest.fixture
async def conn(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RuntimeDb]:
    monkeypatch.chdir(tmp_path)
    opened = connect_runtime_db(url)
    yield opened
    await opened.aclose()


async def until_status(conn: RuntimeDb, run_id: str, wanted: str) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        run = await conn.runs.get(run_id)
        return run if run is not None and run["status"] == wanted else None

    return await eventually(look)


async def test_ua_15_a_run_of_a_killed_process_is_completed_by_another(
    conn: RuntimeDb, url: str, crew: Crew, tmp_path: Path
) -> None:
    """kill -9 takes the worker and the manager at once."""
    gate = tmp_path / "gate"
    first = crew.script("ua_pool", url, gate)
    await first.says("ready")
    await conn.runs.queue("run_1", "Hello", str(tmp_path / "project"))
    await first.says("began run_1")
    first.kill()
    second = crew.script("ua_pool", url, gate)
    await second.says("began run_1")
    gate.touch()
    await until_status(conn, "run_1", "completed")
    found = [(each["attempt_number"], each["status"]) for each in await conn.runs.attempts("run_1")]
    assert found == [(1, "lost"), (2, "completed")]


async def test_ua_16_a_process_stopped_beyond_its_lease_ends_nothing(
    conn: RuntimeDb, url: str, watch: Watch, crew: Crew, tmp_path: Path
) -> None:
    """It is stopped when its statements are prepared: between the messages of preparing one, PostgreSQL would wait for
    it for ever, with the locks of its transaction."""
    gate = tmp_path / "gate"
    first = crew.script("ua_pool", url, gate)
    await first.says("ready")
    await conn.runs.queue("run_1", "Hello", str(tmp_path / "project"))
    await first.says("began run_1")
    await renewed(conn, "run_1")
    await watch.freeze(first.pid)
    second = crew.script("ua_pool", url, tmp_path / "never")
    await second.says("began run_1")
    gate.touch()
    first.thaw()
    await first.says("was lost")
    run = await conn.runs.get("run_1")
    assert run is not None
    assert run["status"] == "running"
    assert [each["status"] for each in await conn.runs.attempts("run_1")] == ["lost"]


@pytest.mark.long
async def test_ua_20_a_run_that_kills_its_workers_ends_in_a_review(
    conn: RuntimeDb, url: str, crew: Crew, tmp_path: Path
) -> None:
    """And a run beside it is completed."""
    gate = tmp_path / "gate"
    gate.touch()
    await conn.runs.queue("doom", "Hello", str(tmp_path / "doom"))
    for _ in range(3):
        assert await crew.script("ua_pool", url, gate).leaves() == -signal.SIGKILL
    await conn.runs.queue("run_1", "Hello", str(tmp_path / "project"))
    crew.script("ua_pool", url, gate)
    await until_status(conn, "run_1", "completed")
    await until_status(conn, "doom", "needs_review")
    assert [each["status"] for each in await conn.runs.attempts("doom")] == ["lost"] * 3


async def renewed(conn: RuntimeDb, run_id: str) -> None:
    """Wait until its lease was renewed a few times."""
    ends: set[int | None] = set()

    async def often() -> bool:
        seen = await conn.runs.look(run_id)
        ends.add(None if seen is None or seen.job is None else seen.job.lease_until)
        return len(ends) > 4

    await eventually(often)


class Outage:
    """A handler that counts how long it runs, so that it can say when a time has passed."""

    def __init__(self) -> None:
        self.ticks = self.begun = self.stopped = 0
        self.free = False

    async def __call__(self, run_id: str, workspace_dir: str) -> bool:
        self.begun += 1
        try:
            while not self.free:
                self.ticks += 1
                await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        return True


@contextlib.contextmanager
def locked(url: str) -> Iterator[None]:
    """Nobody else can write to the file."""
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.set_busy_timeout(60_000)
    connection.execute("begin immediate")
    try:
        yield
    finally:
        connection.execute("rollback")
        connection.close()


@contextlib.contextmanager
def refused(proxy: Proxy) -> Iterator[None]:
    """The server is not there."""
    proxy.refusing = True
    proxy.cut()
    try:
        yield
    finally:
        proxy.refusing = False


class Store:
    """A database that can go away."""

    def __init__(self, url: str, proxy: Proxy | None) -> None:
        self.url = url if proxy is None else proxy.url
        self._proxy = proxy

    def away(self) -> contextlib.AbstractContextManager[None]:
        return locked(self.url) if self._proxy is None else refused(self._proxy)


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    if url.startswith("sqlite"):
        yield Store(url, None)
        return
    async with Proxy(url) as proxy:
        yield Store(url, proxy)


@pytest.mark.parametrize("ticks", [pytest.param(40, id="short"), pytest.param(0, id="long", marks=pytest.mark.long)])
async def test_ua_29_a_database_that_goes_away_costs_no_run(
    conn: RuntimeDb, store: Store, tmp_path: Path, ticks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shorter than a lease, nothing is lost. For longer than three, the worker stops and the pool has another."""
    ttl = 6 if ticks else 1
    if not ticks:
        for name in ("BUSY_TIMEOUT", "STORE_PATIENCE"):  # for which each call of the worker waits in vain
            monkeypatch.setenv(f"HOLDFAST_{name}", "1s")
    outage = Outage()
    workers = WorkerConfig(lease_ttl_seconds=ttl, heartbeat_interval_seconds=ttl / 4, poll_interval_seconds=0.2)
    pool = WorkerPoolManager(PoolConfig(db_path=store.url), workers, run_handler=outage)
    await pool.start()
    try:
        (first,) = pool.workers
        await conn.runs.queue("run_1", "Hello", str(tmp_path / "project"))

        async def begun_now() -> bool:
            return outage.begun > 0

        await eventually(begun_now)
        before = outage.ticks

        async def over() -> bool:
            return outage.ticks - before >= ticks if ticks else outage.stopped > 0 and first not in pool.workers

        with store.away():
            await eventually(over, progress=lambda: outage.ticks)
        outage.free = True
        await until_status(conn, "run_1", "completed")
        assert (outage.begun, first in pool.workers) == ((1, True) if ticks else (2, False))
    finally:
        await pool.stop(drain=False)
