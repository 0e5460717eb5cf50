"""Routes: the price of a claim when most of what waits is for others."""

from __future__ import annotations

from functools import partial

from bench import meter
from bench.contenders import HOLDFAST, Contender
from bench.contenders.protocol import Order
from bench.figures import Sample, Subject, median
from bench.players import Player, crew, play
from bench.session import Session
from bench.stores import Recipe, prepare

ALONE = Subject("routes.alone", "claim of 100, alone", "ms", more_is_better=False)
CONTENDING = Subject("routes.contending", "claim of 100, 4 contending, 25 served routes", "ms", more_is_better=False)
SINGLE = Subject("routes.single", "claim of 100, 4 contending, 1 served route", "ms", more_is_better=False)
EMPTY = Subject("routes.empty", "empty answers while work waited", "", more_is_better=False)
REFRESH = Subject("routes.refresh", "refresh of 5,000 served routes", "ms", more_is_better=False)
ROW_BY_ROW = "row by row"

PART = "holdfast_routes"
CLAIMERS = 4
REFRESHED = 5_000
CASES = ((ALONE, 1, False), (CONTENDING, CLAIMERS, False), (SINGLE, CLAIMERS, True))
SLACK = 2  # twice the jobs that will be claimed: there is always work

HOW = """
100,000 pending jobs on routes this worker may not serve are ahead of those it may; it serves 25 of 10,000 routes. The
operations a worker calls are timed by themselves. Contending: 4 processes claim at once; the same with one route is
what 25 of them are compared with. There is more work than is claimed, so an empty answer is a false one; those of
disturbed runs count too. Row by row is the form that asks of each waiting job whether the worker may take
it, as AgentPG does, on a plain table.
"""


def measure(session: Session) -> None:
    scale = session.scale
    claims = scale.routes_claims * 100

    def make(contender: Contender, url: str) -> None:
        prepare(contender, url)
        settings = {
            "routes": scale.routes,
            "blocked": scale.routes_blocked,
            "served": claims * CLAIMERS * SLACK,
            "crowd": claims * CLAIMERS * SLACK,
        }
        play(contender, "fill", Order(url=url, settings=settings), limit=scale.limit, part=PART)

    recipe = Recipe("routes", make)

    def run(contender: Contender) -> None:
        counts: list[int] = []  # jobs of every claim, also of one that took part in a disturbed run

        def claimed(subject: Subject, claimers: int, single: bool) -> None:
            with session.postgres.lend(contender, recipe) as store:
                order = Order(url=store.url, n=scale.routes_claims, settings={"single": int(single)})
                counts.extend(_claims(session, contender, subject, order, claimers))

        for case in CASES:
            session.progress.show(f"routes: {case[0].title}")
            session.cell(contender, partial(claimed, *case))
        empty = sum(not count for count in counts)
        session.record(EMPTY, contender.name, Sample(empty), note=f"{len(counts):,} claims a round")
        session.cell(contender, partial(looked, contender))

    def looked(contender: Contender) -> None:
        with session.postgres.lend(contender, recipe) as store:
            order = Order(url=store.url, n=scale.routes_claims, settings={"refreshed": REFRESHED})
            session.record(REFRESH, contender.name, _times(session, contender, "refresh", order))
            session.record(ALONE, ROW_BY_ROW, _times(session, contender, "row_by_row", order))

    session.rounds(session.contenders("postgres", only=frozenset({HOLDFAST})), run, rounds=scale.long_rounds)


def _claims(session: Session, contender: Contender, subject: Subject, order: Order, claimers: int) -> list[int]:
    """How many jobs each of the claims took."""
    limit = session.scale.limit
    with crew(Player.of(contender, "claims", order, limit=limit, part=PART) for _ in range(claimers)) as players:
        for player in players:
            player.expect("ready")
        before = meter.read()
        for player in players:
            player.go()
        answers = [answer for player in players for answer in player.expect("done")["answers"]]
        lap = meter.lap(before, meter.read())
    jobs = sum(count for _, count in answers)
    sample = Sample.of(median([taken for taken, _ in answers]), lap, jobs=jobs)
    session.record(subject, contender.name, sample, note=f"{jobs / len(answers):.0f} jobs a claim")
    return [count for _, count in answers]


def _times(session: Session, contender: Contender, verb: str, order: Order) -> Sample:
    with Player.of(contender, verb, order, limit=session.scale.limit, part=PART) as player:
        player.expect("ready")
        before = meter.read()
        player.go()
        times = player.expect("done")["times"]
        return Sample.of(median(times), meter.lap(before, meter.read()))
