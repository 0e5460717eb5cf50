"""The calls for code without an event loop, on the app's own thread."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, JobContext, RunFailed
from holdfast.app import core_of
from holdfast.errors import NotFound, ResultTimeout, UsageError
from holdfast.kernel.ids import new_id
from holdfast.sync import Sync
from holdfast.workers.role import Role
from tests.conftest import Place
from tests.support.apps import settings_with


@pytest.fixture
def hf(place: Place) -> Iterator[Holdfast]:
    app = Holdfast(place.url, settings=settings_with(drain_grace="5s"))
    yield app
    core_of(app).close_sync()


def test_run_sync_runs_a_job(hf: Holdfast) -> None:
    @hf.job
    async def add(a: int, b: int = 1) -> int:
        return a + b

    assert add.run_sync(1) == 2
    assert add.run_sync(1, b=5) == 6


def test_a_script_enqueues_and_asks_later(hf: Holdfast) -> None:
    gate = threading.Event()

    @hf.job
    def work(number: int) -> int:
        gate.wait(60)
        return number

    first = work.enqueue_sync(1)
    second, third = work.enqueue_many_sync([(2,), {"number": 3}])
    with pytest.raises(ResultTimeout, match="has not ended"):
        first.result_sync(timeout="50ms")
    gate.set()
    assert work.run_sync(4) == 4
    assert [job.result_sync() for job in (first, second, third)] == [1, 2, 3]


def test_a_script_cancels(hf: Holdfast) -> None:
    @hf.job
    def work() -> None: ...

    job = work.options(delay="1h").enqueue_sync()
    assert job.cancel_sync("no need") == "cancelled"
    with pytest.raises(RunFailed, match="no need"):
        job.result_sync()


def test_errors_come_through(hf: Holdfast) -> None:
    @hf.job
    def work() -> None: ...

    with pytest.raises(NotFound):
        hf.jobs[new_id(core_of(hf).ports)].result_sync()


def blocking_calls() -> set[str]:
    """Every public call that ends in `_sync`, and those of `hf.sync`, by the class that has it."""
    for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if not module.name.startswith(("holdfast.testing", "holdfast.facades", "holdfast.__main__")):
            importlib.import_module(module.name)
    classes = {
        each
        for name, module in list(sys.modules.items())
        if name.startswith("holdfast.")
        for each in vars(module).values()
        if inspect.isclass(each) and each.__module__.startswith("holdfast.")
    }
    found = {
        f"{each.__name__}.{name}"
        for each in classes
        for name in vars(each)
        if name.endswith("_sync") and not each.__name__.startswith("_")
    }
    return found | {f"Sync.{name}" for name in vars(Sync) if not name.startswith("_")} | {"Sync.__call__"}


MACHINE = """
spec: flatmachine
spec_version: "0.8.3"
data:
  name: asked
  states:
    start: {type: initial, transitions: [{to: done}]}
    done: {type: final}
"""
INTERNAL = {"Core.close_sync", "McpTools.declare_sync"}  # behind hf.sync.close and hf.sync.mcp
LABS = {"Labs.use_sync"}  # it has a refusal of its own, which tests/testing tries


async def test_a_call_that_blocks_is_refused_where_an_event_loop_runs(hf: Holdfast, tmp_path: Path) -> None:
    """It would stop everything else on that loop, a whole web server for example."""

    @hf.job
    async def greet(name: str) -> str:
        return name

    (tmp_path / "machine.yml").write_text(MACHINE)
    machine, agent = hf.machine(tmp_path / "machine.yml"), hf.agent("guide", model="scripted:")
    job, run = hf.jobs[new_id(core_of(hf).ports)], hf.runs["r"]
    ctx = JobContext.__new__(JobContext)  # not of a job: the refusal comes before anything is asked of it
    calls: dict[str, tuple[Callable[[], object], str]] = {
        "JobFunction.run_sync": (lambda: greet.run_sync("Oslo"), "await greet.run(...)"),
        "JobFunction.enqueue_sync": (lambda: greet.enqueue_sync("Oslo"), "await greet.enqueue(...)"),
        "JobFunction.enqueue_many_sync": (lambda: greet.enqueue_many_sync([]), "await greet.enqueue_many(...)"),
        "Job.result_sync": (job.result_sync, "await job.result(...)"),
        "Job.cancel_sync": (job.cancel_sync, "await job.cancel(...)"),
        "Agent.run_sync": (lambda: agent.run_sync("Oslo"), "await agent.run(...)"),
        "Agent.enqueue_sync": (lambda: agent.enqueue_sync("Oslo"), "await agent.enqueue(...)"),
        "Run.result_sync": (run.result_sync, "await run.result(...)"),
        "Run.cancel_sync": (run.cancel_sync, "await run.cancel(...)"),
        "Run.stream_sync": (lambda: next(run.stream_sync()), "async for event in run.stream(...)"),
        "Machine.run_sync": (machine.run_sync, "await machine.run(...)"),
        "Machine.enqueue_sync": (machine.enqueue_sync, "await machine.enqueue(...)"),
        "JobContext.step_sync": (lambda: ctx.step_sync("one", str), "await ctx.step(...)"),
        "JobContext.progress_sync": (lambda: ctx.progress_sync(1), "await ctx.progress(...)"),
        "JobContext.start_sync": (lambda: ctx.start_sync(greet, "Oslo"), "await ctx.start(...)"),
        "JobContext.join_sync": (ctx.join_sync, "await ctx.join(...)"),
        "JobContext.wait_sync": (lambda: ctx.wait_sync("paid"), "await ctx.wait(...)"),
        "Holdfast.work_sync": (hf.work_sync, "await hf.work(...)"),
        "Sync.__call__": (lambda: hf.sync(hf.jobs.list()), "await ….list(...)"),
        "Sync.signal": (lambda: hf.sync.signal("paid"), "await hf.signal(...)"),
        "Sync.session": (lambda: hf.sync.session("ann"), "await hf.session(...)"),
        "Sync.mcp": (lambda: hf.sync.mcp("files", url="http://localhost:1"), "await hf.mcp(...)"),
        "Sync.close": (hf.sync.close, "await asyncio.to_thread(hf.sync.close)"),
    }
    assert calls.keys() == blocking_calls() - INTERNAL - LABS
    for name, (call, instead) in calls.items():
        with pytest.raises(UsageError) as refused:
            call()
        said, own = str(refused.value), name.split(".")[1].replace("__call__", "sync")
        assert f"{own}() was called on a thread with a running event loop and would block it" in said
        assert f"Write `{instead}` here" in said
        assert "from a plain `def`" in said
    await asyncio.to_thread(hf.sync.close)


def test_an_async_handler_on_the_apps_own_loop_is_refused_too(hf: Holdfast) -> None:
    @hf.job
    async def inner() -> None: ...

    @hf.job
    async def outer() -> str:
        with pytest.raises(UsageError, match=r"Write `await inner.run\(...\)` here"):
            inner.run_sync()
        return "told"

    assert outer.run_sync() == "told"


@pytest.mark.long
def test_a_module_may_block_the_loop_that_imports_it(place: Place, tmp_path: Path) -> None:
    """As uvicorn imports one: the module cannot await, and nothing is served yet."""
    (tmp_path / "served.py").write_text(SCRIPT.format(url=place.url))
    code = "import asyncio\nasync def serve(): import served\nasyncio.run(serve())"
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "3\n", "")


def test_a_sync_handler_may_use_it(hf: Holdfast) -> None:
    @hf.job
    def inner(number: int) -> int:
        return number + 1

    @hf.job
    def outer() -> int:
        return inner.run_sync(1)

    assert outer.run_sync() == 2


def test_many_threads_share_one_app(hf: Holdfast) -> None:
    """Also at its first use: they get one loop and one worker between them."""
    results: list[int] = []
    together = threading.Barrier(8)
    others = set(threading.enumerate())

    @hf.job
    async def double(number: int) -> int:
        return 2 * number

    def call(number: int) -> None:
        together.wait(60)
        results.append(double.run_sync(number))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == [2 * n for n in range(8)]
    assert len(core_of(hf).call(hf.workers.list(all=True))) == 1
    ours = [thread.name for thread in threading.enumerate() if thread not in others]
    assert ours.count("holdfast-sync") == 1


def test_work_sync_is_a_worker_until_its_end(hf: Holdfast) -> None:
    @hf.job
    async def work() -> str:
        return "done"

    job = work.enqueue_sync()
    hf.work_sync(Role(until="empty"))
    assert job.result_sync() == "done"
    assert core_of(hf).call(hf.workers.list()) == []


def test_a_closed_app_can_be_used_again(hf: Holdfast) -> None:
    @hf.job
    async def work() -> int:
        return 1

    assert work.run_sync() == 1
    hf.sync.close()
    hf.sync.close()
    assert work.run_sync() == 1


SCRIPT = """
from holdfast import Holdfast
hf = Holdfast({url!r})

@hf.job(name="add")
def add(a: int, b: int) -> int:
    return a + b

print(add.run_sync(1, 2))
"""


def test_a_script_that_ends_takes_its_worker_along(place: Place, hf: Holdfast) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT.format(url=place.url)], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "3\n", "")
    (worker,) = core_of(hf).call(hf.workers.list(all=True))
    assert worker.status == "stopped"


def test_any_call_can_be_made_without_a_loop(hf: Holdfast) -> None:
    @hf.job
    def work() -> None: ...

    job = work.options(delay="1h").enqueue_sync()
    assert [row.id for row in hf.sync(hf.jobs.list())] == [job.id]
    session = hf.sync(hf.session("ann"))
    assert hf.sync(hf.sessions.get("ann")).id == session.id == hf.sync.session("ann").id


def test_an_option_that_there_is_not_is_refused_by_name(hf: Holdfast) -> None:
    typo: Any = {"qeue": "images"}

    def work() -> None:
        """Work."""

    for name, declare in (("job", hf.job(**typo)), ("tool", hf.tool(**typo))):
        with pytest.raises(TypeError, match=rf"{name}\(\) got an unexpected keyword argument 'qeue'"):
            declare(work)
    with pytest.raises(TypeError, match=r"schedule\(\) got an unexpected keyword argument 'qeue'"):
        hf.schedule("@daily", **typo)
    with pytest.raises(TypeError, match=r"agent\(\) got an unexpected keyword argument 'qeue'"):
        hf.agent("a", model="scripted:", **typo)
    with pytest.raises(TypeError, match=r"session\(\) got an unexpected keyword argument 'qeue'"):
        hf.session(**typo)
