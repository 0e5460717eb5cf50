"""A worker with connections to two servers at once: what it may hold is one number, wherever it asks."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import asyncpg
import pytest

from holdfast.resp.server import RespServer
from tests.conftest import Place
from tests.resp.conftest import Connect, Serve
from tests.resp.test_workers import registered
from tests.support.apps import MakeApp, eventually


@pytest.mark.long
async def test_two_servers_do_not_both_give_out_the_last_place(
    serve: Serve, connect: Connect, make_app: MakeApp, place: Place
) -> None:
    """Both ask at the same moment: the second one counts what the first one has taken."""
    here, there = await serve(), await serve(make_app(embedded=False))
    client, side = await registered(connect, "w1", port=here.port), await connect("w1", there.port)
    await client("LPUSH", "queue:in", "a", "b")
    async with AsyncExitStack() as stack:
        if place.url.startswith("postgres"):
            connection = await asyncpg.connect(place.direct)
            stack.push_async_callback(connection.close)
            await stack.enter_async_context(connection.transaction())
            await connection.execute("select 1 from holdfast.worker where id = 'w1' for update")
        pops = [asyncio.create_task(each("BRPOP", "queue:in", "3")) for each in (client, side)]
        if place.url.startswith("postgres"):
            await eventually(lambda: _are_held_up(here, there))
    popped = [await each for each in pops]
    assert popped in ([b"a", None], [None, b"a"])


async def _are_held_up(*servers: RespServer) -> bool:
    """Whether each has asked for a worker whose row somebody holds."""
    return all(any(waiter.locked_since is not None for waiter in server.gateway.pops._waiting) for server in servers)
