"""`holdfast worker`: which app, which jobs, how long, and how it leaves."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.errors import how_to_install
from holdfast.values.workers import WorkerRecord
from tests.conftest import Place
from tests.support.apps import eventually, in_state
from tests.support.commands import PATIENCE, Said, environment, holdfast, start
from tests.support.warm import WarmProcess

PATIENT = '''
"""A job that shows that it began and stays until it may go."""

import asyncio, time
from pathlib import Path
from holdfast import Holdfast, JobContext

hf = Holdfast()


@hf.job(name="stay")
async def stay(ctx: JobContext, folder: str) -> str:
    await ctx.progress("begun")
    while not Path(folder, "go").exists():
        await asyncio.sleep(0.01)
    return "finished"
'''


def worker(folder: Path, *words: str) -> Said:
    return holdfast("worker", *words, "--log-level", "error", cwd=folder)


class Client(Holdfast):
    """The same jobs as the programs have, in this process, without a worker."""

    def __init__(self, url: str) -> None:
        super().__init__(url, embedded=False)

        @self.job(name="greet")
        async def greet(name: str) -> str: ...  # type: ignore[empty-body]

        @self.job(name="paint", queue="images", requires=["tag:gpu=yes"])
        async def paint(color: str) -> str: ...  # type: ignore[empty-body]

        @self.job(name="stay")
        async def stay(folder: str) -> str: ...  # type: ignore[empty-body]

        self.greet, self.paint, self.stay = greet, paint, stay


LOOP = '''
"""A job that says which loop it runs on."""

import asyncio
from holdfast import Holdfast

hf = Holdfast()


@hf.job(name="greet")
async def greet(name: str) -> str:
    return getattr(asyncio.get_running_loop(), "planted", "asyncio")
'''
PLANTED = """
import asyncio

__version__ = "9.9"


def new_event_loop():
    loop = asyncio.new_event_loop()
    loop.planted = "uvloop"
    return loop
"""
BROKEN = 'raise ImportError("made for another Python")'


@contextmanager
def started(folder: Path, target: str, *words: str) -> Iterator[WarmProcess]:
    """A worker process, which is gone at the end."""
    with (folder / "worker.log").open("ab") as log:
        command = ("-m", "holdfast", "worker", target, *words)
        process = start(*command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


async def ended(process: WarmProcess) -> int:
    return await asyncio.to_thread(process.wait, PATIENCE)


async def begun(hf: Holdfast, id: str) -> None:
    async def look() -> bool:
        return (await hf.jobs.get(id)).progress is not None

    await eventually(look)


@pytest.fixture
def patient(tmp_path: Path) -> Path:
    folder = tmp_path / "patient"
    folder.mkdir()
    (folder / "patient.py").write_text(PATIENT)
    return folder


# Which app


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("nope:hf", "cannot find module 'nope'; write it as Python would import it from this folder."),
        ("shop:greet", "'shop:greet' is not a Holdfast app (it has hf); write module:name, as in app:hf."),
        ("shop:nothing", "'shop:nothing' is not a Holdfast app (it has hf); write module:name, as in app:hf."),
        ("json:hf", "'json:hf' is not a Holdfast app (it defines none); write module:name, as in app:hf."),
        ("needy:hf", "needy cannot be imported: it needs the module 'not_installed'."),
        ("idle:hf", "'idle:hf' declares no jobs; decorate a function with @hf.job."),
    ],
)
def test_a_target_that_cannot_be_worked(shop: Path, target: str, reason: str) -> None:
    (shop / "needy.py").write_text("import not_installed\n")
    (shop / "idle.py").write_text("from holdfast import Holdfast\nhf = Holdfast()\n")
    assert worker(shop, target).refused(2) == reason


def test_a_target_that_fails_shows_its_own_line(shop: Path) -> None:
    (shop / "broken.py").write_text("1 / 0\n")
    said = worker(shop, "broken:hf")
    assert said.code == 2
    assert said.err.startswith("holdfast: broken cannot be imported: ZeroDivisionError: division by zero.\n")
    assert 'broken.py", line 1, in <module>' in said.err


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("nope:hf",), "cannot find module 'nope'; write it as Python would import it from this folder."),
        (("shop:hf", "--set", "batch=0"), "batch must be at least 1; got 0."),
    ],
)
def test_several_processes_are_refused_once(shop: Path, words: tuple[str, ...], reason: str) -> None:
    """Not each of them again and again."""
    assert worker(shop, *words, "--processes", "2").refused(2) == reason


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--set", "lease"], "--set takes NAME=VALUE; got 'lease'."),
        (
            ["--set", "lease=1s"],
            "there is no setting 'lease'; `holdfast settings` lists them. Did you mean 'lease_ttl'?",
        ),
        (["--set", "heartbeat=soon"], '\'soon\' is not a duration; write it like "500ms", "10s", "1h30m" or "7d".'),
        (["--set", "concurrency=0"], "concurrency must be at least 1; got 0."),
        (["--set", "concurrency=many"], "concurrency must be a whole number; got 'many'."),
        (["--set", "pooler=maybe"], "pooler must be true or false; got 'maybe'."),
        (["--set", "threads=-1"], "threads must be at least 0; got -1."),
        (["--set", "poll_interval=0s"], "poll_interval must be longer than 0s."),
        (["--poll-interval", "often"], '\'often\' is not a duration; write it like "500ms", "10s", "1h30m" or "7d".'),
        (["--once", "--until-empty"], "use either --once or --until-empty, not both."),
        (
            ["--url", "mysql://x"],
            "mysql:// is not a database that Holdfast supports; write sqlite:///path, "
            "sqlite://:memory: or postgresql://user@host/database.",
        ),
    ],
)
def test_options_that_make_no_sense(shop: Path, words: list[str], reason: str) -> None:
    assert worker(shop, "shop:hf", *words).refused(2) == reason


@pytest.mark.parametrize("dialect", ["postgres"], indirect=True)
def test_a_database_that_is_not_migrated(shop: Path, bare_url: str) -> None:
    assert "Run `holdfast migrate`" in worker(shop, "shop:hf", "--url", bare_url).refused(3)


@pytest.mark.long
def test_a_missing_extra(shop: Path) -> None:
    (shop / "sitecustomize.py").write_text("import sys; sys.modules['asyncpg'] = None\n")
    said = holdfast(
        *("worker", "shop:hf", "--log-level", "error", "--url", "postgresql://localhost/x"),
        cwd=shop,
        env=environment(PYTHONPATH=str(shop)),
    )
    assert said.refused(2) == f"a postgresql:// database needs an extra: {how_to_install('postgres')}."


# Which jobs, and how long


async def test_until_empty_does_what_there_is_and_leaves(shop: Path, place: Place) -> None:
    async with Client(place.url) as hf:
        ids = [(await hf.greet.enqueue(name)).id for name in ("Oslo", "Rome")]
        said = worker(shop, "shop", "--url", place.url, "--until-empty")
        assert (said.code, said.out) == (0, "")
        assert "2 attempts finished" in said.err.splitlines()[-1]
        assert [await hf.jobs[id].result() for id in ids] == ["hello, Oslo", "hello, Rome"]
        assert await hf.workers.list() == []


async def test_once_does_one_job(shop: Path, place: Place) -> None:
    async with Client(place.url) as hf:
        ids = [(await hf.greet.enqueue(name)).id for name in ("Oslo", "Rome")]
        assert worker(shop, "shop:hf", "--url", place.url, "--once").code == 0
        assert [(await hf.jobs.get(id)).state for id in ids] == ["succeeded", "pending"]


async def test_queues_and_capabilities_choose_the_jobs(shop: Path, place: Place) -> None:
    async with Client(place.url) as hf:
        greet, paint = await hf.greet.enqueue("Oslo"), await hf.paint.enqueue("red")

        async def states() -> list[str]:
            return [(await job.refresh()).state for job in (greet, paint)]

        common = ("--url", place.url, "--until-empty")
        worker(shop, "shop:hf", *common, "--queues", "images, other")
        assert await states() == ["pending", "pending"]
        worker(shop, "shop:hf", *common, "--queues", "images", "--capabilities", "tag:gpu=yes,tag:x=y")
        assert await states() == ["pending", "succeeded"]
        worker(shop, "shop:hf", *common)
        assert await states() == ["succeeded", "succeeded"]


async def test_the_program_may_name_the_database(shop: Path, place: Place) -> None:
    async with Client(place.url) as hf:
        id = (await hf.greet.enqueue("Oslo")).id
        said = holdfast("worker", "shop:hf", "--until-empty", cwd=shop, env=environment(SHOP_URL=place.url))
        assert said.code == 0
        assert await hf.jobs[id].result() == "hello, Oslo"
        assert "ready" in said.err
        assert "stopped: 1 attempt finished" in said.err


# Leaving


async def test_a_signal_drains(patient: Path, place: Place) -> None:
    async with Client(place.url) as hf:
        id = (await hf.stay.enqueue(str(patient))).id
        with started(patient, "patient:hf", "--url", place.url, "--name", "mill", "--concurrency", "3") as process:
            await begun(hf, id)
            (row,) = await hf.workers.list()
            assert (row.name, row.slots, row.pid) == ("mill", 3, process.pid)
            process.send_signal(signal.SIGTERM)

            async def draining() -> bool:
                return [row.status for row in await hf.workers.list()] == ["draining"]

            await eventually(draining)
            (patient / "go").touch()
            assert await ended(process) == 0
        assert await hf.jobs[id].result() == "finished"
        assert [row.status for row in await hf.workers.list(all=True)] == ["stopped"]


async def test_a_handler_that_holds_the_event_loop_is_named_in_the_log(tmp_path: Path, place: Place) -> None:
    (tmp_path / "stuck.py").write_text(PATIENT.replace("await asyncio.sleep(0.01)", "time.sleep(0.01)"))
    quickly = ("--set", "loop_patience=200ms", "--set", "tick=50ms")
    async with Client(place.url) as hf:
        id = (await hf.stay.enqueue(str(tmp_path))).id
        with started(tmp_path, "stuck:hf", "--url", place.url, *quickly):

            async def is_told(words: str) -> str | None:
                log = (tmp_path / "worker.log").read_text()
                return log if words in log else None

            assert "time.sleep(0.01)" in await eventually(lambda: is_told("handler stay has held the event loop for"))
            (tmp_path / "go").touch()
            assert await hf.jobs[id].result() == "finished"
            await eventually(lambda: is_told("handler stay held the event loop for"))


@pytest.mark.long
async def test_a_second_signal_hands_back_at_once(patient: Path, place: Place) -> None:
    async with Client(place.url) as hf:
        id = (await hf.stay.enqueue(str(patient))).id
        with started(patient, "patient:hf", "--url", place.url, "--set", "drain_grace=1h") as process:
            await begun(hf, id)
            process.send_signal(signal.SIGINT)

            async def draining() -> bool:
                return [row.status for row in await hf.workers.list()] == ["draining"]

            await eventually(draining)
            process.send_signal(signal.SIGTERM)
            assert await ended(process) == 0
        row = await hf.jobs.get(id)
        assert (row.state, row.attempts, row.rescues) == ("pending", 0, 0)


async def test_processes_are_workers_under_one_parent(patient: Path, place: Place) -> None:
    async with Client(place.url) as hf:
        with started(patient, "patient:hf", "--url", place.url, "--processes", "2", "--id", "mill") as process:

            async def both() -> Sequence[WorkerRecord] | None:
                rows = await hf.workers.list()
                return rows if len(rows) == 2 else None

            rows = await eventually(both)
            assert {row.id for row in rows} == {"mill-1", "mill-2"}
            assert process.pid not in {row.pid for row in rows}
            id = (await hf.stay.enqueue(str(patient))).id
            await in_state(hf, id, "running")
            (patient / "go").touch()
            assert await hf.jobs[id].result() == "finished"
            process.send_signal(signal.SIGTERM)
            assert await ended(process) == 0
        assert {row.status for row in await hf.workers.list(all=True)} == {"stopped"}
    said = (patient / "worker.log").read_text().splitlines()
    stopped = [line for line in said if "stopped (process" in line]
    assert sorted(line.rpartition(" [worker ")[2] for line in stopped) == ["mill-1]", "mill-2]"]


@pytest.mark.long
async def test_a_live_id_is_refused(patient: Path, place: Place) -> None:
    async with Client(place.url) as hf:
        with started(patient, "patient:hf", "--url", place.url, "--id", "pod-1") as process:
            await eventually(hf.workers.list)
            line = worker(patient, "patient:hf", "--url", place.url, "--id", "pod-1").refused(3)
            assert line.startswith("worker id 'pod-1' is already in use on ")
            assert f"(pid {process.pid})" in line
            process.terminate()
            assert await ended(process) == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("module", "words", "loop", "said"),
    [
        (PLANTED, (), "uvloop", "uvloop 9.9"),
        (PLANTED, ("--loop", "uvloop"), "uvloop", "uvloop 9.9"),
        (PLANTED, ("--loop", "asyncio"), "asyncio", "asyncio's own event loop"),
        (BROKEN, (), "asyncio", "asyncio's own event loop"),
    ],
    ids=["installed", "wanted", "turned off", "not there"],
)
async def test_the_loop_is_uvloop_where_it_is_installed_unless_turned_off(
    tmp_path: Path, module: str, words: Sequence[str], loop: str, said: str
) -> None:
    (tmp_path / "looping.py").write_text(LOOP)
    (tmp_path / "uvloop.py").write_text(module)
    url = f"sqlite:///{tmp_path / 'store.db'}"
    async with Client(url) as client:
        job = await client.greet.enqueue("Ann")
        ran = await asyncio.to_thread(
            holdfast, "worker", "looping:hf", "--url", url, "--until-empty", "--log-level", "info", *words, cwd=tmp_path
        )
        assert ran.code == 0, ran
        assert await job.result() == loop
    assert [line for line in ran.err.splitlines() if "runs on" in line and said in line], ran


def test_a_loop_that_is_wanted_and_not_installed_is_refused(shop: Path) -> None:
    (shop / "uvloop.py").write_text(BROKEN)
    problem = worker(shop, "shop:hf", "--until-empty", "--loop", "uvloop").refused(2)
    assert how_to_install("fast") in problem
