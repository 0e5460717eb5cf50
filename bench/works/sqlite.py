"""SQLite: one file, every commit on disk."""

from __future__ import annotations

from bench.contenders import HOLDFAST, Contender
from bench.figures import Sample, Subject
from bench.races import drain, race
from bench.session import Session
from bench.stores import filled
from bench.works.enqueue import rate

ONE = Subject("sqlite.one", "drain, one process", "jobs/s")
FOUR = Subject("sqlite.four", "drain, 4 processes", "jobs/s")
SHARE = Subject("sqlite.share", "the least that one of 4 processes ran, of an even share", "%")
ENQUEUE = Subject("sqlite.enqueue", "enqueue, one by one", "jobs/s")
PROCESSES = 4

HOW = """
The same drain on a SQLite file in WAL mode with synchronous=FULL. With 4 processes the question is whether each of
them gets its turn: the least-served one's count is compared with an even share.
"""


def measure(session: Session) -> None:
    scale = session.scale

    def one(contender: Contender) -> None:
        jobs = round(scale.sqlite * contender.pace)
        session.record(ONE, contender.name, drain(session, contender, jobs=jobs, workers=1))

    def four(contender: Contender) -> None:
        jobs = round(scale.sqlite_four * contender.pace)
        recipe = filled(jobs)
        sample, counts = race(session, contender, session.sqlite, recipe, jobs=jobs, workers=PROCESSES)
        session.record(FOUR, contender.name, sample)
        note = "ran " + ", ".join(f"{count:,}" for count in sorted(counts))
        session.record(SHARE, contender.name, Sample(100 * min(counts) / (jobs / PROCESSES)), note=note)

    def enqueue(contender: Contender) -> None:
        sample = rate(session, contender, jobs=scale.enqueue_one, chunk=1)
        session.record(ENQUEUE, contender.name, sample)

    contenders = session.contenders("sqlite")
    session.rounds(contenders, one)
    session.rounds([each for each in contenders if each.name == HOLDFAST], four)
    session.rounds(contenders, enqueue)
