"""Holdfast with two tenants on one queue, fair or not: one floods it, the other sends a job now and then."""

from __future__ import annotations

import asyncio

from bench.contenders.protocol import Order, Ran, async_gate, main, recorder, say, send
from holdfast import Holdfast, Queue
from holdfast.app import core_of
from holdfast.settings import Settings

SECONDS = 0.02  # that a job takes
CALM, FLOOD = "calm", "flood"

hf = Holdfast(embedded=False, settings=Settings())
hf.queue("fair", Queue(fair=True))
ran: Ran = int


@hf.job(queue="fair")
async def fair(n: int) -> None:
    ran(n)
    await asyncio.sleep(SECONDS)


@hf.job
async def plain(n: int) -> None:
    ran(n)
    await asyncio.sleep(SECONDS)


JOBS = {"fair": fair, "plain": plain}


async def prepare(order: Order) -> None:
    hf.settings = hf.settings.override({"url": order.url})
    await hf.migrate()


async def flood(order: Order) -> None:
    """So many jobs of one tenant, whose numbers no board holds."""
    hf.settings = hf.settings.override({"url": order.url})
    await async_gate()
    job = JOBS[order.what].options(tenant=FLOOD)
    for first in range(0, order.n, order.chunk):
        await job.enqueue_many((1_000_000 + number,) for number in range(first, first + order.chunk))
    await hf.close()
    say("done")


async def calm(order: Order) -> None:
    """A job of the other tenant every so often."""
    hf.settings = hf.settings.override({"url": order.url})
    await core_of(hf).runtime().open()
    job = JOBS[order.what].options(tenant=CALM)

    async def insert(numbers: list[int]) -> None:
        await job.enqueue(numbers[0])

    await send(order, insert)
    await hf.close()


async def work(order: Order) -> None:
    global ran  # noqa: PLW0603  one worker, one process
    ran = recorder(order)
    hf.settings = hf.settings.override({"url": order.url})
    await core_of(hf).runtime().open()
    worker = core_of(hf).make_worker()
    await async_gate()
    await worker.run()


if __name__ == "__main__":
    main({"prepare": prepare, "flood": flood, "calm": calm, "work": work})
