"""Drain: worker processes empty a full queue of no-op jobs."""

from __future__ import annotations

from dataclasses import replace

from bench.contenders import Contender
from bench.environments import NotRun
from bench.figures import Subject
from bench.races import drain
from bench.session import Session

ONE = Subject("drain.one", "drain, one worker process", "jobs/s")
TWO = Subject("drain.two", "drain, two worker processes", "jobs/s")
TRIAL = 0.5  # share of the jobs, when a batch size is tried

HOW = """
No-op async jobs with a small JSON payload wait in the queue; PostgreSQL has vacuumed and knows its statistics. The
clock starts when every worker process has run its first job, so process start is not in it, and stops when the store
says that all have ended.
"""


def measure(session: Session) -> None:
    choose_batches(session)
    contenders = session.contenders("postgres", "redis")

    def one(contender: Contender) -> None:
        jobs = round(session.scale.drain * contender.pace)
        session.record(ONE, contender.name, drain(session, contender, jobs=jobs, workers=1), note=_note(contender))

    def two(contender: Contender) -> None:
        jobs = round(session.scale.drain_two * contender.pace)
        session.record(TWO, contender.name, drain(session, contender, jobs=jobs, workers=2), note=_note(contender))

    session.rounds(contenders, one)
    session.rounds(contenders, two)


def choose_batches(session: Session) -> None:
    """For contenders that depend on a batch size: try each size, and go on with the best."""
    jobs = round(session.scale.drain * TRIAL)
    for contender in session.contenders("postgres", "redis"):
        if not contender.batches:
            continue
        rates: dict[int, float] = {}
        for size in contender.batches:
            session.progress.show(f"{session.work}: trying {contender.name} with batches of {size}")
            try:
                rates[size] = drain(session, _with_batch(contender, size), jobs=jobs, workers=1).value
            except NotRun as problem:
                session.absent(contender.name, f"batch {size}: {problem}")
        session.settle(contender, batch=max(rates, key=rates.__getitem__, default=contender.batches[0]))


def _with_batch(contender: Contender, size: int) -> Contender:
    return replace(contender, settings={**contender.settings, "batch": size})


def _note(contender: Contender) -> str:
    return ", ".join(f"{name} {value}" for name, value in contender.settings.items())
