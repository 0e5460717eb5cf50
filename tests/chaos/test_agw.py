"""A worker of Unix tools that is killed: its tools end with it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.resp.test_plans_run import alive, long_time
from tests.resp.test_strays import AWAY, begun
from tests.support.apps import eventually

pytestmark = pytest.mark.chaos

RUN_ALONE = """
import asyncio, sys
from tests.resp.test_plans_run import plan, ran
asyncio.run(ran(plan({"command": "sh", "args": ["-c", sys.argv[1]]})))
"""


async def test_tools_of_a_killed_worker_are_killed() -> None:
    away, itself = long_time(), long_time()
    script = f"({AWAY.format(away)}) ; exec sleep {itself}"
    worker = subprocess.Popen([sys.executable, "-c", RUN_ALONE, script])  # noqa: ASYNC220  it only starts
    try:
        await begun(away, itself)
    finally:
        worker.kill()
        worker.wait()

    async def gone() -> bool:
        return not alive(away) and not alive(itself)

    await eventually(gone)
