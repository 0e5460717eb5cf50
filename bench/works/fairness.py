"""Fairness: how long one tenant's jobs wait while another floods the queue."""

from __future__ import annotations

import time
from functools import partial

from bench import meter
from bench.contenders import HOLDFAST, Contender
from bench.contenders.protocol import Order
from bench.figures import Sample, Subject, percentile
from bench.players import Player, crew, play
from bench.races import Watch
from bench.session import Session
from bench.stores import PostgresStores, Recipe

SHARED = Subject("fairness.shared", "wait beside a tenant with a short line, fair, p50", "ms", more_is_better=False)
FLOODED = Subject("fairness.flooded", "wait beside a flood, fair, p50", "ms", more_is_better=False)
PLAIN = Subject("fairness.plain", "wait beside a flood, first come first served, p50", "ms", more_is_better=False)
PART = "holdfast_fair"
EVERY = 0.02
CHUNK = 500
SHORT = 6_000  # jobs that keep the worker busy while the others come

HOW = """
One worker with its default 20 slots, jobs of 20 ms. One tenant has enqueued a line of jobs that keeps the worker busy
throughout; another sends one job every 20 ms. Measured from the return of its call to the start of its job. The line is
short or a flood; the queue is fair, or takes jobs in the order in which they came.
"""


def measure(session: Session) -> None:
    stores = PostgresStores()

    def run(contender: Contender) -> None:
        for subject, what, ahead in (
            (SHARED, "fair", SHORT),
            (FLOODED, "fair", session.scale.flood),
            (PLAIN, "plain", SHORT),
        ):
            session.progress.show(f"fairness: {ahead:,} jobs ahead, {what}")
            session.cell(contender, partial(waited, contender, subject, what, ahead))

    def waited(contender: Contender, subject: Subject, what: str, ahead: int) -> None:
        sample = _wait(session, contender, stores, what, ahead)
        session.record(subject, contender.name, sample, note=f"{ahead:,} jobs ahead")

    try:
        session.rounds(
            session.contenders("postgres", only=frozenset({HOLDFAST})), run, rounds=session.scale.slow_rounds
        )
    finally:
        stores.close()


def _filled(what: str, jobs: int) -> Recipe:
    def make(contender: Contender, url: str) -> None:
        play(contender, "prepare", Order(url=url), limit=300, part=PART)
        play(contender, "flood", Order(url=url, n=jobs, chunk=CHUNK, what=what), limit=600, part=PART)

    return Recipe(f"fairness_{what}_{jobs}", make)


def _wait(session: Session, contender: Contender, stores: PostgresStores, what: str, ahead: int) -> Sample:
    jobs = session.scale.calm
    with (
        stores.lend(contender, _filled(what, ahead)) as store,
        session.board(workers=1, jobs=jobs) as (board, path),
    ):
        working = Order(url=store.url, board=path)
        sending = Order(url=store.url, board=path, n=jobs, pause=EVERY, what=what)
        limit = session.scale.limit
        with crew(
            Player.of(contender, verb, order, limit=limit, part=PART)
            for verb, order in (("work", working), ("calm", sending))
        ) as players:
            worker, sender = players
            worker.expect("ready")
            sender.expect("ready")
            worker.go()
            time.sleep(1.0)
            before = meter.read()
            sender.go()
            sender.expect("done")
            Watch(session, board, players).until(lambda: len(board.delays()) >= jobs)
            lap = meter.lap(before, meter.read())
        return Sample.of(percentile(board.delays(), 0.5), lap)
