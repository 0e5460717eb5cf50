"""UA-01 to UA-11, and the states of runs: leases by owner strings, for code without an event loop."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import core_of
from holdfast.errors import BadSetting, IdempotencyConflict, UsageError
from holdfast.facades.universal_agent.runs import owner_id
from holdfast.facades.universal_agent.runtime_db import RuntimeDb, connect_runtime_db
from holdfast.facades.universal_agent.state import (
    acquire_run_lease,
    complete_run,
    fail_run,
    get_run,
    heartbeat_run_lease,
    is_cancel_requested,
    list_run_attempts,
    load_last_checkpoint,
    mark_run_cancelled,
    queue_run,
    release_run_lease,
    request_run_cancel,
    requeue_run,
    save_checkpoint,
)
from holdfast.kernel.brokers import find_lease
from holdfast.kernel.database import Transaction
from holdfast.kernel.leases import hold
from holdfast.kernel.retention import KeepRule, Pruner
from tests.support.apps import PATIENCE, happens

ROOT = Path(__file__).parents[2]
SHORT = 0.3  # seconds of a lease that a test lets run out


def status(conn: RuntimeDb, run_id: str = "run_1") -> str:
    run = get_run(conn, run_id)
    assert run is not None
    return str(run["status"])


def patiently(ask: Callable[[], bool]) -> None:
    """Ask until the answer is yes: the store's clock moves by itself."""
    done = threading.Event()
    for _ in range(round(PATIENCE * 50)):
        if ask():
            return
        done.wait(0.02)
    raise AssertionError("it did not happen")


def take_over(conn: RuntimeDb, owner: str, run_id: str = "run_1") -> None:
    patiently(lambda: acquire_run_lease(conn, run_id, owner, 60))


@pytest.fixture
def run(conn: RuntimeDb) -> RuntimeDb:
    queue_run(conn, "run_1", "Hello", "/srv/project")
    return conn


def test_ua_01_acquiring_a_queued_run_makes_it_running(run: RuntimeDb) -> None:
    assert acquire_run_lease(run, "run_1", "worker_1", 60) is True
    found = get_run(run, "run_1")
    assert found is not None
    until = datetime.strptime(found.pop("lease_expires_at"), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    assert 0 < (until - datetime.fromtimestamp(_now(), UTC)).total_seconds() <= 61
    assert found == {
        "run_id": "run_1",
        "status": "running",
        "last_job_prompt": "Hello",
        "workspace_dir": "/srv/project",
        "lease_owner": "worker_1",
        "attempts": 1,
    }


def _now() -> float:
    return time.clock_gettime(time.CLOCK_REALTIME)


def test_ua_02_a_live_lease_is_refused_to_others_and_to_its_owner(run: RuntimeDb) -> None:
    assert acquire_run_lease(run, "run_1", "worker_1", 60)
    assert acquire_run_lease(run, "run_1", "worker_2", 60) is False
    assert acquire_run_lease(run, "run_1", "worker_1", 60) is False


def test_a_lease_whose_grant_was_lost_is_to_be_had_again(run: RuntimeDb, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner was told that it could not be had."""
    monkeypatch.setattr(run.runs, "_transact", repeating(run.runs._transact))
    assert acquire_run_lease(run, "run_1", "worker_1", 60) is False
    assert acquire_run_lease(run, "run_1", "worker_1", 60) is True
    assert [each["status"] for each in list_run_attempts(run, "run_1")] == ["released"]


def repeating(transact: Any) -> Any:
    """As drivers do where an answer is lost: the first operation is run again, after it was committed."""
    asked: list[Any] = []

    async def lossy(operation: Any, /, *args: Any, **kwargs: Any) -> Any:
        asked.append(operation)
        if len(asked) == 1:
            await transact(operation, *args, **kwargs)
        return await transact(operation, *args, **kwargs)

    return lossy


def test_ua_03_a_lease_that_ran_out_is_taken_over_with_a_greater_token(run: RuntimeDb) -> None:
    """No worker is alive: who takes the run expires it."""
    assert acquire_run_lease(run, "run_1", "worker_1", SHORT)
    before = _token(run)
    take_over(run, "worker_2")
    assert _token(run) > before
    found = get_run(run, "run_1")
    assert found is not None
    assert (found["lease_owner"], found["attempts"]) == ("worker_2", 2)
    assert [each["status"] for each in list_run_attempts(run, "run_1")] == ["lost"]


def _token(conn: RuntimeDb) -> tuple[int, int]:
    seen = conn.call(conn.runs.look("run_1"))
    assert seen is not None
    assert seen.job is not None
    return seen.job.epoch, seen.job.token


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled", "cancel_requested", "unknown"])
def test_ua_04_what_cannot_be_had_is_refused_and_not_touched(run: RuntimeDb, end: str) -> None:
    if end == "cancelled":
        request_run_cancel(run, "run_1")
    elif end != "unknown":
        acquire_run_lease(run, "run_1", "worker_1", 60)
        if end == "completed":
            complete_run(run, "run_1", "worker_1")
        elif end == "failed":
            fail_run(run, "run_1", "worker_1", "no")
        else:
            request_run_cancel(run, "run_1")
    name = "run_2" if end == "unknown" else "run_1"
    before = get_run(run, name), _owners(run)
    assert acquire_run_lease(run, name, "worker_2", 60) is False
    assert (get_run(run, name), _owners(run)) == before


def _owners(conn: RuntimeDb) -> set[str]:
    return {worker.id for worker in conn.queue.sync(conn.queue.workers.list(all=True))}


def test_ua_05_of_fifty_threads_one_acquires_the_run(run: RuntimeDb) -> None:
    with ThreadPoolExecutor(50) as threads:
        won = list(threads.map(lambda n: acquire_run_lease(run, "run_1", f"worker_{n}", 60), range(50)))
    assert won.count(True) == 1
    found = get_run(run, "run_1")
    assert found is not None
    assert (found["lease_owner"], found["attempts"]) == (f"worker_{won.index(True)}", 1)


@pytest.mark.long
async def test_ua_05_of_eight_processes_one_acquires_the_run(run: RuntimeDb, url: str) -> None:
    racers = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.facades.racing", url, "run_1", f"worker_{n}"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        for n in range(8)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert (await racer.stdout.readline()).strip() == b"ready"
    said = [(await racer.communicate(b"go\n"))[0] for racer in racers]
    assert [each.strip() for each in said].count(b"True") == 1


def test_ua_06_a_heartbeat_moves_the_end_of_the_lease(run: RuntimeDb) -> None:
    acquire_run_lease(run, "run_1", "worker_1", 30)
    before = get_run(run, "run_1")
    assert heartbeat_run_lease(run, "run_1", "worker_1", 600) is True
    after = get_run(run, "run_1")
    assert before is not None
    assert after is not None
    assert after["lease_expires_at"] > before["lease_expires_at"]


def test_an_owner_may_heartbeat_and_release_from_another_connection(run: RuntimeDb, url: str) -> None:
    acquire_run_lease(run, "run_1", "worker_1", 60)
    with connect_runtime_db(url) as other:
        assert heartbeat_run_lease(other, "run_1", "worker_1", 60)
        release_run_lease(other, "run_1", "worker_1")
    assert status(run) == "queued"


def test_ua_07_a_heartbeat_of_another_changes_nothing(run: RuntimeDb) -> None:
    acquire_run_lease(run, "run_1", "worker_1", 60)
    before = get_run(run, "run_1")
    assert heartbeat_run_lease(run, "run_1", "worker_2", 600) is False
    assert heartbeat_run_lease(run, "run_9", "worker_1", 600) is False
    assert get_run(run, "run_1") == before


def test_ua_08_a_heartbeat_after_a_takeover_or_an_end_is_refused(run: RuntimeDb) -> None:
    acquire_run_lease(run, "run_1", "worker_1", SHORT)
    take_over(run, "worker_2")
    assert heartbeat_run_lease(run, "run_1", "worker_1", 60) is False
    complete_run(run, "run_1", "worker_2")
    assert heartbeat_run_lease(run, "run_1", "worker_2", 60) is False


async def test_a_heartbeat_beside_another_writer_is_no_loss(postgres_url: str) -> None:
    """Somebody has the lease's row locked for a moment: the heartbeat waits, and does not take it for lost."""
    conn, other = connect_runtime_db(postgres_url), connect_runtime_db(postgres_url)
    await conn.runs.queue("run_1", "Hello")
    assert await conn.runs.acquire("run_1", "worker_1", 60)
    seen = await conn.runs.look("run_1")
    assert seen is not None
    locked, free = asyncio.Event(), asyncio.Event()

    async def lock(tx: Transaction) -> None:
        held = await find_lease(tx, seen.alias.job, owner_id("worker_1"))
        assert held is not None
        await hold(tx, held.lease)
        locked.set()
        await free.wait()

    writing = asyncio.create_task((await core_of(other.queue).opened()).transact(lock))
    await happens(locked)
    beating = asyncio.create_task(conn.runs.heartbeat("run_1", "worker_1", 60))
    await asyncio.wait({beating}, timeout=0.5)
    free.set()
    await writing
    assert await beating is True
    await conn.aclose()
    await other.aclose()


def test_ua_09_a_release_frees_at_once_and_only_the_owners(run: RuntimeDb) -> None:
    acquire_run_lease(run, "run_1", "worker_1", 60)
    release_run_lease(run, "run_1", "worker_2")
    assert status(run) == "running"
    release_run_lease(run, "run_1", "worker_1")
    assert status(run) == "queued"
    assert acquire_run_lease(run, "run_1", "worker_2", 60) is True


def test_ua_10_the_same_id_is_the_same_run_and_no_other_request(run: RuntimeDb) -> None:
    queue_run(run, "run_1", "Hello", "/srv/project")
    with pytest.raises(IdempotencyConflict):
        queue_run(run, "run_1", "Hello again", "/srv/project")
    with pytest.raises(IdempotencyConflict):
        queue_run(run, "run_1", "Hello", "/srv/project", max_iterations=3)
    assert len(run.queue.sync(run.queue.jobs.list())) == 1


def test_ua_10_twenty_who_queue_one_run_at_once_have_one(conn: RuntimeDb) -> None:
    with ThreadPoolExecutor(20) as threads:
        found = list(threads.map(lambda _: queue_run(conn, "run_1", "Hello"), range(20)))
    assert {run["status"] for run in found} == {"queued"}
    assert len(conn.queue.sync(conn.queue.jobs.list())) == 1


def test_ua_11_queuing_again_never_revives_a_run(run: RuntimeDb) -> None:
    acquire_run_lease(run, "run_1", "worker_1", 60)
    queue_run(run, "run_1", "Hello", "/srv/project")
    assert status(run) == "running"
    complete_run(run, "run_1", "worker_1")
    queue_run(run, "run_1", "Hello", "/srv/project")
    assert status(run) == "completed"
    _prune(run)
    found = queue_run(run, "run_1", "Hello", "/srv/project")
    assert (found["status"], found["attempts"]) == ("pruned", 0)
    assert acquire_run_lease(run, "run_1", "worker_1", 60) is False


def _prune(conn: RuntimeDb) -> None:
    async def everything() -> None:
        database = await core_of(conn.queue).opened()
        async for _ in Pruner(database, KeepRule(0, 0, firm=True)).thoroughly():
            pass

    conn.call(everything())
    assert conn.queue.sync(conn.queue.jobs.list()) == []


def test_ua_16_a_late_end_is_refused(run: RuntimeDb) -> None:
    acquire_run_lease(run, "run_1", "worker_1", SHORT)
    take_over(run, "worker_2")
    assert complete_run(run, "run_1", "worker_1") is False
    assert fail_run(run, "run_1", "worker_1", "late") is False
    assert status(run) == "running"
    assert complete_run(run, "run_1", "worker_2", {"ok": True}) is True
    assert status(run) == "completed"


def test_ua_18_a_failure_has_its_class(run: RuntimeDb) -> None:
    acquire_run_lease(run, "run_1", "worker_1", 60)
    assert fail_run(run, "run_1", "worker_1", "it does not compile")
    assert status(run) == "failed"
    (attempt,) = list_run_attempts(run, "run_1")
    assert (attempt["failure_class"], attempt["failure_reason"]) == ("run_handler_failed", "it does not compile")
    assert requeue_run(run, "run_1")
    acquire_run_lease(run, "run_1", "worker_1", 60)
    assert fail_run(run, "run_1", "worker_1", "nobody answers", "provider_down")
    assert [each["failure_class"] for each in list_run_attempts(run, "run_1")] == [
        "run_handler_failed",
        "provider_down",
    ]


def test_ua_19_attempts_are_numbered_without_gaps_across_requeues(run: RuntimeDb) -> None:
    acquire_run_lease(run, "run_1", "worker_1", SHORT)
    take_over(run, "worker_2")
    assert requeue_run(run, "run_1") is False
    fail_run(run, "run_1", "worker_2", "no")
    assert requeue_run(run, "run_1") is True
    acquire_run_lease(run, "run_1", "worker_3", 60)
    complete_run(run, "run_1", "worker_3")
    requeue_run(run, "run_1")
    acquire_run_lease(run, "run_1", "worker_4", 60)
    complete_run(run, "run_1", "worker_4")
    found = [(each["attempt_number"], each["status"], each["canonical"]) for each in list_run_attempts(run, "run_1")]
    assert found == [(1, "lost", False), (2, "failed", False), (3, "completed", False), (4, "completed", True)]
    run_now = get_run(run, "run_1")
    assert run_now is not None
    assert (run_now["attempts"], run_now["status"]) == (4, "completed")


def test_ua_20_a_run_whose_leases_are_lost_too_often_needs_a_review(run: RuntimeDb) -> None:
    for n in range(3):
        patiently(lambda n=n: acquire_run_lease(run, "run_1", f"worker_{n}", SHORT))  # type: ignore[misc]

    def poisoned() -> bool:
        assert acquire_run_lease(run, "run_1", "worker_9", 60) is False
        return status(run) == "needs_review"

    patiently(poisoned)
    assert len(list_run_attempts(run, "run_1")) == 3


def test_ua_21_a_queued_run_is_cancelled_at_once(run: RuntimeDb) -> None:
    assert request_run_cancel(run, "run_1", "not needed") is True
    assert (status(run), is_cancel_requested(run, "run_1")) == ("cancelled", True)
    assert request_run_cancel(run, "run_1") is False
    assert request_run_cancel(run, "unknown") is False


def test_ua_22_a_running_run_is_asked_and_ends_once(run: RuntimeDb) -> None:
    acquire_run_lease(run, "run_1", "worker_1", 60)
    assert mark_run_cancelled(run, "run_1") is False
    assert is_cancel_requested(run, "run_1") is False
    request_run_cancel(run, "run_1")
    assert (status(run), is_cancel_requested(run, "run_1")) == ("cancel_requested", True)
    assert heartbeat_run_lease(run, "run_1", "worker_1", 60) is True
    assert mark_run_cancelled(run, "run_1") is True
    assert status(run) == "cancelled"
    assert complete_run(run, "run_1", "worker_1") is False
    assert status(run) == "cancelled"


def test_ua_23_a_cancelled_run_of_a_dead_owner_ends_when_its_lease_does(run: RuntimeDb) -> None:
    acquire_run_lease(run, "run_1", "worker_1", SHORT)
    request_run_cancel(run, "run_1")

    def ended() -> bool:
        assert acquire_run_lease(run, "run_1", "worker_2", 60) is False
        return status(run) == "cancelled"

    patiently(ended)


def test_ua_30_a_checkpoint_outlives_its_attempt_and_its_job(run: RuntimeDb) -> None:
    acquire_run_lease(run, "run_1", "worker_1", SHORT)
    save_checkpoint(run, "run_1", "step_1", "step", {"n": 1}, lease_owner="worker_1")
    take_over(run, "worker_2")
    last = load_last_checkpoint(run, "run_1")
    assert last is not None
    assert (last["number"], last["step_id"], last["state_snapshot"]) == (1, "step_1", {"n": 1})
    save_checkpoint(run, "run_1", "step_2", "step", {"n": 2}, cursor="here", lease_owner="worker_2")
    fail_run(run, "run_1", "worker_2", "no")
    requeue_run(run, "run_1")
    last = load_last_checkpoint(run, "run_1")
    assert last is not None
    assert (last["number"], last["step_id"], last["cursor"]) == (2, "step_2", "here")
    assert last == run.call(run.runs.checkpoints("run_1"))[-1]
    assert load_last_checkpoint(run, "run_2") is None


def test_ua_30_every_life_of_a_run_starts_after_the_last_checkpoint(run: RuntimeDb) -> None:
    """Four lives: the second takes a dead owner's run over, the others come of a requeue. No step is repeated."""
    done: list[int] = []
    for life in range(4):
        owner = f"worker_{life}"
        if life == 1:
            take_over(run, owner)
        else:
            assert acquire_run_lease(run, "run_1", owner, SHORT if life == 0 else 60)
        last = load_last_checkpoint(run, "run_1")
        assert (0 if last is None else last["number"]) == len(done), "they are numbered without gaps"
        begun = 0 if last is None else last["state_snapshot"]["step"]
        for step in (begun + 1, begun + 2):
            done.append(step)
            save_checkpoint(run, "run_1", f"step_{step}", "step", {"step": step}, lease_owner=owner)
        if life > 0:
            assert fail_run(run, "run_1", owner, "no")
            requeue_run(run, "run_1")
    assert done == [1, 2, 3, 4, 5, 6, 7, 8]
    stored = run.call(run.runs.checkpoints("run_1"))
    assert [(each["number"], each["step_id"]) for each in stored] == [(n, f"step_{n}") for n in done]
    assert load_last_checkpoint(run, "run_1") == stored[-1]


def test_ua_16_only_who_holds_a_run_saves_a_checkpoint_of_it(run: RuntimeDb) -> None:
    with pytest.raises(UsageError, match="worker_1 does not hold run run_1"):
        save_checkpoint(run, "run_1", "step_1", "step", {"n": 0}, lease_owner="worker_1")
    acquire_run_lease(run, "run_1", "worker_1", SHORT)
    take_over(run, "worker_2")
    with pytest.raises(UsageError, match="worker_1 does not hold run run_1"):
        save_checkpoint(run, "run_1", "step_1", "step", {"n": 1}, lease_owner="worker_1")
    with pytest.raises(UsageError, match="Give lease_owner"):
        save_checkpoint(run, "run_1", "step_1", "step", {"n": 2})
    assert load_last_checkpoint(run, "run_1") is None


@pytest.mark.parametrize(
    "ttl", [0, -1, 1e-9, 365 * 86_400, float("nan"), float("inf"), "60", None, True, pytest.param(10**400, id="huge")]
)
def test_a_lease_that_never_or_always_lasts_is_refused(run: RuntimeDb, ttl: Any) -> None:
    with pytest.raises(BadSetting, match="lease_ceiling"):
        acquire_run_lease(run, "run_1", "worker_1", ttl)
    assert status(run) == "queued"
    acquire_run_lease(run, "run_1", "worker_1", 60)
    with pytest.raises(BadSetting, match="lease_ceiling"):
        heartbeat_run_lease(run, "run_1", "worker_1", ttl)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda conn: queue_run(conn, "a/b", "Hello"), "run_id"),
        (lambda conn: queue_run(conn, "..", "Hello"), "run_id"),
        (lambda conn: queue_run(conn, "run_2", ""), "prompt"),
        (lambda conn: queue_run(conn, "run_2", "Hello", max_iterations=0), "max_iterations"),
        (lambda conn: queue_run(conn, "run_2", "Hello", workspace_dir="a\0b"), "workspace_dir"),
        (lambda conn: queue_run(conn, "run_2", "Hello", workspace_dir="a/../.."), "workspace_dir"),
        (lambda conn: acquire_run_lease(conn, "run_1", "w" * 10_000, 60), "lease_owner"),
        (lambda conn: acquire_run_lease(conn, "run_1", "", 60), "lease_owner"),
        (lambda conn: acquire_run_lease(conn, "run_1", "\ud800", 60), "lease_owner"),
        (lambda conn: complete_run(conn, "run_1", "\ud800"), "lease_owner"),
        (lambda conn: queue_run(conn, "run_2", "Hello", workspace_dir="\ud800"), "workspace_dir"),
        (lambda conn: get_run(object(), "run_1"), "connect_runtime_db"),  # type: ignore[arg-type]
    ],
)
def test_bad_input_is_refused_by_name(run: RuntimeDb, call: Callable[[Any], Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        call(run)


def test_a_closed_connection_says_so(run: RuntimeDb) -> None:
    run.close()
    with pytest.raises(UsageError, match="closed"):
        get_run(run, "run_1")
    run.close()


async def test_async_code_may_await_the_same_calls(url: str) -> None:
    conn = connect_runtime_db(url)
    try:
        await conn.runs.queue("run_1", "Hello")
        assert await conn.runs.acquire("run_1", "worker_1", 60)
        assert acquire_run_lease(conn, "run_1", "worker_2", 60) is False  # and the others, on a loop
        assert await conn.runs.complete("run_1", "worker_1")
    finally:
        await conn.aclose()
