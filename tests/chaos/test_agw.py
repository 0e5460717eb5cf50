"""A worker of Unix tools that is killed: its tools end with it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.resp.test_plans_run import alive
from tests.resp.test_strays import AWAY, begun
from tests.support.apps import eventually

pytestmark = pytest.mark.chaos

RUN_ALONE = """
import asyncio, sys
from tests.resp.test_plans_run import plan, ran
asyncio.run(ran(plan({"command": "sh", "args": ["-c", sys.argv[1]]})))
"""


async def test_tools_of_a_killed_worker_are_killed() -> None:
    script = f"({AWAY.format('968.68')}) ; exec sleep 968.69"
    worker = subprocess.Popen([sys.executable, "-c", RUN_ALONE, script])  # noqa: ASYNC220  it only starts
    try:
        await begun("968.68", "968.69")
    finally:
        worker.kill()
        worker.wait()

    async def gone() -> bool:
        return not alive("968.68") and not alive("968.69")

    await eventually(gone)
