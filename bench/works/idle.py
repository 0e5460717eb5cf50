"""Idle: what a worker costs that has nothing to do, alone and in a crowd."""

from __future__ import annotations

import re
import time

from bench import meter
from bench.contenders import HOLDFAST, Contender
from bench.contenders.protocol import Order
from bench.figures import Sample, Subject
from bench.players import Player, crew
from bench.session import Session
from bench.stores import PostgresStores, filled

QUERIES = Subject("idle.queries", "statements of one worker", "/s", more_is_better=False)
CPU = Subject("idle.cpu", "CPU of one worker process", "% of a core", more_is_better=False)
CROWD_QUERIES = Subject("crowd.queries", "statements of each worker in a crowd", "/s", more_is_better=False)
CROWD_CPU = Subject("crowd.cpu", "CPU of each worker in a crowd", "% of a core", more_is_better=False)
CROWD_SERVER = Subject("crowd.server", "CPU of PostgreSQL for the crowd", "% of a core", more_is_better=False)

PROCESSES = 4
SETTLE = 5.0
# Until most connections that only the start needed have closed.
CROWD_SETTLE = 40.0
CONNECTIONS = 5  # a worker's, at most: three that stay, two that close after half a minute
LEFT = 50

HOW = """
One worker process by itself; then a crowd of registered workers, each with connections, presence and heartbeat of its
own, in 4 processes, after 40 s of rest. CPU is measured first; then PostgreSQL logs every statement for a while, and
they are counted.
"""

STATEMENT = re.compile(r"LOG:  (?:execute|statement)\b")


def measure(session: Session) -> None:
    crowd = session.scale.idle_workers
    stores = PostgresStores(max_connections=str(crowd * CONNECTIONS + LEFT))

    def run(contender: Contender) -> None:
        with stores.lend(contender, filled(0)) as store:
            session.progress.show("idle: one worker")
            queries, cpu, _ = _watch(session, contender, stores, store.url, workers=1, processes=1)
        session.record(QUERIES, contender.name, queries)
        session.record(CPU, contender.name, cpu)
        with stores.lend(contender, filled(0)) as store:
            session.progress.show(f"idle: {crowd} workers")
            queries, cpu, server = _watch(session, contender, stores, store.url, workers=crowd, processes=PROCESSES)
        for subject, sample in ((CROWD_QUERIES, queries), (CROWD_CPU, cpu), (CROWD_SERVER, server)):
            session.record(subject, contender.name, sample, note=f"{crowd} workers")

    try:
        session.rounds(session.contenders("postgres", only=frozenset({HOLDFAST})), run, rounds=1)
    finally:
        stores.close()


def _watch(
    session: Session, contender: Contender, stores: PostgresStores, url: str, *, workers: int, processes: int
) -> tuple[Sample, Sample, Sample]:
    """Statements a second and CPU of each worker, and CPU of the server for all of them."""
    order = Order(url=url, n=workers // processes)
    limit = session.scale.limit + CROWD_SETTLE + 2 * session.scale.idle_seconds
    with crew(Player.of(contender, "idle", order, limit=limit) for _ in range(processes)) as players:
        for player in players:
            player.expect("ready")
        time.sleep(SETTLE if workers == 1 else CROWD_SETTLE)
        theirs = {pid for player in players for pid in meter.family(player.pid)}
        servers = meter.own_cpu_seconds(meter.family(stores.server.pid))
        before = meter.read(), meter.cpu_seconds(theirs)
        time.sleep(session.scale.idle_seconds)
        after = meter.read(), meter.cpu_seconds(theirs)
        later = meter.own_cpu_seconds(meter.family(stores.server.pid))
        statements = statements_each_second(stores, session.scale.idle_seconds)
    lap = meter.lap(before[0], after[0])
    cpu = (after[1] - before[1]) / lap.seconds
    server = sum(used - servers.get(pid, 0.0) for pid, used in later.items()) / lap.seconds
    each = workers // processes * processes
    return (
        Sample.of(statements / each, lap),
        Sample.of(100 * cpu / each, lap),
        Sample.of(100 * server, lap),
    )


def statements_each_second(stores: PostgresStores, seconds: float) -> float:
    """How many statements a second PostgreSQL answers now."""
    log = stores.server.socket_directory / "server.log"
    stores.configure("log_statement", "all")
    time.sleep(1.0)  # until every session has heard of it
    begin = log.stat().st_size
    time.sleep(seconds)
    with log.open("rb") as file:
        file.seek(begin)
        found = STATEMENT.findall(file.read().decode(errors="replace"))
    stores.configure("log_statement", "none")
    return len(found) / seconds
