"""A program with a worker inside that ends, or that Ctrl-C stops: its jobs end or are handed back, and it says so."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.values.jobs import JobRecord
from tests.conftest import Place
from tests.support.apps import eventually
from tests.support.commands import PATIENCE, environment

pytestmark = pytest.mark.chaos

# The handlers go on when the program has ended, and need a thread then.
ENDING = """
import asyncio, threading
from holdfast import Holdfast

hf = Holdfast()

@hf.job
async def measure(text: str) -> int:
    while not threading._SHUTTING_DOWN:
        await asyncio.sleep(0.01)
    return await asyncio.to_thread(len, text)

@hf.job
def begin() -> None: ...

if __name__ == "__main__":
    measure.enqueue_many_sync([(f"{n}",) for n in range(5)])
    begin.options(priority=1).run_sync()
"""
SCRIPT = """
import asyncio
from holdfast import Holdfast

hf = Holdfast()

@hf.job(name="hold")
async def hold() -> None:
    print("it runs", flush=True)
    await asyncio.Event().wait()

if __name__ == "__main__":
    hold.run_sync()
"""
ON_A_THREAD = """
import time
from holdfast import Holdfast

hf = Holdfast()

@hf.job(name="hold")
def hold() -> None:
    print("it runs", flush=True)
    time.sleep(1_000)

if __name__ == "__main__":
    hold.run_sync()
"""
SERVER = """
from contextlib import asynccontextmanager
import uvicorn
from fastapi import FastAPI
from program import hf, hold

@asynccontextmanager
async def lifespan(app):
    async with hf.lifespan(app):
        await hold.enqueue()
        yield

uvicorn.run(FastAPI(lifespan=lifespan), port=0)
"""


def begin(name: str, folder: Path, env: dict[str, str], said: Path) -> subprocess.Popen[bytes]:
    """Cold: how Python ends is part of what is tried."""
    with said.open("wb") as out:
        return subprocess.Popen([sys.executable, name], cwd=folder, env=env, stdout=out, stderr=out)


def handed_back(hf: Holdfast) -> Callable[[], Awaitable[JobRecord | None]]:
    async def look() -> JobRecord | None:
        (job,) = await hf.jobs.list()
        return job if job.state == "pending" else None

    return look


def says(file: Path, words: str) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return words in await asyncio.to_thread(file.read_text)

    return look


async def test_a_drain_at_the_end_of_a_program_has_threads_for_its_handlers(place: Place, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(ENDING)
    command, env = [sys.executable, "program.py"], environment(HOLDFAST_URL=place.url, HOLDFAST_DRAIN_GRACE="200s")
    hf = Holdfast(place.url, embedded=False)
    await hf.migrate()
    ended = await asyncio.to_thread(
        subprocess.run, command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert ended.returncode == 0, ended.stderr
    begun = [job for job in await hf.jobs.list() if job.attempts]
    assert {(job.state, job.attempts) for job in begun} == {("succeeded", 1)}, begun
    await hf.close()


@pytest.mark.parametrize(("program", "how"), [("script", "press Ctrl-C"), ("server", "press Ctrl-C again")])
async def test_ctrl_c_says_what_a_program_waits_for_and_a_second_one_hands_it_back(
    place: Place, tmp_path: Path, program: str, how: str
) -> None:
    (tmp_path / "program.py").write_text(SCRIPT)
    (tmp_path / "script.py").write_text("from program import hold\nhold.run_sync()")
    (tmp_path / "server.py").write_text(SERVER)
    hf = Holdfast(place.url, embedded=False)
    await hf.migrate()
    said = tmp_path / "said"
    env = environment(HOLDFAST_URL=place.url, HOLDFAST_DRAIN_GRACE="200s")
    process = begin(f"{program}.py", tmp_path, env, said)
    try:
        await eventually(says(said, "it runs"))
        (job,) = await hf.jobs.list()
        process.send_signal(signal.SIGINT)
        named = f"1 job (hold {job.id})"
        await eventually(
            says(said, f"stopping: waiting up to 199 s for {named}; {how} to stop at once and hand it back")
        )
        process.send_signal(signal.SIGINT)
        await eventually(says(said, f"stopping at once: {named} is handed back"))
        await asyncio.to_thread(process.wait, PATIENCE)
        released = await eventually(handed_back(hf))
        assert (released.attempts, released.rescues) == (0, 0)
        assert await hf.workers.list() == []
    finally:
        process.kill()
        process.wait()
        await hf.close()


@pytest.mark.long
async def test_a_handler_on_a_thread_for_which_python_waits_is_counted(place: Place, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(ON_A_THREAD)
    hf = Holdfast(place.url, embedded=False)
    await hf.migrate()
    said = tmp_path / "said"
    env = environment(HOLDFAST_URL=place.url, HOLDFAST_DRAIN_GRACE="200s")
    process = begin("program.py", tmp_path, env, said)
    try:
        await eventually(says(said, "it runs"))
        process.send_signal(signal.SIGINT)
        await eventually(says(said, "press Ctrl-C to stop at once"))
        process.send_signal(signal.SIGINT)
        await eventually(says(said, "1 handler still runs on a thread, which nothing can interrupt"))
        await eventually(handed_back(hf))
    finally:
        process.kill()
        process.wait()
        await hf.close()
