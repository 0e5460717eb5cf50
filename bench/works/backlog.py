"""Backlog: does a large table slow a worker down?

On a server of its own whose autovacuum is off, so that nobody analyzes the tables behind our back.
"""

from __future__ import annotations

from functools import partial

from bench.contenders import BARE, HOLDFAST, Contender
from bench.figures import Subject
from bench.filling import FINISHABLE, fill_finished, fill_pending
from bench.races import race
from bench.session import Session
from bench.stores import PostgresStores, Recipe, fill, filled, prepare
from bench.works.drain import choose_best

EMPTY = Subject("backlog.empty", "nothing but the jobs of the drain", "jobs/s")
PENDING = Subject("backlog.pending", "many pending jobs, never analyzed", "jobs/s")
FINISHED = Subject("backlog.finished", "many finished jobs in the table", "jobs/s")
TAKE_PART = frozenset({HOLDFAST, BARE, "pgqueuer"})

HOW = """
One worker process drains the head of the queue. Pending: hundreds of thousands of jobs wait (the count is with the
figure) and PostgreSQL has no statistics on them, as after a burst. Finished: so many jobs have come and gone, and the
tables were vacuumed on the way. Autovacuum is off, so that each case stays what it is.
"""


def measure(session: Session) -> None:
    scale = session.scale
    choose_best(session, "postgres")
    contenders = session.contenders("postgres", only=TAKE_PART)
    stores = PostgresStores(autovacuum="off")

    def pending(contender: Contender, url: str) -> None:
        prepare(contender, url)
        fill_pending(contender, url, scale.backlog_pending + scale.backlog_drain)

    def finished(contender: Contender, url: str) -> None:
        prepare(contender, url)
        fill_finished(contender, url, scale.backlog_finished)
        fill(contender, url, scale.backlog_drain)

    cases = (
        (EMPTY, filled(scale.backlog_drain), ""),
        (PENDING, Recipe("pending", pending, settled=False), f"{scale.backlog_pending:,} pending"),
        (FINISHED, Recipe("finished", finished, settled=False), f"{scale.backlog_finished:,} finished"),
    )

    def drained(contender: Contender, subject: Subject, recipe: Recipe, note: str) -> None:
        session.progress.show(f"backlog: {contender.name}, {subject.title}")
        whole = subject is not PENDING
        sample, _ = race(session, contender, stores, recipe, jobs=scale.backlog_drain, whole=whole)
        session.record(subject, contender.name, sample, note=note)

    def run(contender: Contender) -> None:
        for subject, recipe, note in cases:
            if subject is not FINISHED or contender.name in FINISHABLE:
                session.cell(contender, partial(drained, contender, subject, recipe, note))

    try:
        session.rounds(contenders, run, rounds=scale.long_rounds)
    finally:
        stores.close()
