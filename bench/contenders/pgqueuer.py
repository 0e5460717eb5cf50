"""PgQueuer: asyncpg, its own queue manager."""

from __future__ import annotations

import json
from datetime import timedelta

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.contenders.protocol import Order, async_gate, main, recorder, send


async def prepare(order: Order) -> None:
    connection = await asyncpg.connect(order.url)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


async def enqueue(order: Order) -> None:
    connection = await asyncpg.connect(order.url)
    queries = Queries(AsyncpgDriver(connection))

    async def insert(numbers: list[int]) -> None:
        payloads = [json.dumps({"n": n}).encode() for n in numbers]
        if order.chunk == 1:
            await queries.enqueue("noop", payloads[0])
        else:
            await queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads))

    await send(order, insert)


async def work(order: Order) -> None:
    ran = recorder(order)
    connection = await asyncpg.connect(order.url)
    queuer = PgQueuer(AsyncpgDriver(connection))

    @queuer.entrypoint("noop")
    async def noop(job: Job) -> None:
        ran(json.loads(job.payload)["n"])

    await async_gate()
    await queuer.run(batch_size=order.settings["batch"], dequeue_timeout=timedelta(seconds=30))


if __name__ == "__main__":
    main({"prepare": prepare, "enqueue": enqueue, "fill": enqueue, "work": work})
