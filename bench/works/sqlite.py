"""SQLite: one file, every commit on disk."""

from __future__ import annotations

from functools import partial

from bench.contenders import HOLDFAST, Contender
from bench.figures import Sample, Subject
from bench.races import drain, race
from bench.session import Session
from bench.stores import filled
from bench.works.drain import choose_best
from bench.works.enqueue import rate

ONE = Subject("sqlite.one", "drain, one process", "jobs/s")
DEFAULT = Subject("sqlite.default", "drain, one process, as it comes", "jobs/s")
FOUR = Subject("sqlite.four", "drain, 4 processes", "jobs/s")
SHARE = Subject("sqlite.share", "the least that one of 4 processes ran, of an even share", "%")
ENQUEUE = Subject("sqlite.enqueue", "enqueue, one by one", "jobs/s")
ENQUEUE_DEFAULT = Subject("sqlite.enqueue_default", "enqueue, one by one, as it comes", "jobs/s")
PROCESSES = 4

HOW = """
The same drain on a SQLite file in WAL mode with synchronous=FULL, at its best and as it comes. With 4 processes the
question is whether each of them gets its turn: the least-served one's count is compared with an even share.
"""


def measure(session: Session) -> None:
    scale = session.scale
    choose_best(session, "sqlite")

    def drained(subject: Subject, contender: Contender, jobs: int) -> None:
        sample = drain(session, contender, jobs=round(jobs * contender.pace), workers=1)
        session.record(subject, contender.name, sample, note=contender.told)

    def enqueued(subject: Subject, contender: Contender) -> None:
        sample = rate(session, contender, jobs=scale.enqueue_one, chunk=1)
        session.record(subject, contender.name, sample, note=contender.loop)

    def one(contender: Contender) -> None:
        cells = [partial(drained, ONE, contender, scale.sqlite)]
        if contender.loop:
            cells.append(partial(drained, DEFAULT, contender.as_it_comes, scale.sqlite))
        session.cells(contender, *cells)

    def four(contender: Contender) -> None:
        jobs = round(scale.sqlite_four * contender.pace)
        recipe = filled(jobs)
        sample, counts = race(session, contender, session.sqlite, recipe, jobs=jobs, workers=PROCESSES)
        session.record(FOUR, contender.name, sample)
        note = "ran " + ", ".join(f"{count:,}" for count in sorted(counts))
        session.record(SHARE, contender.name, Sample(100 * min(counts) / (jobs / PROCESSES)), note=note)

    def enqueue(contender: Contender) -> None:
        cells = [partial(enqueued, ENQUEUE, contender)]
        if contender.loop:
            cells.append(partial(enqueued, ENQUEUE_DEFAULT, contender.as_it_comes))
        session.cells(contender, *cells)

    contenders = session.contenders("sqlite")
    session.rounds(contenders, one, rounds=scale.long_rounds)
    session.rounds([each for each in contenders if each.name == HOLDFAST], four, rounds=scale.long_rounds)
    session.rounds(contenders, enqueue, rounds=scale.long_rounds)
