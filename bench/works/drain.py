"""Drain: worker processes empty a full queue of no-op jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import psycopg

from bench.contenders import BARE, HOLDFAST, Contender, StoreKind
from bench.environments import NotRun
from bench.figures import Sample, Subject
from bench.races import drain, race_on
from bench.session import Session
from bench.stores import fill, filled

ONE = Subject("drain.one", "drain, one worker process", "jobs/s")
DEFAULT = Subject("drain.default", "drain, one worker process, as it comes", "jobs/s")
TWO = Subject("drain.two", "drain, two worker processes", "jobs/s")
WAL = Subject("drain.wal", "WAL, from the end of the enqueue to that of the drain", "B/job", more_is_better=False)
IMAGES = Subject("drain.images", "the same, with a checkpoint before the drain", "B/job", more_is_better=False)
TRIAL = 0.5  # share of the jobs, when settings are tried
WRITERS = frozenset({HOLDFAST, BARE, "pgqueuer"})

LSN = "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
REDO = "select redo_lsn from pg_control_checkpoint()"

HOW = """
No-op async jobs with a small JSON payload wait in the queue; PostgreSQL has vacuumed and knows its statistics. The
clock starts when every worker process has run its first job, so process start is not in it, and stops when the store
says that all have ended. Everybody runs at its best: with uvloop and, where a batch size matters, with the best of
several, which are tried before the rounds, for one process and for two; and, in the same rounds, as it comes: with its
own defaults on asyncio's own event loop, half as many jobs. WAL: after a checkpoint the jobs are enqueued; then the
position in PostgreSQL's log is read, one worker drains them, and the position is read again. full_page_writes is on,
and no checkpoint comes in between, so the image of a page that the enqueue has just written is not counted once more;
with a checkpoint before the drain it is.
"""


def measure(session: Session) -> None:
    scale = session.scale
    choose_best(session, "postgres", "redis")
    contenders = session.contenders("postgres", "redis")
    for_two = {each.name: best_of(session, each, workers=2) for each in contenders}

    def rate(subject: Subject, contender: Contender, jobs: int, workers: int) -> None:
        sample = drain(session, contender, jobs=round(jobs * contender.pace), workers=workers)
        session.record(subject, contender.name, sample, note=contender.told)

    def one(contender: Contender) -> None:
        session.cells(
            contender,
            partial(rate, ONE, contender, scale.drain, 1),
            partial(rate, DEFAULT, contender.as_it_comes, scale.drain // 2, 1),
        )

    def two(contender: Contender) -> None:
        rate(TWO, for_two[contender.name], scale.drain_two, 2)

    def wal(contender: Contender) -> None:
        measured = partial(_wal, session, contender)
        session.cells(contender, partial(measured, WAL, ""), partial(measured, IMAGES, "checkpoint"))

    session.rounds(contenders, one)
    session.rounds(contenders, two, rounds=scale.long_rounds)
    session.rounds([each for each in contenders if each.name in WRITERS], wal, rounds=scale.slow_rounds)


def choose_best(session: Session, *kinds: StoreKind) -> None:
    """For contenders whose settings have to be found: try each, and go on with the best."""
    for contender in session.unsettled(*kinds):
        session.settle(contender, best_of(session, contender, workers=1).settings)


def best_of(session: Session, contender: Contender, *, workers: int) -> Contender:
    """The contender with the best of the settings it might have, for so many processes."""
    jobs = round((session.scale.drain if workers == 1 else session.scale.drain_two) * TRIAL)
    rates: list[tuple[float, Contender]] = []
    for settings in contender.trials:
        tried = replace(contender, settings=settings)
        session.progress.show(f"{session.work}: trying {contender.name} with {tried.told}, {workers} at once")
        trial: Callable[[], Sample] = partial(drain, session, tried, jobs=jobs, workers=workers)
        try:
            sample = session.undisturbed(contender, trial, lambda sample: sample.disturbance)
        except NotRun as problem:
            session.absent(contender.name, f"{tried.told}: {problem}")
        else:
            rates.append((sample.value, tried))
    return max(rates, key=lambda each: each[0], default=(0.0, contender))[1]


def _wal(session: Session, contender: Contender, subject: Subject, between: str) -> None:
    jobs = session.scale.drain // 2
    with (
        session.postgres.lend(contender, filled(0)) as store,  # just after a checkpoint
        psycopg.connect(store.url, autocommit=True) as looker,
    ):
        fill(contender, store.url, jobs)
        if between:
            looker.execute(between.encode())
        before, redo = _asked(looker, LSN), _asked(looker, REDO)
        race_on(session, contender, store, jobs=jobs)
        after = _asked(looker, LSN)
        if _asked(looker, REDO) != redo:
            raise NotRun("a checkpoint came in between")
    written = float(str(after)) - float(str(before))
    # Without its share of the machine: how much is written does not depend on who else was there.
    session.record(subject, contender.name, Sample(written / jobs), note=contender.told)


def _asked(connection: psycopg.Connection[tuple[object, ...]], question: str) -> object:
    return connection.execute(question.encode()).fetchall()[0][0]
