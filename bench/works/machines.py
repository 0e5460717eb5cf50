"""Machines: what a state costs, and how fast machines are launched and run for the items of a list."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import psycopg

from bench import meter
from bench.contenders import HOLDFAST, Contender
from bench.contenders.protocol import Order
from bench.figures import Sample, Subject
from bench.players import Player, crew, play
from bench.session import Session
from bench.stores import Recipe

PART = "holdfast_machines"
LAUNCHES = 1_000
ITEMS = 10_000
COMMITS = Subject("machines.commits", "commits a state, PostgreSQL", "", more_is_better=False)
_COMMITTED = "select xact_commit from pg_stat_database where datname = current_database()"


class Subjects(NamedTuple):
    """What is measured on one database."""

    state: Subject
    launches: Subject
    items: Subject


def _subjects(store: str, name: str) -> Subjects:
    return Subjects(
        Subject(f"machines.state_{store}", f"a state with an action, {name}", "ms", more_is_better=False),
        Subject(f"machines.launches_{store}", f"{LAUNCHES:,} machines launched and played, {name}", "/s"),
        Subject(f"machines.items_{store}", f"foreach of {ITEMS:,} with a machine, {name}", "items/s"),
    )


POSTGRES = _subjects("postgres", "PostgreSQL")
SQLITE = _subjects("sqlite", "SQLite")

HOW = """
One worker in one process, with its default settings: PostgreSQL with synchronous_commit=on, SQLite with
synchronous=FULL, so each checkpoint is on disk before the next state begins. A state calls a plain Python method,
takes its output, tests a condition and is left; one execution passes through many, one after the other, and the figure
is its time for each. Commits are those that PostgreSQL counts, the worker's own included. 1,000 machines are launched
by one state, and measured until the last has ended. A foreach runs a machine of two states for each of 10,000 items,
which are children of one job.
"""


def measure(session: Session) -> None:
    def run(contender: Contender) -> None:
        subjects = SQLITE if contender.store == "sqlite" else POSTGRES
        session.cell(contender, partial(_state, session, contender, subjects.state))
        session.cell(contender, partial(_many, session, contender, subjects.launches, "launches", LAUNCHES))
        session.cell(contender, partial(_many, session, contender, subjects.items, "foreach", ITEMS), repeats=0)

    session.rounds(session.contenders("postgres", "sqlite", only=frozenset({HOLDFAST})), run, rounds=1)


def _prepared() -> Recipe:
    return Recipe("machines", lambda contender, url: play(contender, "prepare", Order(url=url), limit=300, part=PART))


def _state(session: Session, contender: Contender, subject: Subject) -> None:
    states = session.scale.machine_states
    session.progress.show(f"machines: {states} states, {contender.store}")
    with session.stores(contender).lend(contender, _prepared()) as store:
        before = _commits(store.url)
        seconds, _, lap = _played(session, contender, Order(url=store.url, what="states", n=states))
        commits = _commits(store.url) - before
    session.record(subject, contender.name, Sample.of(1e3 * seconds / states, lap, jobs=states))
    if commits:
        session.record(COMMITS, contender.name, Sample(commits / states))


def _many(session: Session, contender: Contender, subject: Subject, what: str, count: int) -> None:
    session.progress.show(f"machines: {what} of {count:,}, {contender.store}")
    with session.stores(contender).lend(contender, _prepared()) as store:
        own, seconds, lap = _played(session, contender, Order(url=store.url, what=what, n=count))
    note = f"all are stored after {own:.1f} s" if what == "launches" else ""
    session.record(subject, contender.name, Sample.of(count / seconds, lap, jobs=count), note=note)


def _played(session: Session, contender: Contender, order: Order) -> tuple[float, float, meter.Lap]:
    """Seconds until the machine has ended, and until all that it started has."""
    with crew([Player.of(contender, "play", order, limit=session.scale.limit, part=PART)]) as (player,):
        player.expect("ready")
        before = meter.read()
        player.go()
        told = player.expect("done")
        lap = meter.lap(before, meter.read())
    return told["own"], told["seconds"], lap


def _commits(url: str) -> int:
    """How many PostgreSQL has counted so far; a session that has ended has told all of its own."""
    if not url.startswith("postgres"):
        return 0
    with psycopg.connect(url, autocommit=True) as connection:
        return int(connection.execute(_COMMITTED).fetchall()[0][0])
