"""Enqueue: jobs are accepted one by one, by several callers, in bulk, and by many processes; each call is committed."""

from __future__ import annotations

from functools import partial

from bench import meter
from bench.contenders import HOLDFAST, Contender
from bench.contenders.protocol import Order
from bench.figures import Sample, Subject
from bench.players import Player, crew
from bench.session import Session
from bench.stores import filled

ONE = Subject("enqueue.one", "enqueue, one by one", "jobs/s")
DEFAULT = Subject("enqueue.default", "enqueue, one by one, as it comes", "jobs/s")
EIGHT = Subject("enqueue.eight", "enqueue, 8 concurrent callers", "jobs/s")
BULK = Subject("enqueue.bulk", "enqueue, 1,000 a call", "jobs/s")
CLIENTS = Subject("enqueue.clients", "enqueue, 16 clients", "jobs/s")
QUIET = Subject("enqueue.quiet", "enqueue, 16 clients, without hints", "jobs/s")
CELLS = ((CLIENTS, ""), (QUIET, "quiet"))
PROCESSES = 16
CALLERS = 8
CHUNK = 1_000
WARM = 10  # calls, of what a process does once

HOW = """
One process, one caller, no worker; the clock starts after ten calls. One by one: each call returns before the next
begins; with uvloop, and, but for those far behind, as it comes on asyncio's own event loop. 8 concurrent callers: the
same call, made by eight tasks of one event loop, by Holdfast alone, whose calls then share their commits; three times
as many jobs. In bulk: 1,000 jobs a call, by the contender's own bulk call; those that have none are left out. 16
clients: as many processes, each of which enqueues one by one, all at once; in the same round the same with
`notify=False`.
"""


def measure(session: Session) -> None:
    def called(subject: Subject, contender: Contender, jobs: int, callers: int) -> None:
        sample = rate(session, contender, jobs=jobs, chunk=1, callers=callers)
        session.record(subject, contender.name, sample, note=contender.loop)

    def one(contender: Contender) -> None:
        jobs = session.scale.enqueue_one
        cells = [partial(called, ONE, contender, jobs, 1)]
        if contender.loop and not contender.slow:
            cells.append(partial(called, DEFAULT, contender.as_it_comes, jobs, 1))
        if contender.name == HOLDFAST:  # in the same round, so that the two can be compared
            cells.append(partial(called, EIGHT, contender, 3 * jobs, CALLERS))
        session.cells(contender, *cells)

    def bulk(contender: Contender) -> None:
        jobs = round(session.scale.enqueue_bulk * contender.pace)
        session.record(BULK, contender.name, rate(session, contender, jobs=jobs, chunk=CHUNK))

    def clients(contender: Contender) -> None:
        session.cells(contender, *(partial(at_once, subject, contender, what) for subject, what in CELLS))

    def at_once(subject: Subject, contender: Contender, what: str) -> None:
        session.record(subject, contender.name, rate_of_clients(session, contender, what))

    contenders = session.contenders("postgres", "redis")
    session.rounds(contenders, one)
    session.rounds([each for each in contenders if each.bulk], bulk, rounds=session.scale.long_rounds)
    session.rounds([each for each in contenders if each.name == HOLDFAST], clients, rounds=session.scale.slow_rounds)


def rate(session: Session, contender: Contender, *, jobs: int, chunk: int, callers: int = 1) -> Sample:
    with session.stores(contender).lend(contender, filled(0)) as store:
        order = Order(url=store.url, n=jobs, chunk=chunk, callers=callers, warm=WARM)
        with Player.of(contender, "enqueue", order, limit=session.scale.limit) as player:
            player.expect("ready")
            before = meter.read()
            player.go()
            seconds = player.expect("done")["seconds"]
            lap = meter.lap(before, meter.read())
    return Sample.of(jobs / seconds, lap, jobs=jobs)


def rate_of_clients(session: Session, contender: Contender, what: str) -> Sample:
    jobs = session.scale.enqueue_client
    with session.stores(contender).lend(contender, filled(0)) as store:
        order = Order(url=store.url, n=jobs, warm=WARM, what=what)
        limit = session.scale.limit
        with crew(Player.of(contender, "enqueue", order, limit=limit) for _ in range(PROCESSES)) as players:
            for player in players:
                player.expect("ready")
            before = meter.read()
            for player in players:
                player.go()
            seconds = max(player.expect("done")["seconds"] for player in players)
            lap = meter.lap(before, meter.read())
    return Sample.of(PROCESSES * jobs / seconds, lap, jobs=PROCESSES * jobs)
