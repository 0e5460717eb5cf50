"""The limit: the same work by a bare loop over asyncpg, on a table of its own.

Claim a batch, run each as a task, complete them under their leases; then the next. No heartbeats, no rescue, no routes,
no retries.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import asyncpg

from bench.contenders.protocol import Order, async_gate, main, recorder, send

TABLES = """
create table bare_job (
    seq bigint generated always as identity primary key,
    state text not null default 'pending',
    priority integer not null default 100,
    token bigint not null default 0,
    worker integer,
    lease_until timestamptz,
    finished_at timestamptz,
    payload jsonb not null
);
create index bare_job_claim on bare_job (priority, seq) where state = 'pending';
"""
ENQUEUE = """
with fresh as (
    insert into bare_job (payload) select payload from unnest($1::jsonb[]) as item (payload) returning seq
), told as (select pg_notify('bare', ''))
select fresh.seq from fresh, told
"""
CLAIM = """
update bare_job set state = 'running', token = token + 1, worker = $1, lease_until = now() + interval '1 minute'
where seq = any(array(
    select seq from bare_job where state = 'pending' order by priority, seq limit $2 for update skip locked))
returning seq, token, payload
"""
COMPLETE = """
update bare_job set state = 'succeeded', worker = null, lease_until = null, finished_at = now()
from unnest($1::bigint[], $2::bigint[]) as e (seq, token)
where bare_job.seq = any($1::bigint[]) and bare_job.seq = e.seq and bare_job.token = e.token
    and bare_job.state = 'running'
returning bare_job.seq
"""
# The form above is planned as a comparison of every job of the batch with every other. This one is not.
COMPLETE_BY_JOIN = """
update bare_job set state = 'succeeded', worker = null, lease_until = null, finished_at = now()
from unnest($1::bigint[], $2::bigint[]) as e (seq, token)
where bare_job.seq = e.seq and bare_job.token = e.token and bare_job.state = 'running'
returning bare_job.seq
"""
MOST_IDLE = 1.0


async def prepare(order: Order) -> None:
    connection = await asyncpg.connect(order.url)
    await connection.execute(TABLES)
    await connection.close()


async def enqueue(order: Order) -> None:
    connection = await asyncpg.connect(order.url)

    async def insert(numbers: list[int]) -> None:
        await connection.fetch(ENQUEUE, [json.dumps({"n": n}) for n in numbers])

    await send(order, insert)


async def work(order: Order) -> None:
    ran = recorder(order)

    async def noop(n: int) -> None:
        ran(n)

    async def attempt(row: Any) -> tuple[int, int]:
        await noop(**json.loads(row["payload"]))
        return row["seq"], row["token"]

    complete = COMPLETE_BY_JOIN if order.settings.get("join") else COMPLETE
    connection = await asyncpg.connect(order.url)
    hint = asyncio.Event()
    await connection.add_listener("bare", lambda *_: hint.set())
    await async_gate()
    while True:
        hint.clear()
        rows = await connection.fetch(CLAIM, order.slot, order.settings["batch"])
        if rows:
            ended = await asyncio.gather(*(asyncio.create_task(attempt(row)) for row in rows))
            await connection.fetch(complete, [seq for seq, _ in ended], [token for _, token in ended])
        elif order.until_empty:
            return
        else:
            try:
                await asyncio.wait_for(hint.wait(), MOST_IDLE)
            except TimeoutError:
                continue


if __name__ == "__main__":
    main({"prepare": prepare, "enqueue": enqueue, "fill": enqueue, "work": work})
