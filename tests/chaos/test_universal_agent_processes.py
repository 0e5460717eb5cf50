"""Workers of Universal Agent's pools in processes of their own: `PoolConfig(subprocesses=True)`."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.facades.universal_agent.runtime_db import RuntimeDb, connect_runtime_db
from holdfast.facades.universal_agent.worker_pool import PoolConfig, WorkerPoolManager
from tests.chaos.ua_handlers import never, witness
from tests.facades.test_pools import FAST, until, until_status
from tests.support.apps import eventually

pytestmark = pytest.mark.chaos

PATIENT = replace(FAST, lease_ttl_seconds=60, heartbeat_interval_seconds=5)  # a machine that waits loses no lease


@pytest.fixture
async def conn(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RuntimeDb]:
    monkeypatch.chdir(tmp_path)
    opened = connect_runtime_db(url)
    yield opened
    await opened.aclose()


def children() -> set[int]:
    """The processes that this one has started and that are there, also if only their exit code is."""
    folder = Path(f"/proc/{os.getpid()}/task")
    return {int(pid) for task in folder.iterdir() for pid in (task / "children").read_text().split()}


async def test_a_process_plays_runs_and_is_not_left_over(conn: RuntimeDb, url: str, tmp_path: Path) -> None:
    before = children()
    config = PoolConfig(db_path=url, max_workers=1, subprocesses=True)
    pool = WorkerPoolManager(config, PATIENT, run_handler=witness)
    await pool.start()
    try:
        await until(lambda: pool.get_pool_stats()["idle_workers"] == 1)
        for name in ("held_1", "bad_2", "run_3"):
            await conn.runs.queue(name, "Hello", str(tmp_path / name))
        await until(lambda: pool.get_pool_stats()["processing_workers"] == 1)
        ((id, stats),) = pool.get_pool_stats()["workers"].items()
        assert stats == {"status": "processing", "current_run": "held_1", "completed": 0, "failed": 0}
        (tmp_path / "held_1" / "gate").touch()
        await until_status(conn, "run_3", "completed")
        assert (await until_status(conn, "bad_2", "failed"))["attempts"] == 1
        await until(lambda: pool.get_pool_stats()["total_completed"] == 2)
        assert pool.get_pool_stats()["total_failed"] == 1
        assert [each["lease_owner"] for each in await conn.runs.attempts("held_1")] == [id]
        assert {int((tmp_path / "held_1" / "pid").read_text())} == children() - before
        await until(lambda: pool.workers[id].idle_duration > 0)
    finally:
        await pool.stop()
    assert children() <= before
    assert pool.get_pool_stats()["total_completed"] == 2


@pytest.mark.long
async def test_a_process_that_is_killed_is_replaced_and_one_that_does_not_drain_hands_its_run_back(
    conn: RuntimeDb, url: str, tmp_path: Path
) -> None:
    before = children()
    config = PoolConfig(db_path=url, min_workers=2, max_workers=2, subprocesses=True)
    pool = WorkerPoolManager(config, PATIENT, run_handler=witness)
    await pool.start()
    try:
        for name in ("held_1", "held_2"):
            await conn.runs.queue(name, "Hello", str(tmp_path / name))
        await until(lambda: pool.get_pool_stats()["processing_workers"] == 2)
        held = {each["current_run"]: id for id, each in pool.get_pool_stats()["workers"].items()}
        await until(lambda: all((tmp_path / name / "pid").exists() for name in ("held_1", "held_2")))
        pid = int((tmp_path / "held_1" / "pid").read_text())
        assert pid != int((tmp_path / "held_2" / "pid").read_text())
        os.kill(pid, signal.SIGKILL)
        await until(lambda: held["held_1"] not in pool.workers and pool.get_pool_stats()["processing_workers"] == 2)
    finally:
        await pool.stop(drain=False)
    assert children() <= before
    assert [each["status"] for each in await conn.runs.attempts("held_1")] == ["lost", "released"]
    assert [each["status"] for each in await conn.runs.attempts("held_2")] == ["released"]


@pytest.mark.long
async def test_a_process_that_cannot_import_its_handler_says_why(
    conn: RuntimeDb, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(never, "__module__", "tests.chaos.no_such_module")
    pool = WorkerPoolManager(PoolConfig(db_path=url, subprocesses=True), FAST, run_handler=never)
    await pool.start()
    try:

        async def told() -> bool:
            stats = await conn.queue.pools.list(all=True)
            return any("no_such_module" in each.problem for each in stats)

        await eventually(told)
    finally:
        await pool.stop()
