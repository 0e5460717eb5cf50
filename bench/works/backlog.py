"""Backlog: does a large table slow a worker down?

On a server of its own whose autovacuum is off, so that nobody analyzes the tables behind our back.
"""

from __future__ import annotations

from functools import partial

import psycopg

from bench.contenders import BARE, HOLDFAST, Contender
from bench.figures import Subject
from bench.races import race
from bench.session import Session
from bench.stores import PostgresStores, Recipe, fill, filled, prepare
from bench.works.drain import choose_batches

EMPTY = Subject("backlog.empty", "nothing but the jobs of the drain", "jobs/s")
PENDING = Subject("backlog.pending", "many pending jobs, never analyzed", "jobs/s")
FINISHED = Subject("backlog.finished", "many finished jobs in the table", "jobs/s")
TAKE_PART = frozenset({HOLDFAST, BARE, "pgqueuer"})

HOW = """
One worker process drains the head of the queue. Pending: hundreds of thousands of jobs wait (the count is with the
figure) and PostgreSQL has no statistics on them, as after a burst. Finished: so many jobs have come and gone, and the
table was vacuumed since. Autovacuum is off, so that each case stays what it is.
"""

# Each row changes twice, as in life, so that its dead versions are there to be vacuumed.
FINISH = {
    HOLDFAST: (
        "update holdfast.job set state = 'running', worker = 0, token = 1, epoch = 1, claimed_at = created_at, "
        "lease_until = created_at",
        "update holdfast.job set state = 'succeeded', worker = null, lease_until = null, attempts = 1, "
        "result = 'null', finished_at = created_at",
        "insert into holdfast.attempt (job, epoch, token, worker, outcome, started_at, ended_at) "
        "select seq, 1, 1, 0, 'succeeded', created_at, created_at from holdfast.job",
    ),
    BARE: (
        "update bare_job set state = 'running', token = 1, worker = 0, lease_until = now()",
        "update bare_job set state = 'succeeded', worker = null, lease_until = null, finished_at = now()",
    ),
}


def measure(session: Session) -> None:
    scale = session.scale
    choose_batches(session)
    contenders = session.contenders("postgres", only=TAKE_PART)
    stores = PostgresStores(autovacuum="off")

    def pending(contender: Contender, url: str) -> None:
        prepare(contender, url)
        fill(contender, url, scale.backlog_pending + scale.backlog_drain)

    def finished(contender: Contender, url: str) -> None:
        prepare(contender, url)
        fill(contender, url, scale.backlog_finished)
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in FINISH[contender.name]:
                connection.execute(statement.encode())
            connection.execute("vacuum")
        fill(contender, url, scale.backlog_drain)

    cases = (
        (EMPTY, filled(scale.backlog_drain), ""),
        (PENDING, Recipe("pending", pending, settled=False), f"{scale.backlog_pending:,} pending"),
        (FINISHED, Recipe("finished", finished, settled=False), f"{scale.backlog_finished:,} finished"),
    )

    def run(contender: Contender) -> None:
        for subject, recipe, note in cases:
            if subject is FINISHED and contender.name not in FINISH:
                continue
            session.progress.show(f"backlog: {contender.name}, {subject.title}")
            whole = subject is not PENDING
            drained = partial(race, session, contender, stores, recipe, jobs=scale.backlog_drain)
            session.record(subject, contender.name, drained(whole=whole)[0], note=note)

    try:
        session.rounds(contenders, run, rounds=scale.long_rounds)
    finally:
        stores.close()
