"""SAQ on its PostgreSQL queue: psycopg 3, its own worker."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

from saq import Queue, Worker

from bench.contenders.protocol import Order, async_gate, chunks, main, recorder, say, send

FILLERS = 20


async def connected(order: Order) -> Queue:
    queue = Queue.from_url(order.url)
    await queue.connect()
    return queue


async def prepare(order: Order) -> None:
    await (await connected(order)).disconnect()


async def enqueue(order: Order) -> None:
    queue = await connected(order)

    async def insert(numbers: list[int]) -> None:
        await queue.enqueue("noop", n=numbers[0])

    await send(order, insert)
    await queue.disconnect()


async def fill(order: Order) -> None:
    """It has no bulk call; several callers at once fill faster than one."""
    queue = await connected(order)
    await async_gate()
    for numbers in chunks(replace(order, chunk=FILLERS)):
        await asyncio.gather(*(queue.enqueue("noop", n=n) for n in numbers))
    await queue.disconnect()
    say("done")


async def work(order: Order) -> None:
    ran = recorder(order)

    async def noop(_context: dict[str, Any], *, n: int) -> None:
        ran(n)

    logging.getLogger("saq").setLevel("WARNING")
    queue = await connected(order)
    worker: Any = Worker(queue, [("noop", noop)], concurrency=order.settings["concurrency"])
    await async_gate()
    await worker.start()


if __name__ == "__main__":
    main({"prepare": prepare, "enqueue": enqueue, "fill": fill, "work": work})
