"""The Redis-protocol gateway: a job a Redis client takes and completes, beside a list of a real Redis."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from bench import meter
from bench.contenders import HOLDFAST, Contender
from bench.contenders.list_client import GATEWAY
from bench.contenders.protocol import Order
from bench.figures import Sample, Subject, percentile
from bench.players import Player, crew, play
from bench.session import Session
from bench.stores import PostgresStores, Recipe, RedisStores, SqliteStores
from bench.works.idle import SETTLE, statements_each_second

ONE = Subject("resp.one", "one connection, BRPOPLPUSH and LREM", "jobs/s", more_is_better=True)
SIXTEEN = Subject("resp.sixteen", "the same over 16 connections", "jobs/s", more_is_better=True)
PIPELINED = Subject("resp.pipelined", "one connection, 50 jobs in a pipeline", "jobs/s", more_is_better=True)
P50 = Subject("resp.p50", "push to the reply of a parked pop, p50", "ms", more_is_better=False)
P99 = Subject("resp.p99", "push to the reply of a parked pop, p99", "ms", more_is_better=False)
MEMORY = Subject("resp.memory", "memory of 1,000 parked connections", "MB", more_is_better=False)
PARKED = Subject("resp.parked", "statements of 1,000 parked connections together", "/s", more_is_better=False)

SQLITE = "holdfast, SQLite"
DURABLE = "Redis, appendfsync always"
FLEETING = "Redis, no persistence"
SERVER, CLIENT = "holdfast_resp", "list_client"
RATES = ((ONE, 1, 1, 1), (SIXTEEN, 16, 1, 4), (PIPELINED, 1, 50, 4))  # connections, jobs at a time, share of jobs
CONNECTIONS = 1_000
WARM = 20
EVERY = 0.02

HOW = """
The same client takes elements from a list and removes them from a second one when they are done, by BRPOPLPUSH (in a
pipeline RPOPLPUSH) and LREM. Holdfast's gateway makes that a claim under a lease and a completion, each committed
before its reply; a Redis moves a string. Two of them are compared: one that flushes its log before it replies, and one
that stores nothing. The gateway is one process, on PostgreSQL or on SQLite. Then one element every 20 ms for a pop
that is parked, measured from the return of the push; and 1,000 connections that wait, each with a worker of its own:
how much memory of the gateway's process they take, and how many statements PostgreSQL logs.
"""


def measure(session: Session) -> None:
    postgres, sqlite = PostgresStores(), SqliteStores()
    durable, fleeting = RedisStores(appendonly="yes", appendfsync="always"), RedisStores()

    def run(contender: Contender) -> None:
        with ExitStack() as stack:
            servers = {
                HOLDFAST: stack.enter_context(_gateway(session, contender, postgres)),
                SQLITE: stack.enter_context(_gateway(session, contender, sqlite)),
                DURABLE: stack.enter_context(_redis(durable)),
                FLEETING: stack.enter_context(_redis(fleeting)),
            }
            for subject, callers, chunk, share in RATES:
                for name, order in servers.items():
                    session.progress.show(f"resp: {subject.title}: {name}")
                    jobs = session.scale.resp_jobs * share
                    working = replace(order, n=jobs, callers=callers, chunk=chunk)
                    session.record(subject, name, _drained(session, contender, working))
            for name in (HOLDFAST, SQLITE):
                session.progress.show(f"resp: a parked pop: {name}")
                _wake(session, contender, name, servers[name])
        session.progress.show(f"resp: {CONNECTIONS:,} parked")
        _park(session, contender, postgres)

    try:
        session.rounds(session.contenders("postgres", only=frozenset({HOLDFAST})), run, rounds=1)
    finally:
        for stores in (postgres, sqlite, durable, fleeting):
            stores.close()


def _made(contender: Contender, url: str) -> None:
    play(contender, "prepare", Order(url=url), limit=300, part=SERVER)


@contextmanager
def _served(
    session: Session, contender: Contender, stores: PostgresStores | SqliteStores
) -> Iterator[tuple[Player, Order]]:
    """A gateway over an empty store, and how its clients are started."""
    with stores.lend(contender, Recipe("resp", _made)) as store:
        limit = session.scale.limit
        with crew([Player.of(contender, "serve", Order(url=store.url), limit=limit, part=SERVER)]) as (server,):
            yield server, Order(url=str(server.expect("ready")["port"]), what=GATEWAY)


@contextmanager
def _gateway(session: Session, contender: Contender, stores: PostgresStores | SqliteStores) -> Iterator[Order]:
    with _served(session, contender, stores) as (_, order):
        yield order


@contextmanager
def _redis(stores: RedisStores) -> Iterator[Order]:
    yield Order(url=str(stores.empty_port()))


def _drained(session: Session, contender: Contender, order: Order) -> Sample:
    with crew([Player.of(contender, "work", order, limit=session.scale.limit, part=CLIENT)]) as (client,):
        client.expect("ready")
        before = meter.read()
        client.go()
        seconds = client.expect("done")["seconds"]
        lap = meter.lap(before, meter.read())
    return Sample.of(order.n / seconds, lap, jobs=order.n)


def _wake(session: Session, contender: Contender, name: str, order: Order) -> None:
    waking = replace(order, n=session.scale.latency, warm=WARM, pause=EVERY)
    with crew([Player.of(contender, "wake", waking, limit=session.scale.limit, part=CLIENT)]) as (client,):
        client.expect("ready")
        before = meter.read()
        client.go()
        delays = client.expect("done")["delays"]
        lap = meter.lap(before, meter.read())
    for subject, share in ((P50, 0.50), (P99, 0.99)):
        session.record(subject, name, Sample.of(percentile(delays, share), lap, jobs=len(delays)))


def _park(session: Session, contender: Contender, stores: PostgresStores) -> None:
    with _served(session, contender, stores) as (server, order):
        time.sleep(1.0)
        alone = meter.resident_mb(server.pid)
        parking = replace(order, n=CONNECTIONS)
        with crew([Player.of(contender, "park", parking, limit=session.scale.limit, part=CLIENT)]) as (client,):
            client.expect("ready")
            time.sleep(SETTLE)
            before = meter.read()
            statements = statements_each_second(stores, session.scale.idle_seconds)
            lap = meter.lap(before, meter.read())
            memory = meter.resident_mb(server.pid) - alone
    session.record(MEMORY, contender.name, Sample.of(memory, lap))
    session.record(PARKED, contender.name, Sample.of(statements, lap))
