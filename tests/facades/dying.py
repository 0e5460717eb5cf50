"""A pool with two workers, until it is killed: `python -m tests.facades.dying URL`."""

from __future__ import annotations

import asyncio
import sys

from holdfast.facades.universal_agent.worker_pool import PoolConfig, WorkerConfig, WorkerPoolManager


async def fine(run_id: str, workspace_dir: str) -> bool:
    return True


async def main(url: str) -> None:
    config = WorkerConfig(poll_interval_seconds=0.1)
    pool = WorkerPoolManager(PoolConfig(db_path=url, min_workers=2, max_workers=2), config, run_handler=fine)
    await pool.start()
    print("up", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
