"""How soon a parked pop hears of a job, on a quiet machine."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.resp.server import RespServer
from tests.resp.conftest import Connect, connect, hf, live_database, make_app, place, serve, server
from tests.resp.test_jobs import parked
from tests.resp.test_workers import registered
from tests.support.apps import eventually

__all__ = ["connect", "hf", "live_database", "make_app", "place", "serve", "server"]

pytestmark = pytest.mark.timed


async def test_agx_18_a_parked_pop_gets_a_job_within_50_ms(server: RespServer, connect: Connect) -> None:
    client, submitter = await registered(connect), await connect("submitter")
    took: list[float] = []
    for number in range(11):
        waiting = asyncio.create_task(client("BRPOP", "queue:in", "60"))
        await eventually(lambda: parked(server))
        pushed = asyncio.get_running_loop().time()
        await submitter("LPUSH", "queue:in", str(number))
        assert await waiting == str(number).encode()
        took.append(asyncio.get_running_loop().time() - pushed)
        assert await client("LREM", "queue:processing", "1", str(number)) == 1
    assert sorted(took)[5] < 0.05, took
