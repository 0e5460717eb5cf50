"""Steady state: jobs come as fast as they go, for a long time. Is the end as fast as the beginning?

Once more beside a transaction that stays open: while it does, PostgreSQL may clear away no row that went meanwhile. It
is begun before all other works, so that it is old when its turn comes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from bench import meter
from bench.board import Board
from bench.contenders import BARE, HOLDFAST, Contender
from bench.contenders.protocol import Order
from bench.environments import NotRun
from bench.figures import Sample, Subject
from bench.players import Player, crew
from bench.races import Watch
from bench.session import Session
from bench.stores import Lent, PostgresStores, filled

FIRST = Subject("steady.first", "the first part", "jobs/s")
LAST = Subject("steady.last", "the last part", "jobs/s")
BEGUN = Subject("steady.begun", "the first part beside a transaction just begun", "jobs/s")
BESIDE = Subject("steady.beside", "the last part beside a transaction that stayed open", "jobs/s")
TAKE_PART = frozenset({HOLDFAST, BARE})
CHUNK = 1_000
PATIENCE = 60.0  # seconds for what lies between two parts, however slow it has become
STRETCH = 30.0  # seconds for a part
SNAPSHOT = "select count(*) from holdfast.worker"

HOW = """
One worker process runs while another process enqueues 1,000 a call, as long as no more than a few thousand wait.
Autovacuum is on, as PostgreSQL comes. The rates of the first and the last part of the jobs are compared; the bare loop
runs once. Beside an open transaction: on a server of its own, a transaction takes a snapshot and then does nothing;
half of the jobs run while it is young, the other half when it has been open for as long as the note says, with other
works in between. It is measured once, and never repeated; where the end is so slow that it takes minutes, the rate is
of what ran within 30 seconds.
"""


@dataclass(frozen=True, slots=True)
class Open:
    """A transaction that stays open, in a store where half of the jobs have run."""

    stores: PostgresStores
    store: Lent
    transaction: psycopg.Connection[tuple[object, ...]]
    since: float
    first: Sample


def begin(session: Session) -> Callable[[], None]:
    """Open the transaction and run the first half beside it. The answer runs the second half, later."""
    begun = [
        (contender, _begin(session, contender))
        for contender in session.contenders("postgres", only=frozenset({HOLDFAST}))
    ]

    def finish() -> None:
        for contender, held in begun:
            _beside(session, contender, held)

    return finish


def measure(session: Session) -> None:
    scale = session.scale

    def run(contender: Contender) -> None:
        if contender.name == BARE and session.round:
            return  # once will do: no target is about it
        store = session.stores(contender)
        with (
            store.lend(contender, filled(0)) as lent,
            _running(session, contender, lent, scale.steady) as (watch, board),
        ):
            first = _stretch(watch, board, scale.steady_part)
            watch.until(lambda: board.total >= scale.steady - scale.steady_part, of=scale.steady)
            last = _stretch(watch, board, scale.steady)
        note = f"{scale.steady_part:,} of {scale.steady:,}"
        session.record(FIRST, contender.name, first, note=note)
        session.record(LAST, contender.name, last, note=note)

    session.rounds(session.contenders("postgres", only=TAKE_PART), run, rounds=scale.steady_rounds)


def _begin(session: Session, contender: Contender) -> Open:
    half = session.scale.beside // 2
    session.progress.show("steady: the first half beside a transaction just begun")
    stores = PostgresStores()
    session.kept.callback(stores.close)
    store = session.kept.enter_context(stores.lend(contender, filled(0)))
    transaction = session.kept.enter_context(psycopg.connect(store.url))
    transaction.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    transaction.execute(SNAPSHOT)  # from here on no row that goes may be cleared away
    since = time.monotonic()
    with _running(session, contender, store, half) as (watch, board):
        first = _stretch(watch, board, session.scale.steady_part)
        _until(watch, board, half)
    with psycopg.connect(stores.server.url(), autocommit=True) as connection:
        connection.execute("checkpoint")  # not in the works that follow, whose CPU would be charged with it
    stores.configure("autovacuum", "off")  # it could clear nothing away, and would disturb the works in between
    return Open(stores, store, transaction, since, first)


def _beside(session: Session, contender: Contender, held: Open) -> None:
    scale = session.scale
    half = scale.beside // 2
    session.progress.show(f"steady: until the transaction is {scale.beside_seconds:.0f} s old")
    time.sleep(max(0.0, held.since + scale.beside_seconds - time.monotonic()))
    session.progress.show("steady: the second half beside it")
    held.stores.configure("autovacuum", "on")
    with _running(session, contender, held.store, half) as (watch, board):
        _until(watch, board, half - scale.steady_part)
        last = _stretch(watch, board, min(half, board.total + scale.steady_part))
        ran = board.total
    held.transaction.execute(SNAPSHOT)  # it is still the same one
    minutes = (time.monotonic() - held.since) / 60
    session.record(BEGUN, contender.name, held.first, note=f"{scale.steady_part:,} of {half:,}")
    note = f"open for {minutes:.1f} minutes, {half + ran:,} jobs since"
    session.record(BESIDE, contender.name, last, note=note)


@contextmanager
def _running(session: Session, contender: Contender, store: Lent, jobs: int) -> Iterator[tuple[Watch, Board]]:
    """A worker, and a process that enqueues so many jobs for it, not too far ahead."""
    scale = session.scale
    with session.board(workers=1) as (board, path):
        working = Order(url=store.url, board=path, settings=contender.settings)
        sending = Order(url=store.url, board=path, n=jobs, chunk=CHUNK, ahead=scale.steady_ahead)
        with crew(
            Player.of(contender, verb, order, limit=scale.limit)
            for verb, order in (("work", working), ("enqueue", sending))
        ) as players:
            for player in players:
                player.expect("ready")
            for player in players:
                player.go()
            watch = Watch(session, board, players)
            watch.until(lambda: board.total > 0)
            yield watch, board


def _until(watch: Watch, board: Board, jobs: int) -> None:
    deadline = time.monotonic() + PATIENCE
    watch.until(lambda: board.total >= jobs or time.monotonic() > deadline, of=jobs)


def _stretch(watch: Watch, board: Board, end: int) -> Sample:
    """The rate from here until so many jobs have run in all, or time is over."""
    begun, before, deadline = board.total, meter.read(), time.monotonic() + STRETCH
    watch.until(lambda: board.total >= end or time.monotonic() > deadline, of=end)
    ran, after = board.total, meter.read()
    lap, counted = meter.lap(before, after), ran - begun
    if not counted:
        raise NotRun("no job ran in this part")
    return Sample.of(counted / lap.seconds, lap, jobs=counted)
