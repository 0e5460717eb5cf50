"""Latency: how long a job waits for a worker that has nothing else to do."""

from __future__ import annotations

import time

from bench import meter
from bench.contenders import Contender
from bench.contenders.protocol import Order
from bench.figures import Sample, Subject, percentile
from bench.players import Player, crew
from bench.races import Watch
from bench.session import Session
from bench.stores import filled

P50 = Subject("latency.p50", "enqueue-return to start, p50", "ms", more_is_better=False)
P99 = Subject("latency.p99", "enqueue-return to start, p99", "ms", more_is_better=False)
COLD = Subject("latency.cold", "the first job of a fresh worker", "ms", more_is_better=False)
EVERY = 0.02
WARM = 50  # jobs that come first and are not counted
LISTENING = 2.0  # a worker says that it is ready before it listens

HOW = """
One idle worker process, and another process that enqueues one job every 20 ms. Measured from the return of the
enqueueing call to the first line of the handler, on the clock that both share; below zero when the handler was faster
than the return. The first 50 jobs are not counted; the very first of them has a row of its own.
"""


def measure(session: Session) -> None:
    def wait(contender: Contender) -> None:
        jobs = WARM + session.scale.latency
        with (
            session.stores(contender).lend(contender, filled(0)) as store,
            session.board(workers=1, jobs=jobs) as (board, path),
        ):
            working = Order(url=store.url, board=path, settings={"batch": 100, **contender.settings})
            sending = Order(url=store.url, board=path, n=jobs, pause=EVERY)
            limit = session.scale.limit
            with crew(
                Player.of(contender, verb, order, limit=limit)
                for verb, order in (("work", working), ("enqueue", sending))
            ) as players:
                worker, sender = players
                worker.expect("ready")
                worker.go()
                sender.expect("ready")
                time.sleep(LISTENING)
                before = meter.read()
                sender.go()
                sender.expect("done")
                Watch(session, board, players).until(lambda: board.total >= jobs)
                lap = meter.lap(before, meter.read())
            delays = board.delays()
        for subject, value in (
            (P50, percentile(delays[WARM:], 0.50)),
            (P99, percentile(delays[WARM:], 0.99)),
            (COLD, delays[0]),
        ):
            session.record(subject, contender.name, Sample.of(value, lap, jobs=jobs))

    session.rounds(session.contenders("postgres", "redis"), wait)
