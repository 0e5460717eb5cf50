"""A process that is killed between its commit and its hint: the work is there, and polling finds it."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from holdfast import Holdfast
from tests.support.apps import eventually, settings_with, working
from tests.support.listening import listening

pytestmark = pytest.mark.chaos

SCRIPT = """
import asyncio, os, signal, sys
from holdfast import Holdfast

hf = Holdfast(sys.argv[1], embedded=False)

@hf.job(name="work")
async def work(number: int) -> int: ...

async def main() -> None:
    await work.enqueue(1)
    os.kill(os.getpid(), signal.SIGKILL)  # before the event loop does anything else

asyncio.run(main())
"""


async def test_work_whose_hint_was_never_sent_is_found_by_polling(postgres_url: str) -> None:
    hf = Holdfast(postgres_url, embedded=False, settings=settings_with(poll_interval="100ms"))
    done: list[int] = []

    @hf.job(name="work")
    async def work(number: int) -> None:
        done.append(number)

    async with listening(postgres_url) as outside, working(hf):
        script = await asyncio.create_subprocess_exec(sys.executable, "-c", SCRIPT, postgres_url)
        assert await script.wait() == -signal.SIGKILL

        async def found() -> bool:
            return bool(done)

        await eventually(found)
        assert await outside.so_far() == []
    assert done == [1]
    await hf.close()
