"""Latency: how long a job waits for a worker that has nothing else to do."""

from __future__ import annotations

import time
from functools import partial

from bench import meter
from bench.contenders import Contender
from bench.contenders.protocol import Order
from bench.figures import Sample, Subject, percentile
from bench.players import Player, crew
from bench.races import Watch
from bench.session import Session
from bench.stores import filled
from bench.works.drain import choose_best

P50 = Subject("latency.p50", "enqueue-return to start, p50", "ms", more_is_better=False)
P99 = Subject("latency.p99", "enqueue-return to start, p99", "ms", more_is_better=False)
COLD = Subject("latency.cold", "the first job of a fresh worker", "ms", more_is_better=False)
DEFAULT_P50 = Subject("latency.default_p50", "the same as it comes, p50", "ms", more_is_better=False)
DEFAULT_P99 = Subject("latency.default_p99", "the same as it comes, p99", "ms", more_is_better=False)
EVERY = 0.02
WARM = 50  # jobs that come first and are not counted
LISTENING = 2.0  # a worker says that it is ready before it listens

HOW = """
One idle worker process, and another process that enqueues one job every 20 ms. Measured from the return of the
enqueueing call to the first line of the handler, on the clock that both share; below zero when the handler was faster
than the return. The first 50 jobs are not counted; the very first of them has a row of its own. With the settings that
were best in the drain, and, but for those far behind, as it comes: with its own defaults on asyncio's own event loop,
half as many jobs.
"""


def measure(session: Session) -> None:
    choose_best(session, "postgres", "redis")
    jobs = session.scale.latency

    def best(contender: Contender) -> None:
        delays, lap = wait(session, contender, jobs)
        values = (percentile(delays[WARM:], 0.50), percentile(delays[WARM:], 0.99), delays[0])
        for subject, value in zip((P50, P99, COLD), values, strict=True):
            session.record(subject, contender.name, Sample.of(value, lap, jobs=len(delays)), note=contender.told)

    def as_it_comes(contender: Contender) -> None:
        delays, lap = wait(session, contender, jobs // 2)
        for subject, share in ((DEFAULT_P50, 0.50), (DEFAULT_P99, 0.99)):
            sample = Sample.of(percentile(delays[WARM:], share), lap, jobs=len(delays))
            session.record(subject, contender.name, sample, note=contender.told)

    def both(contender: Contender) -> None:
        cells = [partial(best, contender)]
        if not contender.slow:
            cells.append(partial(as_it_comes, contender.as_it_comes))
        session.cells(contender, *cells)

    session.rounds(session.contenders("postgres", "redis"), both, rounds=session.scale.long_rounds)


def wait(session: Session, contender: Contender, counted: int) -> tuple[list[float], meter.Lap]:
    """The delays of so many jobs and those before them, in milliseconds."""
    jobs = WARM + counted
    with (
        session.stores(contender).lend(contender, filled(0)) as store,
        session.board(workers=1, jobs=jobs) as (board, path),
    ):
        working = Order(url=store.url, board=path, settings=contender.settings)
        sending = Order(url=store.url, board=path, n=jobs, pause=EVERY)
        limit = session.scale.limit
        with crew(
            Player.of(contender, verb, order, limit=limit) for verb, order in (("work", working), ("enqueue", sending))
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
        return board.delays(), lap
