"""The document's example and its verification plan, step by step, with real processes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from holdfast.facades.flatagents import create_backends
from holdfast.facades.flatagents.registration import HoldfastRegistrationBackend
from holdfast.facades.flatagents.work import HoldfastWorkPool
from holdfast.machines.run import WAITS
from tests.facades.test_leases import patiently
from tests.support.commands import program, start

EXAMPLE = Path(__file__).parents[2] / "examples" / "distributed_worker"
SEED = Path(__file__).parents[1] / "machines" / "seed"

TREE = {
    *("python/work_pool.py", "python/worker_registry.py", "python/hooks.py", "python/run_checker.py"),
    *("python/run_reaper.py", "python/run_worker.py", "python/seed_jobs.py", "config/parallelization_checker.yml"),
    *("config/stale_worker_reaper.yml", "config/job_worker.yml", "config/echo_processor.yml", "config/profiles.yml"),
    "README.md",
}


def test_the_tree_is_the_documents() -> None:
    assert all((EXAMPLE / name).is_file() for name in TREE)
    for name in ("job_worker.yml", "stale_worker_reaper.yml"):
        assert (EXAMPLE / "config" / name).read_text() == (SEED / name).read_text()


@pytest.mark.long
def test_the_verification_plan(tmp_path: Path) -> None:
    def run(file: str, *options: str) -> str:
        said = program(str(EXAMPLE / "python" / file), *options, "--data", str(tmp_path), cwd=tmp_path)
        assert said.code == 0, said.err
        return said.out

    def spawned() -> int:
        return int(json.loads(run("run_checker.py", "--max-workers", "3"))["spawned"])

    assert run("seed_jobs.py", "--count", "10") == "10 jobs added, 10 wait\n"
    registry, work = create_backends({"work_path": str(tmp_path / "worker.sqlite")})
    pool = work.pool("echo")
    assert isinstance(pool, HoldfastWorkPool)
    assert isinstance(registry, HoldfastRegistrationBackend)
    assert spawned() == 3
    patiently(lambda: len(pool.items("done")) >= 3)

    def all_done() -> bool:
        assert spawned() <= 3
        return len(pool.items("done")) == 10

    patiently(all_done)
    assert sorted(item.result["echoed"]["n"] for item in pool.items("done")) == list(range(10))
    assert {item.attempts for item in pool.items("done")} == {1}, "no duplicates, no races"

    patiently(lambda: not registry.list(status="active"))
    run("seed_jobs.py", "--count", "1", "--delay", "600")
    assert spawned() == 1
    patiently(lambda: pool.claimed() == 1)
    (worker,) = registry.list(status="active")
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    patiently(lambda: bool(registry.list(stale_threshold_seconds=0.3)))
    assert json.loads(run("run_reaper.py", "--stale-threshold", "0.3")) == {"reaped_count": 1}
    lost = registry.get(worker.worker_id)
    assert lost is not None
    assert (lost.status, pool.size()) == ("lost", 1)

    assert spawned() == 1, "the worker that was lost has left its place"
    patiently(lambda: pool.claimed() == 1)
    (again,) = registry.list(status="active")
    assert again.pid is not None
    os.kill(again.pid, signal.SIGTERM)
    patiently(lambda: pool.size() == 1)
    slow = pool.claim("by hand")
    assert slow is not None
    pool.complete(slow.id)
    run("seed_jobs.py", "--count", "1", "--fail")
    for _ in range(3):
        run("run_worker.py")
    assert [item.error for item in pool.items("poisoned")] == ["job 0 fails"]
    registry.close()


def test_sigterm_lets_the_worker_of_the_example_hand_its_job_back(tmp_path: Path) -> None:
    folder = EXAMPLE / "python"
    assert program(str(folder / "seed_jobs.py"), "--count", "1", "--delay", "600", "--data", str(tmp_path)).code == 0
    registry, work = create_backends({"work_path": str(tmp_path / "worker.sqlite")})
    pool = work.pool("echo")
    assert isinstance(registry, HoldfastRegistrationBackend)
    worker = start(str(folder / "run_worker.py"), "--data", str(tmp_path))
    patiently(lambda: pool.size() == 0)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == WAITS, "at once, though its echo sleeps"
    assert pool.size() == 1
    assert [each.status for each in registry.list()] == ["terminated"]
    registry.close()
