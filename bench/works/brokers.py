"""Brokers: what it costs to claim and complete jobs without handlers, and to wait for them."""

from __future__ import annotations

import time

from bench import meter
from bench.contenders import HOLDFAST, Contender
from bench.contenders.protocol import Order
from bench.figures import Sample, Subject
from bench.players import Player, crew, play
from bench.session import Session
from bench.stores import PostgresStores, Recipe
from bench.works.idle import SETTLE, statements_each_second

WORKER = Subject("brokers.worker", "one worker, jobs that do nothing", "jobs/s", more_is_better=True)
ONE = Subject("brokers.one", "one broker, 20 jobs a claim", "jobs/s", more_is_better=True)
SIXTEEN = Subject("brokers.sixteen", "16 brokers in one process, 20 jobs a claim", "jobs/s", more_is_better=True)
IDLE = Subject("brokers.idle", "statements of 1,000 idle brokers together", "/s", more_is_better=False)
PART = "holdfast_brokers"
JOBS = 10_000
CLAIM = 20
IDLE_BROKERS = 1_000

HOW = """
10,000 jobs that do nothing, claimed and completed in one process: by the worker with its default settings, by one
broker, and by 16 brokers that share their hub. A broker claims up to 20 jobs at once and completes them together. Then
1,000 brokers in one process wait for jobs that never come, and PostgreSQL logs every statement for a while.
"""


def measure(session: Session) -> None:
    stores = PostgresStores()

    def run(contender: Contender) -> None:
        for subject, brokers in ((WORKER, 0), (ONE, 1), (SIXTEEN, 16)):
            session.progress.show(f"brokers: {subject.title}")
            session.record(subject, contender.name, _drained(session, contender, stores, brokers))
        session.progress.show(f"brokers: {IDLE_BROKERS:,} idle")
        session.record(IDLE, contender.name, _idle(session, contender, stores))

    try:
        session.rounds(session.contenders("postgres", only=frozenset({HOLDFAST})), run, rounds=1)
    finally:
        stores.close()


def _filled(jobs: int) -> Recipe:
    def make(contender: Contender, url: str) -> None:
        play(contender, "prepare", Order(url=url), limit=300, part=PART)
        if jobs:
            play(contender, "flood", Order(url=url, n=jobs, chunk=500), limit=600, part=PART)

    return Recipe(f"brokers_{jobs}", make)


def _drained(session: Session, contender: Contender, stores: PostgresStores, brokers: int) -> Sample:
    with stores.lend(contender, _filled(JOBS)) as store:
        order = Order(url=store.url, callers=brokers, chunk=CLAIM)
        with crew([Player.of(contender, "work", order, limit=session.scale.limit, part=PART)]) as (player,):
            player.expect("ready")
            before = meter.read()
            player.go()
            player.expect("done")
            lap = meter.lap(before, meter.read())
    return Sample.of(JOBS / lap.seconds, lap)


def _idle(session: Session, contender: Contender, stores: PostgresStores) -> Sample:
    limit = session.scale.limit + SETTLE + session.scale.idle_seconds
    with stores.lend(contender, _filled(0)) as store:
        order = Order(url=store.url, n=IDLE_BROKERS)
        with crew([Player.of(contender, "idle", order, limit=limit, part=PART)]) as (player,):
            player.expect("ready")
            time.sleep(SETTLE)
            before = meter.read()
            statements = statements_each_second(stores, session.scale.idle_seconds)
            return Sample.of(statements, meter.lap(before, meter.read()))
