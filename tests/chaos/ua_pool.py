"""A pool of Universal Agent's interface: `python -m tests.chaos.ua_pool URL GATE MARK`.

Its handler says which run it has, and ends when the file GATE is there. A run whose id begins with "doom" kills it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from holdfast.facades.universal_agent import PoolConfig, WorkerConfig, WorkerPoolManager


async def main(url: str, gate: str) -> None:
    async def handler(run_id: str, workspace_dir: str) -> bool:
        print(f"began {run_id}", flush=True)
        if run_id.startswith("doom"):
            os.kill(os.getpid(), signal.SIGKILL)
        while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240  a file sets no event
            await asyncio.sleep(0.02)
        print(f"ended {run_id}", flush=True)
        return True

    workers = WorkerConfig(lease_ttl_seconds=2, heartbeat_interval_seconds=0.5, poll_interval_seconds=0.2)
    pool = WorkerPoolManager(PoolConfig(db_path=url, min_workers=2), workers, run_handler=handler)
    await pool.start()
    print(f"ready {os.getpid()}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
