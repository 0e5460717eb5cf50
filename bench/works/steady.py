"""Steady state: jobs come as fast as they go, for a long time. Is the end as fast as the beginning?"""

from __future__ import annotations

from bench import meter
from bench.board import Board
from bench.contenders import BARE, HOLDFAST, Contender
from bench.contenders.protocol import Order
from bench.figures import Sample, Subject
from bench.players import Player, crew
from bench.races import Watch
from bench.session import Session
from bench.stores import filled

FIRST = Subject("steady.first", "the first part", "jobs/s")
LAST = Subject("steady.last", "the last part", "jobs/s")
TAKE_PART = frozenset({HOLDFAST, BARE})

HOW = """
One worker process runs while another process enqueues 1,000 a call, as long as no more than a few thousand wait.
Autovacuum is on, as PostgreSQL comes. The rates of the first and the last part of the jobs are compared.
"""


def measure(session: Session) -> None:
    scale = session.scale

    def run(contender: Contender) -> None:
        with (
            session.stores(contender).lend(contender, filled(0)) as store,
            session.board(workers=1) as (board, path),
        ):
            working = Order(url=store.url, board=path, settings=contender.settings)
            sending = Order(url=store.url, board=path, n=scale.steady, chunk=1_000, ahead=scale.steady_ahead)
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
                first = _stretch(watch, board, scale.steady_part)
                watch.until(lambda: board.total >= scale.steady - scale.steady_part, of=scale.steady)
                last = _stretch(watch, board, scale.steady)
        note = f"{scale.steady_part:,} of {scale.steady:,}"
        session.record(FIRST, contender.name, first, note=note)
        session.record(LAST, contender.name, last, note=note)

    session.rounds(session.contenders("postgres", only=TAKE_PART), run, rounds=scale.long_rounds)


def _stretch(watch: Watch, board: Board, end: int) -> Sample:
    """The rate from here until so many jobs have run in all."""
    before, begun = meter.read(), board.total
    watch.until(lambda: board.total >= end, of=end)
    lap = meter.lap(before, meter.read())
    counted = board.total - begun
    return Sample.of(counted / lap.seconds, lap, jobs=counted)
