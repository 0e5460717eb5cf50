"""UA-12 to UA-29: workers and their pool, in this process, over runs of the database."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.durations import microseconds
from holdfast.errors import BadSetting, GatewayUnavailable, LeaseLost, UsageError
from holdfast.facades.universal_agent import handlers
from holdfast.facades.universal_agent.gateway import GatewayRequest, InProcessGateway
from holdfast.facades.universal_agent.runs import declare
from holdfast.facades.universal_agent.runtime_db import AGENT, RuntimeDb, connect_runtime_db
from holdfast.facades.universal_agent.state import save_checkpoint
from holdfast.facades.universal_agent.worker_pool import PoolConfig, Worker, WorkerConfig, WorkerPoolManager
from holdfast.http import Principal, web
from holdfast.kernel import brokers
from holdfast.settings import Settings
from holdfast.testing import Labs, Script, call, say
from holdfast.workers.context import JobContext
from tests.http.conftest import Serve
from tests.support.agents import redeclare
from tests.support.apps import PATIENCE, eventually, happens

ROOT = Path(__file__).parents[2]
FAST = WorkerConfig(lease_ttl_seconds=3, heartbeat_interval_seconds=0.5, poll_interval_seconds=0.1)


@pytest.fixture(autouse=True)
def own_folder(in_own_folder: Path) -> Path:
    return in_own_folder


@pytest.fixture
async def runs(url: str) -> AsyncIterator[RuntimeDb]:
    """A connection for the test itself."""
    conn = connect_runtime_db(url)
    yield conn
    await conn.aclose()


@asynccontextmanager
async def pool_of(
    url: str, handler: Any, *, config: WorkerConfig = FAST, **options: Any
) -> AsyncIterator[WorkerPoolManager]:
    pool = WorkerPoolManager(PoolConfig(db_path=url, **options), config, run_handler=handler)
    await pool.start()
    try:
        yield pool
    finally:
        await pool.stop(drain=False)


async def until_status(conn: RuntimeDb, run_id: str, *wanted: str) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        run = await conn.runs.get(run_id)
        return run if run is not None and run["status"] in wanted else None

    return await eventually(look)


async def until(ask: Callable[[], bool]) -> None:
    async def look() -> bool:
        return ask()

    await eventually(look)


class Held:
    """A handler whose runs last until they are let go."""

    def __init__(self) -> None:
        self.began: Counter[str] = Counter()
        self.begun = asyncio.Event()
        self.free = asyncio.Event()
        self.cancelled: list[str] = []

    async def __call__(self, run_id: str, workspace_dir: str) -> bool:
        self.began[run_id] += 1
        self.begun.set()
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.cancelled.append(run_id)
            raise
        return True


async def fine(run_id: str, workspace_dir: str) -> bool:
    return True


async def test_ua_12_a_pool_has_its_least_workers_and_replaces_one_that_died(url: str, runs: RuntimeDb) -> None:
    async with pool_of(url, fine, min_workers=2) as pool:
        stats = pool.get_pool_stats()
        assert (stats["total_workers"], stats["idle_workers"]) == (2, 2)
        rows = await runs.queue.workers.list()
        assert pool.workers.keys() <= {row.id for row in rows}
        first, died = next(iter(pool.workers.items()))
        assert isinstance(died, Worker)
        assert died._life is not None
        died._life.cancel()  # it says goodbye to nobody
        await until(lambda: len(pool.workers) == 2 and first not in pool.workers)
    assert pool.get_pool_stats()["total_workers"] == 0


async def test_ua_13_one_run_is_handled_once_by_one_of_three_workers(url: str, runs: RuntimeDb) -> None:
    held = Held()
    async with pool_of(url, held, min_workers=3) as pool:
        await runs.runs.queue("run_1", "Hello")
        await happens(held.begun)
        held.free.set()
        await until_status(runs, "run_1", "completed")
        await until(lambda: pool.get_pool_stats()["total_completed"] == 1)
    assert held.began == {"run_1": 1}


async def test_ua_14_a_hundred_runs_are_handled_once_each_the_oldest_first(url: str, runs: RuntimeDb) -> None:
    order: list[int] = []
    for n in range(100):
        await runs.runs.queue(f"run_{n}", "Hello")

    async def handler(run_id: str, workspace_dir: str) -> bool:
        order.append(int(run_id.removeprefix("run_")))
        return True

    patient = replace(FAST, lease_ttl_seconds=60)  # a worker that the machine keeps waiting loses no lease
    async with pool_of(url, handler, config=patient, min_workers=4) as pool:
        await until(lambda: pool.get_pool_stats()["total_completed"] == 100)
    assert sorted(order) == list(range(100))
    taken: dict[str, list[int]] = {}
    for n in order:
        (attempt,) = await runs.runs.attempts(f"run_{n}")
        taken.setdefault(attempt["lease_owner"], []).append(n)
    assert all(own == sorted(own) for own in taken.values())  # how fast each worker is does not matter


async def test_ua_17_a_lost_lease_cancels_the_handler_and_its_end_is_refused(url: str, runs: RuntimeDb) -> None:
    """No later than the first heartbeat that can know of it; one may be under way. UA-16 too: what the first worker
    would have written is not."""
    held, other, told = Held(), Held(), list[str]()

    async def noting(run_id: str, workspace_dir: str) -> bool:
        try:
            return await held(run_id, workspace_dir)
        finally:
            told.append("cancelled")

    worker = Worker(FAST, runs, noting)
    await worker.start()
    assert worker._worker is not None
    worker._worker._ports.events.listen(lambda _: told.append("heartbeat"), ["heartbeat.done"])
    try:
        await runs.runs.queue("run_1", "Hello")
        await happens(held.begun)
        assert (worker.status, worker.current_run, worker.is_idle()) == ("processing", "run_1", False)
        second = Worker(WorkerConfig("worker_2", 3, 0.5, 0.1), runs, other)
        await second.start()
        await _give_up_leases(runs)
        before = len(told)
        try:
            await happens(other.begun)
            await until(lambda: held.cancelled == ["run_1"])
            assert told[before:].index("cancelled") <= 2
            await until(lambda: worker.lost == 1 and worker.is_idle())
            run = await runs.runs.get("run_1")
            assert run is not None
            assert (run["status"], run["lease_owner"]) == ("running", "worker_2")
            other.free.set()
            await until_status(runs, "run_1", "completed")
        finally:
            await second.stop()
    finally:
        await worker.stop()
    assert (worker.completed, worker.status) == (0, "stopped")


async def test_ua_15_a_run_of_a_killed_worker_is_completed_once_its_lease_is_over(labs: Labs) -> None:
    """By the clock of the lab: no later than the time of the lease, whatever the poll interval is."""
    config = WorkerConfig("worker_1", 30, 10, 5)
    hf = Holdfast("sqlite:///never.db", settings=config.settings(Settings()))
    begun: list[str] = []

    async def play(
        ctx: JobContext, run_id: str, prompt: str, workspace_dir: str | None, max_iterations: int | None
    ) -> str:
        begun.append(run_id)
        return "done"

    declared = declare(hf, play)
    lab = await labs.use(hf)
    lab.crash(before="complete")
    job = await declared.enqueue("run_1", "Hello", None, None)
    killed_at = lab.clock.wall_us()
    await lab.drain()
    assert lab.clock.wall_us() - killed_at == microseconds("30s")
    assert (await job.refresh()).state == "succeeded"
    assert (begun, [each.outcome for each in await hf.jobs.attempts(job.id)]) == (["run_1"] * 2, ["lost", "succeeded"])


async def test_ua_16_a_handler_that_lost_its_run_saves_no_checkpoint(url: str, runs: RuntimeDb) -> None:
    """By the lease of its attempt, although another worker holds the run."""
    refused: asyncio.Future[type[BaseException]] = asyncio.get_running_loop().create_future()
    begun, taken, free = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(run_id: str, workspace_dir: str) -> bool:
        save_checkpoint(runs, run_id, "step_1", "step", {"by": "first"})
        begun.set()
        try:
            await free.wait()
        finally:
            await taken.wait()
            try:
                save_checkpoint(runs, run_id, "step_2", "step", {"by": "too late"})
            except LeaseLost as problem:
                refused.set_result(type(problem))
        return True

    async def successor(run_id: str, workspace_dir: str) -> bool:
        taken.set()
        await free.wait()
        return True

    workers = [Worker(WorkerConfig("worker_1", 3, 0.5, 0.1), runs, slow)]
    await workers[0].start()
    await runs.runs.queue("run_1", "Hello")
    await happens(begun)
    workers.append(Worker(WorkerConfig("worker_2", 3, 0.5, 0.1), runs, successor))
    await workers[1].start()
    await _give_up_leases(runs)
    assert await asyncio.wait_for(refused, PATIENCE) is LeaseLost
    assert [each["state_snapshot"] for each in await runs.runs.checkpoints("run_1")] == [{"by": "first"}]
    free.set()
    for worker in workers:
        await worker.stop()


async def _give_up_leases(conn: RuntimeDb) -> None:
    """As if the worker had been silent: its lease is taken back by the store, and it does not know yet."""
    seen = await conn.runs.look("run_1")
    assert seen is not None
    assert seen.job is not None
    assert seen.job.worker is not None
    database = await core_of(conn.queue).opened()
    await database.transact(brokers.release_by_worker, seen.job.worker, charge=True)


async def test_ua_18_what_a_handler_says_and_raises(
    url: str, runs: RuntimeDb, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(run_id: str, workspace_dir: str) -> bool:
        if run_id == "raises":
            raise ZeroDivisionError("the document's sum")
        return False

    async with pool_of(url, handler) as pool:
        with caplog.at_level(logging.ERROR, "holdfast.universal_agent"):
            for name in ("says_no", "raises"):
                await runs.runs.queue(name, "Hello")
                await until_status(runs, name, "failed")
        await until(lambda: pool.get_pool_stats()["total_failed"] == 2)
    found = {name: (await runs.runs.attempts(name))[-1]["failure_class"] for name in ("says_no", "raises")}
    assert found == {"says_no": "run_handler_failed", "raises": "worker_exception"}
    assert any(record.exc_info for record in caplog.records)
    assert len(await runs.runs.attempts("raises")) == 1


@pytest.mark.both
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "problem",
    [
        SystemExit(3),
        asyncio.CancelledError("a task of its own was cancelled"),
        LeaseLost("another job", "1.1"),
        BaseExceptionGroup("several", [asyncio.CancelledError()]),
    ],
    ids=lambda problem: type(problem).__name__,
)
async def test_ua_18_what_ends_a_handler_by_its_own_hand_is_its_failure(
    url: str, runs: RuntimeDb, problem: BaseException
) -> None:
    """It looks like the end of the attempt or of the process, and is not: the run is not tried again."""
    calls: list[str] = []

    async def handler(run_id: str, workspace_dir: str) -> bool:
        calls.append(run_id)
        raise problem

    async with pool_of(url, handler) as pool:
        for n in range(2):
            await runs.runs.queue(f"run_{n}", "Hello")
            await until_status(runs, f"run_{n}", "failed", "needs_review")
            (attempt,) = await runs.runs.attempts(f"run_{n}")
            assert (attempt["status"], attempt["failure_class"]) == ("failed", "worker_exception")
        await until(lambda: pool.get_pool_stats()["total_failed"] == 2)
    assert calls == ["run_0", "run_1"]


async def test_a_workspace_that_cannot_be_had_fails_the_run_at_once(
    url: str, runs: RuntimeDb, own_folder: Path
) -> None:
    """A path that is relative and leaves the base is refused; what shows only in its place fails the run."""
    with pytest.raises(UsageError, match=r"workspace_dir '\.\./outside' is not inside"):
        await runs.runs.queue("run_0", "Hello", "../outside")
    (own_folder / "AGENT_RUN_WORKSPACES").mkdir()
    (own_folder / "AGENT_RUN_WORKSPACES" / "link").symlink_to(own_folder.parent)
    (own_folder / "file").touch()
    async with pool_of(url, fine):
        for n, given in enumerate(("link/elsewhere", str(own_folder / "file" / "below"))):
            await runs.runs.queue(f"run_{n}", "Hello", given)
            await until_status(runs, f"run_{n}", "failed")
            (attempt,) = await runs.runs.attempts(f"run_{n}")
            assert attempt["failure_class"] == "worker_exception"


async def test_ua_19_an_attempt_has_one_number_everywhere(url: str, runs: RuntimeDb, own_folder: Path) -> None:
    """That of a run that was handed back, and of one that was queued again, too."""
    folder = own_folder / "project"
    await runs.runs.queue("run_1", "Hello", str(folder))
    assert await runs.runs.acquire("run_1", "somebody", 60)
    await runs.runs.release("run_1", "somebody")
    async with pool_of(url, fine) as pool:
        await until_status(runs, "run_1", "completed")
        await until(lambda: pool.get_pool_stats()["total_completed"] == 1)
        assert await runs.runs.requeue("run_1")
        await until(lambda: pool.get_pool_stats()["total_completed"] == 2)
    found = await runs.runs.attempts("run_1")
    assert [(each["attempt_number"], each["status"]) for each in found] == [
        (1, "released"),
        (2, "completed"),
        (3, "completed"),
    ]
    assert (await runs.runs.get("run_1") or {})["attempts"] == 3
    notes = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("attempts/*/attempt_meta.json")}
    assert {name: note["attempt"] for name, note in notes.items()} == {"002": 2, "003": 3}


@pytest.mark.both
async def test_an_owner_and_a_worker_may_have_one_name(url: str, runs: RuntimeDb) -> None:
    handler = Held()
    for n in range(3):
        await runs.runs.queue(f"run_{n}", "Hello")
    assert await runs.runs.acquire("run_0", "worker_1", 600)
    assert await runs.runs.acquire("run_1", "worker_1", 600)
    assert await runs.runs.complete("run_1", "worker_1")
    worker = Worker(replace(FAST, worker_id="worker_1"), runs, handler)
    await worker.start()
    await happens(handler.begun)
    assert worker.current_run == "run_2"
    await runs.runs.queue("run_3", "Hello")
    assert await runs.runs.acquire("run_3", "worker_1", 600)
    assert not await runs.runs.acquire("run_2", "worker_1", 600)
    for n in (0, 2, 3):
        assert (await runs.runs.get(f"run_{n}") or {})["lease_owner"] == "worker_1"
        assert await runs.runs.heartbeat(f"run_{n}", "worker_1", 600)
    assert [each["lease_owner"] for each in await runs.runs.attempts("run_1")] == ["worker_1"]
    assert await runs.runs.release("run_0", "worker_1")
    assert await runs.runs.complete("run_3", "worker_1")
    handler.free.set()
    await until_status(runs, "run_0", "completed")
    await worker.stop()
    assert handler.began == {"run_0": 1, "run_2": 1}


async def test_a_pool_that_starts_after_a_crash_has_its_workers(url: str, runs: RuntimeDb) -> None:
    """Those of the dead process are still written down as alive, and do not count."""
    dead = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.facades.dying", url), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert dead.stdout is not None
    assert (await dead.stdout.readline()).strip() == b"up"
    dead.kill()
    await dead.wait()
    async with pool_of(url, fine, min_workers=2, max_workers=2) as pool:
        assert pool.get_pool_stats()["total_workers"] == 2


async def test_a_gateway_that_is_not_there_fails_the_run_without_another_try(url: str, runs: RuntimeDb) -> None:
    config = WorkerConfig(gateway_url="http://127.0.0.1:9", poll_interval_seconds=0.1)
    async with pool_of(url, None, config=config):
        await runs.runs.queue("run_1", "Hello")
        await until_status(runs, "run_1", "failed")
    (attempt,) = await runs.runs.attempts("run_1")
    assert attempt["failure_class"] == "worker_exception"
    assert GatewayUnavailable.__name__ in attempt["failure_reason"]


async def test_ua_22_a_handler_sees_that_its_run_is_cancelled(url: str, runs: RuntimeDb) -> None:
    held = Held()
    async with pool_of(url, held) as pool:
        await runs.runs.queue("run_1", "Hello")
        await happens(held.begun)
        assert await runs.runs.request_cancel("run_1", "enough")
        await until_status(runs, "run_1", "cancelled")
        await until(lambda: pool.get_pool_stats()["idle_workers"] == 1)
    assert held.cancelled == ["run_1"]


async def test_ua_24_a_draining_worker_finishes_its_run_and_takes_no_other(url: str, runs: RuntimeDb) -> None:
    held = Held()
    worker = Worker(WorkerConfig("worker_001", poll_interval_seconds=0), runs, held)
    assert worker.status == "stopped"
    await worker.start()
    assert worker.is_idle()
    await runs.runs.queue("run_1", "Hello")
    await happens(held.begun)
    await runs.runs.queue("run_2", "Hello")
    stopping = asyncio.create_task(worker.stop(drain=True))
    await until(lambda: worker.status == "draining")
    held.free.set()
    await stopping
    assert (worker.status, worker.completed) == ("stopped", 1)
    statuses = [(await runs.runs.get(name) or {})["status"] for name in ("run_1", "run_2")]
    assert statuses == ["completed", "queued"]


async def test_ua_25_a_worker_that_does_not_drain_hands_its_run_back(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DRAIN_GRACE", "1h")  # who waited for the run would wait for that
    held, conn = Held(), connect_runtime_db(url)
    worker = Worker(FAST, conn, held)
    await worker.start()
    await conn.runs.queue("run_1", "Hello")
    await happens(held.begun)
    await worker.stop(drain=False)
    assert held.cancelled == ["run_1"]
    assert await conn.runs.acquire("run_1", "worker_2", 60)
    await conn.aclose()


async def test_ua_26_ua_27_ua_28_a_pool_grows_and_shrinks_between_its_limits(url: str, runs: RuntimeDb) -> None:
    held = Held()
    sizes: list[int] = []
    async with pool_of(
        url, held, min_workers=1, max_workers=3, scale_up_threshold=2, scale_down_idle_seconds=0.5
    ) as pool:
        for n in range(6):
            await runs.runs.queue(f"run_{n}", "Hello")

        def grown() -> bool:
            sizes.append(len(pool.workers))
            return bool(pool.get_pool_stats()["processing_workers"] == 3)

        await until(grown)
        assert max(sizes) <= 3
        held.free.set()
        await until(lambda: pool.get_pool_stats()["total_completed"] == 6)

        def shrunk() -> bool:
            sizes.append(len(pool.workers))
            return len(pool.workers) == 1

        await until(shrunk)
        assert (min(sizes), max(sizes)) == (1, 3)
        stats = pool.get_pool_stats()
        assert (stats["total_completed"], stats["total_workers"], stats["idle_workers"]) == (6, 1, 1)
        (only,) = pool.workers.values()
        assert only.idle_duration > 0
    assert set(held.began.values()) == {1}


async def test_a_pool_says_what_it_has_as_the_document_prints_it(url: str) -> None:
    held = Held()
    async with pool_of(url, held) as pool:
        await pool.conn.runs.queue("job_123", "Hello")
        await happens(held.begun)
        (name,) = pool.workers
        assert pool.get_pool_stats() == {
            "total_workers": 1,
            "idle_workers": 0,
            "processing_workers": 1,
            "total_completed": 0,
            "total_failed": 0,
            "workers": {name: {"status": "processing", "current_run": "job_123", "completed": 0, "failed": 0}},
        }
        assert name.startswith("worker_")


async def test_the_default_handler_runs_an_agent_in_the_runs_workspace(
    answering: Holdfast, url: str, tmp_path: Path
) -> None:
    """`max_iterations` limits its turns, the session's user is the run."""
    seen: list[Any] = []

    @answering.tool
    def look(ctx_dir: str) -> str:
        """Look around."""
        seen.append(ctx_dir)
        return "nothing"

    answering.script("working", Script(*[call("look", ctx_dir="here")] * 4, say("done")))
    redeclare(answering, AGENT, model="scripted:working", tools=[look])
    conn = connect_runtime_db(answering)
    worker = Worker(FAST, conn, WorkerPoolManager()._default_run_handler)
    await worker.start()
    try:
        await conn.runs.queue("whole", "Look around", str(tmp_path / "project"), max_iterations=10)
        await until_status(conn, "whole", "completed", "failed")
        await conn.runs.queue("short", "Look around", str(tmp_path / "other"), max_iterations=2)
        await until_status(conn, "short", "completed", "failed")
    finally:
        await worker.stop()
        await conn.aclose()
    session = await answering.sessions.get("project")
    assert session.metadata["user_id"] == "worker_whole"
    assert (worker.completed, worker.failed, len(seen)) == (1, 1, 4 + 2)
    assert (tmp_path / "project" / "attempts" / "001" / "attempt_meta.json").exists()


async def test_ua_30_a_run_that_is_taken_over_finds_its_turn_again(answering: Holdfast, tmp_path: Path) -> None:
    """The document's handler, unchanged: the second worker does not ask the model again."""
    conn = connect_runtime_db(answering)
    first, hang = asyncio.Event(), [True]
    runs_of: list[str] = []

    async def handler(run_id: str, workspace_dir: str) -> bool:
        gateway = InProcessGateway()
        session = await gateway.create_session(user_id="custom", workspace_dir=workspace_dir)
        result = await gateway.run_query(session, GatewayRequest(user_input="Hello"))
        runs_of.append(str(result.trace_id))
        if hang.pop() if hang else False:
            first.set()
            await asyncio.Event().wait()
        return result.success

    workers = [Worker(WorkerConfig(f"worker_{n}", 3, 0.5, 0.1), conn, handler) for n in range(2)]
    await workers[0].start()
    try:
        await conn.runs.queue("run_1", "Hello", str(tmp_path / "project"))
        await happens(first)
        await workers[1].start()
        await _give_up_leases(conn)
        await until_status(conn, "run_1", "completed")
    finally:
        for worker in workers:
            await worker.stop(drain=False)
        await conn.aclose()
    assert len(runs_of) == 2
    assert len(set(runs_of)) == 1


async def test_the_default_handler_asks_the_gateway_of_its_configuration(
    answering: Holdfast, tmp_path: Path, serve: Serve, runs: RuntimeDb
) -> None:
    gateway = InProcessGateway(answering, workspace_base=tmp_path / "there")
    port = await serve(web(answering, who=lambda _: Principal("local", "operator"), gateway=gateway))
    config = WorkerConfig("worker_1", 3, 0.5, 0.1, gateway_url=f"http://127.0.0.1:{port}/gateway")
    worker = Worker(config, runs, WorkerPoolManager(worker_config=config)._default_run_handler)
    await worker.start()
    try:
        await runs.runs.queue("run_1", "Hello", str(tmp_path / "project"))
        await until_status(runs, "run_1", "completed")
    finally:
        await worker.stop()
    assert (await answering.sessions.get("project")).runs == 1


@pytest.mark.parametrize("given", [True, False])
async def test_a_gateway_that_keeps_workspaces_itself_plays_the_runs_of_a_pool(  # noqa: PLR0917  what it needs
    answering: Holdfast,
    tmp_path: Path,
    serve: Serve,
    runs: RuntimeDb,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    given: bool,
) -> None:
    """As `holdfast serve --gateway universal_agent` is one: it takes no folder that a client names."""
    monkeypatch.chdir(tmp_path)
    port = await serve(web(answering, gateway="universal_agent"))
    token = (await answering.access.tokens.create("a pool", role="operator")).secret
    url = f"http://127.0.0.1:{port}/gateway"
    config = WorkerConfig("worker_1", 3, 0.5, 0.1, gateway_url=url, gateway_token=token)
    worker = Worker(config, runs, WorkerPoolManager(worker_config=config)._default_run_handler)
    await worker.start()
    try:
        await runs.runs.queue("run_1", "Hello", str(tmp_path / "project") if given else None)
        await until_status(runs, "run_1", "completed")
    finally:
        await worker.stop()
    assert (await answering.sessions.get("run_1")).runs == 1
    kept = str(tmp_path / "AGENT_RUN_WORKSPACES" / "run_1")
    assert (kept in caplog.text) == given  # without one both derive the same folder here


@pytest.mark.parametrize("named_by", ["config", "environment"])
async def test_a_pool_logs_in_at_its_gateway(  # noqa: PLR0917  what it needs
    answering: Holdfast,
    tmp_path: Path,
    serve: Serve,
    runs: RuntimeDb,
    monkeypatch: pytest.MonkeyPatch,
    named_by: str,
) -> None:
    gateway = InProcessGateway(answering, workspace_base=tmp_path / "there")
    port = await serve(web(answering, gateway=gateway))
    token = (await answering.access.tokens.create("a pool", role="operator")).secret
    config = WorkerConfig("worker_1", 3, 0.5, 0.1, gateway_url=f"http://127.0.0.1:{port}/gateway")
    stranger = Worker(config, runs, WorkerPoolManager(worker_config=config)._default_run_handler)
    await stranger.start()
    await runs.runs.queue("run_1", "Hello", str(tmp_path / "project"))
    await until_status(runs, "run_1", "failed")
    await stranger.stop()
    if named_by == "config":
        config = replace(config, gateway_token=token)
        assert token not in repr(config)
    else:
        monkeypatch.setenv("HOLDFAST_GATEWAY_TOKEN", token)
    worker = Worker(config, runs, WorkerPoolManager(worker_config=config)._default_run_handler)
    await worker.start()
    try:
        await runs.runs.queue("run_2", "Hello", str(tmp_path / "project"))
        await until_status(runs, "run_2", "completed")
    finally:
        await worker.stop()


async def test_a_handler_that_ignores_its_cancellation_holds_nobody_up(url: str, runs: RuntimeDb) -> None:
    """What it says later is dropped, and another worker has the run."""
    begun, free = asyncio.Event(), asyncio.Event()

    async def stubborn(run_id: str, workspace_dir: str) -> bool:
        begun.set()
        while not free.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await free.wait()
        return True

    worker = Worker(FAST, runs, stubborn)
    await worker.start()
    await runs.runs.queue("run_1", "Hello")
    await happens(begun)
    await worker.stop(drain=False)

    async def taken() -> bool:
        return await runs.runs.acquire("run_1", "worker_2", 60)

    await eventually(taken)
    free.set()
    assert (await runs.runs.get("run_1") or {})["lease_owner"] == "worker_2"


async def test_two_managers_share_one_pool(url: str, runs: RuntimeDb) -> None:
    held = Held()
    limits: dict[str, Any] = {"min_workers": 1, "max_workers": 2, "scale_up_threshold": 1}
    async with pool_of(url, held, **limits) as first, pool_of(url, held, **limits) as second:
        for n in range(5):
            await runs.runs.queue(f"run_{n}", "Hello")

        def sizes() -> int:
            return len(first.workers) + len(second.workers)

        def busy() -> bool:
            assert sizes() <= 2
            return len(held.began) == 2

        await until(busy)
        held.free.set()
        await until(lambda: sum(each.get_pool_stats()["total_completed"] for each in (first, second)) == 5)
    assert set(held.began.values()) == {1}


@pytest.mark.parametrize(
    "bad",
    [
        lambda: WorkerConfig(lease_ttl_seconds=10, heartbeat_interval_seconds=6),
        lambda: WorkerConfig(lease_ttl_seconds=0),
        lambda: WorkerConfig(lease_ttl_seconds=10**6),
        lambda: WorkerConfig(lease_ttl_seconds="60"),  # type: ignore[arg-type]
        lambda: WorkerConfig(heartbeat_interval_seconds=None),  # type: ignore[arg-type]
        lambda: WorkerConfig(heartbeat_interval_seconds=1e-9),
        lambda: WorkerConfig(poll_interval_seconds=-1),
        lambda: WorkerConfig(poll_interval_seconds=None),  # type: ignore[arg-type]
        lambda: PoolConfig(min_workers=3, max_workers=2),
        lambda: PoolConfig(scale_down_idle_seconds=-1),
    ],
)
def test_settings_that_cannot_be_kept_are_refused(bad: Callable[[], object]) -> None:
    with pytest.raises(BadSetting):
        bad()


def test_defaults_are_the_documents() -> None:
    worker, pool = WorkerConfig(), PoolConfig()
    assert (worker.lease_ttl_seconds, worker.heartbeat_interval_seconds, worker.poll_interval_seconds) == (60, 15, 5)
    assert worker.gateway_url is None
    assert len(worker.worker_id) == len("worker_") + 8
    assert (pool.db_path, pool.min_workers, pool.max_workers) == ("runtime.db", 1, 4)
    assert (pool.scale_up_threshold, pool.scale_down_idle_seconds) == (5, 300)


def test_what_a_worker_and_a_pool_need(url: str) -> None:
    with pytest.raises(UsageError, match="run_handler"):
        WorkerPoolManager(run_handler=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="connection"):
        _ = WorkerPoolManager().conn
    with pytest.raises(UsageError, match="connect_runtime_db"):
        Worker(FAST, object(), fine)  # type: ignore[arg-type]
    assert handlers.current() is None


async def test_what_no_other_process_can_find_is_refused(url: str) -> None:
    async def inner(run_id: str, workspace_dir: str) -> bool:
        return True

    with pytest.raises(UsageError, match=r"inner' cannot run in a worker process: .* Move it to module level"):
        WorkerPoolManager(PoolConfig(db_path=url, subprocesses=True), FAST, run_handler=inner)
    async with Holdfast(url) as hf:
        hf.agent(AGENT, model="scripted:")
        pool = WorkerPoolManager(PoolConfig(db_path=hf, subprocesses=True), FAST, run_handler=fine)
        with pytest.raises(UsageError, match="make it a variable of a module"):
            await pool.start()
