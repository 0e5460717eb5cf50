"""A race: worker processes run jobs that wait for them, and the board says how far they are.

The clock starts when every process has run its first job, so that neither start-up nor a late starter counts, and
stops when the store says that every job has ended. Only what was still to run when it started is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from bench import meter
from bench.board import Board
from bench.contenders import Contender
from bench.contenders.protocol import Order
from bench.environments import NotRun
from bench.figures import Sample
from bench.players import Player, crew
from bench.session import Session
from bench.stores import Lent, Recipe, Stores, filled

_LOOK = 0.002
_CHECK = 0.25


def drain(session: Session, contender: Contender, *, jobs: int, workers: int) -> Sample:
    """Jobs per second of `workers` processes that empty a queue of so many jobs."""
    return race(session, contender, session.stores(contender), filled(jobs), jobs=jobs, workers=workers)[0]


def race(
    session: Session,
    contender: Contender,
    stores: Stores,
    recipe: Recipe,
    *,
    jobs: int,
    workers: int = 1,
    whole: bool = True,
) -> tuple[Sample, list[int]]:
    """The rate at which `jobs` jobs end, and how many each process ran. Not `whole`: more jobs wait behind them."""
    with stores.lend(contender, recipe) as store:
        return race_on(session, contender, store, jobs=jobs, workers=workers, whole=whole)


def race_on(
    session: Session, contender: Contender, store: Lent, *, jobs: int, workers: int = 1, whole: bool = True
) -> tuple[Sample, list[int]]:
    """`race`, on a store as it stands."""
    with session.board(workers=workers) as (board, path):
        order = Order(url=store.url, board=path, until_empty=whole, settings=contender.settings)
        orders = [replace(order, slot=slot) for slot in range(workers)]
        with crew(Player.of(contender, "work", each, limit=session.scale.limit) for each in orders) as players:
            for player in players:
                player.expect("ready")
            for player in players:
                player.go()
            watch = Watch(session, board, players)
            watch.until(lambda: all(board.counts) or board.total >= jobs)
            begun, before = board.total, meter.read()  # in this order: a reading takes its time first, then counts
            if begun >= jobs:
                raise NotRun(f"all {jobs} jobs were done before each of the {workers} processes had run one")
            watch.until(lambda: board.total >= jobs, of=jobs)
            if whole:
                watch.until(lambda: not store.unfinished())
            ran, after = board.total, meter.read()
            lap, counted = meter.lap(before, after), (jobs if whole else ran) - begun
            return Sample.of(counted / lap.seconds, lap, jobs=counted), board.counts


class Watch:
    """Waits for something on the board, while the players are well."""

    def __init__(self, session: Session, board: Board, players: list[Player]) -> None:
        self._session = session
        self._board = board
        self._players = players

    def until(self, reached: Callable[[], bool], *, of: int = 0) -> None:
        checked = time.monotonic()
        while not reached():
            time.sleep(_LOOK)
            if time.monotonic() - checked > _CHECK:
                checked = time.monotonic()
                for player in self._players:
                    player.check()
                if of:
                    self._session.progress.count(self._board.total, of)
