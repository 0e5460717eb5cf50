"""Pools: how long a burst waits for the first worker process that did not run before it."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import psycopg

from bench.contenders import HOLDFAST, Contender
from bench.contenders.holdfast import hf, noop
from bench.figures import Sample, Subject, percentile
from bench.players import Player
from bench.session import Session
from bench.stores import filled

P50 = Subject("pools.p50", "a burst until a new worker process claims, p50", "s", more_is_better=False)
P99 = Subject("pools.p99", "the same, p99", "s", more_is_better=False)

APP = "bench.contenders.holdfast:hf"
KEPT = "select count(*) from holdfast.worker where name = 'pool default' and status = 'active'"
WORKERS = "select count(*) from holdfast.worker where pool = 'default' and status in ('starting', 'active', 'draining')"
CLAIMED = "select (select count(*) from holdfast.lease) + (select count(*) from holdfast.ended)"
OPTIONS = ("--min", "0", "--max", "2", "--slots", "5", "--scale-down-idle", "500ms")
BURST = 20
_LOOK = 0.005

HOW = """
`holdfast pool` with 0 to 2 workers, on PostgreSQL. When no worker is left, 20 jobs are enqueued in one
call. Measured from the return of that call until the first of them is claimed: the pool notices, decides and starts a
process, which imports the program, connects, registers and claims.
"""


def measure(session: Session) -> None:
    command = str(Path(sys.executable).parent / "holdfast")

    def run(contender: Contender) -> None:
        with session.postgres.lend(contender, filled(0)) as store:
            words = [command, "pool", APP, "--url", store.url, *OPTIONS]
            with (
                Player("holdfast pool", words, limit=session.scale.limit) as player,
                psycopg.connect(store.url, autocommit=True) as looker,
            ):
                delays = [_react(looker, player, store.url, number) for number in range(session.scale.bursts)]
        session.record(P50, contender.name, Sample(percentile(delays, 0.50)))
        session.record(P99, contender.name, Sample(percentile(delays, 0.99)))

    session.rounds(session.contenders("postgres", only=frozenset({HOLDFAST})), run, rounds=1)


def _react(looker: psycopg.Connection, player: Player, url: str, number: int) -> float:
    """Wait until the pool is kept and empty, enqueue a burst, and wait for the first claim: seconds."""
    _until(looker, player, KEPT, 1)
    while _count(looker, WORKERS):
        player.check()
        time.sleep(_LOOK)
    asyncio.run(_enqueue(url))
    enqueued = time.monotonic()
    _until(looker, player, CLAIMED, number * BURST + 1)
    delay = time.monotonic() - enqueued
    _until(looker, player, CLAIMED, (number + 1) * BURST)
    return delay


async def _enqueue(url: str) -> None:
    hf.settings = hf.settings.override({"url": url})
    await noop.enqueue_many((n,) for n in range(BURST))
    await hf.close()


def _until(looker: psycopg.Connection, player: Player, question: str, least: int) -> None:
    while _count(looker, question) < least:
        player.check()
        time.sleep(_LOOK)


def _count(looker: psycopg.Connection, question: str) -> int:
    return int(looker.execute(question).fetchall()[0][0])
