"""Who waits for whom on PostgreSQL, for tests that stop one transaction in front of another."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg


async def blocked_by(url: str, holder: psycopg.AsyncConnection[Any]) -> None:
    """Until somebody waits for what this connection has locked."""
    waiting = "select count(*) from pg_stat_activity where %s = any(pg_blocking_pids(pid))"
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as watch:
        while True:
            row = await (await watch.execute(waiting, [holder.info.backend_pid])).fetchone()
            if row is not None and row[0]:
                return
            await asyncio.sleep(0.01)
