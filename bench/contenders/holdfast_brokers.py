"""Holdfast's brokers beside its worker: both drain jobs that do nothing, and many wait for jobs that never come."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from bench.contenders.protocol import Order, async_gate, main, say
from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.brokers.broker import Broker
from holdfast.settings import Settings
from holdfast.workers.role import Role

hf = Holdfast(embedded=False, settings=Settings())


@hf.job
async def nothing(n: int) -> None:
    """Nothing."""


async def prepare(order: Order) -> None:
    hf.settings = hf.settings.override({"url": order.url})
    await hf.migrate()


async def flood(order: Order) -> None:
    hf.settings = hf.settings.override({"url": order.url})
    await async_gate()
    for first in range(0, order.n, order.chunk):
        await nothing.enqueue_many((number,) for number in range(first, first + order.chunk))
    await hf.close()
    say("done")


async def work(order: Order) -> None:
    """Until nothing is left: the worker, or so many brokers."""
    hf.settings = hf.settings.override({"url": order.url})
    await core_of(hf).runtime().open()
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(hf.broker(queues=["default"])) for _ in range(order.callers)]
        await async_gate()
        if brokers:
            await asyncio.gather(*(drain(broker, order.chunk) for broker in brokers))
        else:
            await hf.work(Role(until="empty"))
        say("done")
    await hf.close()


async def drain(broker: Broker, chunk: int) -> None:
    while leases := await broker.claim(chunk):
        await asyncio.gather(*(lease.complete() for lease in leases))


async def idle(order: Order) -> None:
    hf.settings = hf.settings.override({"url": order.url})
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(hf.broker(queues=["default"])) for _ in range(order.n)]
        waiting = [asyncio.create_task(broker.claim(block="1h")) for broker in brokers]
        say("ready")
        await asyncio.gather(*waiting)


if __name__ == "__main__":
    main({"prepare": prepare, "flood": flood, "work": work, "idle": idle})
