"""The calls for code without an event loop, on the app's own thread."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Holdfast, RunFailed
from holdfast.app import core_of
from holdfast.errors import NotFound, ResultTimeout, UsageError
from holdfast.kernel.ids import new_id
from holdfast.workers.role import Role
from tests.conftest import Place
from tests.support.apps import settings_with


@pytest.fixture
def hf(place: Place) -> Iterator[Holdfast]:
    app = Holdfast(place.url, settings=settings_with(drain_grace="5s"))
    yield app
    app.sync.close()


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


async def test_it_works_beside_a_running_loop(hf: Holdfast) -> None:
    """As in a notebook: the caller's loop stands still meanwhile, the app's own does the work."""

    @hf.job
    async def work() -> str:
        return threading.current_thread().name

    assert work.run_sync() == "holdfast-sync"


def test_on_the_apps_own_loop_it_says_what_to_write(hf: Holdfast) -> None:
    @hf.job
    async def inner() -> None: ...

    @hf.job
    async def outer() -> str:
        with pytest.raises(UsageError, match=r"await the async call, run\(\) in place of run_sync\(\)"):
            inner.run_sync()
        return "told"

    assert outer.run_sync() == "told"


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
