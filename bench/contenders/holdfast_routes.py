"""Holdfast's claim and its refresh of routes, by themselves: the operations a worker calls, without the worker.

Also the form of claim that matches capabilities row by row, as a reference, on a table of its own.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from itertools import islice

import asyncpg

from bench.contenders.protocol import Order, async_gate, main, say
from holdfast.clock import Ports
from holdfast.durations import microseconds
from holdfast.kernel.claim import claim, heads
from holdfast.kernel.database import Database
from holdfast.kernel.drivers import connect
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import new_id
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import NewJob, Route
from holdfast.settings import Settings
from holdfast.workers.role import Role
from holdfast.workers.station import register, registration
from tests.support.jobs import plain_job

SERVED = 25
CLAIM = 100
CHUNK = 1_000
WARM = 3

ROW_BY_ROW_TABLE = """
create table row_by_row (
    seq bigint primary key, state text not null default 'pending', priority integer not null default 100,
    requires text[] not null
);
create index row_by_row_claim on row_by_row (priority, seq) where state = 'pending';
insert into row_by_row (seq, requires)
select row_number() over (order by j.seq), array['job:' || j.kind]
from holdfast.ready r join holdfast.job j on j.seq = r.seq;
analyze row_by_row;
"""
ROW_BY_ROW = """
select seq from row_by_row j where state = 'pending'
    and not exists (select 1 from unnest(j.requires) as needed where needed <> all($1::text[]))
order by priority, seq limit $2 for update skip locked
"""

ports = Ports()


def served_route(k: int) -> Route:
    return route_for("default", f"served{k}")


def blocked_route(k: int) -> Route:
    return route_for("default", f"blocked{k}")


async def opened(url: str) -> Database:
    database = connect(url, Settings(), ports)
    await database.open()
    return database


async def fill(order: Order) -> None:
    """Jobs on routes nobody here serves, all of them ahead; then as many on each served route; then a crowd on one."""
    blocked, served, crowd = (order.settings[name] for name in ("blocked", "served", "crowd"))
    others = order.settings["routes"] - SERVED
    database = await opened(order.url)
    await _insert(database, (blocked_route(k % others) for k in range(blocked)))
    await _insert(database, (served_route(k % SERVED) for k in range(served)))
    await _insert(database, (route_for("default", "crowd") for _ in range(crowd)))
    await database.close()


async def claims(order: Order) -> None:
    """Claim 100 so many times; say how long each took and how many jobs came."""
    database = await opened(order.url)
    who = registration(new_id(ports), Role(), (), CLAIM)._replace(incarnation=new_id(ports))
    worker = await register(database, who, [], Settings())
    single = order.settings["single"]
    routes = [route_for("default", "crowd").id] if single else [served_route(k).id for k in range(SERVED)]
    ttl = microseconds(Settings().lease_ttl)
    for _ in range(WARM):
        await database.transact(claim, worker, routes, 1, ttl)
    await async_gate()
    answers = []
    for _ in range(order.n):
        begun = time.perf_counter()
        leases = await database.transact(claim, worker, routes, CLAIM, ttl)
        answers.append(((time.perf_counter() - begun) * 1e3, len(leases)))
    say("done", answers=answers)
    await asyncio.Event().wait()  # stay present until the others have finished


async def refresh(order: Order) -> None:
    """Ask which of so many served routes have work."""
    database = await opened(order.url)
    routes = [blocked_route(k).id for k in range(order.settings["refreshed"])]
    for _ in range(WARM):
        await database.transact(heads, routes)
    await async_gate()
    times = []
    for _ in range(order.n):
        begun = time.perf_counter()
        await database.transact(heads, routes)
        times.append((time.perf_counter() - begun) * 1e3)
    say("done", times=times)


async def row_by_row(order: Order) -> None:
    """The reference: every pending row is asked whether this worker may take it. Rolled back."""
    connection = await asyncpg.connect(order.url)
    await connection.execute(ROW_BY_ROW_TABLE)
    capabilities = [f"job:served{k}" for k in range(SERVED)]
    await async_gate()
    times = []
    for _ in range(order.n):
        transaction = connection.transaction()
        await transaction.start()
        begun = time.perf_counter()
        await connection.fetch(ROW_BY_ROW, capabilities, CLAIM)
        times.append((time.perf_counter() - begun) * 1e3)
        await transaction.rollback()
    say("done", times=times)


async def _insert(database: Database, routes: Iterable[Route]) -> None:
    left = iter(routes)
    while some := list(islice(left, CHUNK)):
        await database.transact(enqueue, [_job(route) for route in some], sorted(set(some)), notify=False)


def _job(route: Route) -> NewJob:
    (capability,) = json.loads(route.capabilities)
    return plain_job(new_id(ports), capability.removeprefix("job:"), route, payload='{"n":0}')


if __name__ == "__main__":
    main({"fill": fill, "claims": claims, "refresh": refresh, "row_by_row": row_by_row})
