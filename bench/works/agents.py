"""Agents: whole runs a second, our own time in a turn, tool calls a second, and live streams."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import psycopg

from bench import meter
from bench.contenders import HOLDFAST, Contender
from bench.contenders.protocol import Order
from bench.figures import Sample, Subject, percentile
from bench.players import Player, crew, play
from bench.session import Session
from bench.stores import PostgresStores, Recipe

RUNS = Subject("agents.runs", "runs of two model calls and one tool call, two worker processes", "runs/s")
RUN_CPU = Subject("agents.run_cpu", "CPU of ours a run, the simulator's left out", "ms", more_is_better=False)
PROVIDER_CPU = Subject("agents.provider_cpu", "CPU of the simulator a run", "ms", more_is_better=False)
TURN = Subject("agents.turn", "our own time in a turn, p50", "ms", more_is_better=False)
TOOLS = Subject("agents.tools", "tool calls of one worker, 50 slots, 10 ms each", "calls/s")
STREAMS = Subject("agents.streams", "live streams at 30 pieces a second, p99 of the lag", "ms", more_is_better=False)
PART = "holdfast_agents"
TOOLS_A_RUN = 100
TALK = 8.0  # seconds that a stream lasts

HOW = """
The provider simulator answers at once, in a process of its own; workers reach it through the official SDK over the
loopback. A run asks for one tool and then answers. Our own time in a turn is from its claim to the request, and from
the answer's last event to the end of the commit, one run after the other. Tools: runs that ask for 100 calls in one
turn, by a scripted model. Streams: as many runs at once as the note says, spoken in one process and followed in
another; the lag is from the moment a piece is said to the moment a reader has it.
"""


def measure(session: Session) -> None:
    stores = PostgresStores()

    def run(contender: Contender) -> None:
        with _provider(session, contender) as (url, provider):
            session.cell(contender, partial(_runs, session, contender, stores, url, provider))
            session.cell(contender, partial(_turns, session, contender, stores, url))
        session.cell(contender, partial(_tools, session, contender, stores))
        session.cell(contender, partial(_streams, session, contender, stores))

    try:
        session.rounds(
            session.contenders("postgres", only=frozenset({HOLDFAST})), run, rounds=session.scale.long_rounds
        )
    finally:
        stores.close()


@contextmanager
def _provider(session: Session, contender: Contender) -> Iterator[tuple[str, Player]]:
    with Player.of(contender, "provide", Order(), limit=session.scale.limit, part=PART) as player:
        url = player.expect("listening")["url"]
        player.go()
        yield url, player


def _filled(what: str, runs: int) -> Recipe:
    def make(contender: Contender, url: str) -> None:
        play(contender, "prepare", Order(url=url), limit=300, part=PART)
        if runs:
            play(contender, "fill", Order(url=url, n=runs, what=what), limit=600, part=PART)

    return Recipe(f"agents_{what}_{runs}", make)


def _runs(session: Session, contender: Contender, stores: PostgresStores, url: str, provider: Player) -> None:
    runs = session.scale.agent_runs
    session.progress.show(f"agents: {runs} runs")
    with stores.lend(contender, _filled("asker", runs)) as store:
        order = Order(
            url=store.url,
            provider=url,
            what="asker",
            until_empty=True,
            settings={"max_concurrent_streaming_runs": 20},
        )
        limit = session.scale.limit
        with crew(Player.of(contender, "work", order, limit=limit, part=PART) for _ in range(2)) as players:
            for player in players:
                player.expect("ready")
            before, asked = meter.read(), meter.cpu_seconds({provider.pid})
            for player in players:
                player.go()
            _until_ended(store.url, runs, players)
            lap, told = meter.lap(before, meter.read()), meter.cpu_seconds({provider.pid}) - asked
    session.record(RUNS, contender.name, Sample.of(runs / lap.seconds, lap, jobs=runs))
    session.record(RUN_CPU, contender.name, Sample.of(1e3 * (lap.own - told) / runs, lap))
    session.record(PROVIDER_CPU, contender.name, Sample.of(1e3 * told / runs, lap))


def _until_ended(url: str, runs: int, players: list[Player]) -> None:
    with psycopg.connect(url, autocommit=True) as watcher:
        while True:
            for player in players:
                player.check()
            row = watcher.execute("select count(*) from holdfast.run where finalized_at is not null").fetchone()
            if row is not None and row[0] >= runs:
                return
            time.sleep(0.02)


def _turns(session: Session, contender: Contender, stores: PostgresStores, url: str) -> None:
    session.progress.show("agents: one run after the other")
    with stores.lend(contender, _filled("asker", 0)) as store:
        order = Order(url=store.url, provider=url, n=session.scale.agent_turns)
        with Player.of(contender, "turns", order, limit=session.scale.limit, part=PART) as player:
            player.expect("ready")
            before = meter.read()
            player.go()
            own = player.expect("done")["own"]
            lap = meter.lap(before, meter.read())
    session.record(TURN, contender.name, Sample.of(percentile(own, 0.5), lap))


def _tools(session: Session, contender: Contender, stores: PostgresStores) -> None:
    runs = session.scale.agent_tool_runs
    session.progress.show(f"agents: {runs * TOOLS_A_RUN} tool calls")
    with stores.lend(contender, _filled("sleeper", runs)) as store:
        order = Order(url=store.url, what="sleeper", until_empty=True)
        with Player.of(contender, "work", order, limit=session.scale.limit, part=PART) as player:
            player.expect("ready")
            before = meter.read()
            player.go()
            _until_ended(store.url, runs, [player])
            lap = meter.lap(before, meter.read())
    calls = runs * TOOLS_A_RUN
    session.record(TOOLS, contender.name, Sample.of(calls / lap.seconds, lap, jobs=calls))


def _streams(session: Session, contender: Contender, stores: PostgresStores) -> None:
    streams = session.scale.agent_streams
    session.progress.show(f"agents: {streams} live streams")
    with stores.lend(contender, _filled("talker", 0)) as store:
        settings = {"max_concurrent_streaming_runs": streams, "batch": streams}
        working = Order(url=store.url, what="talker", pause=TALK, settings=settings)
        reading = Order(url=store.url, n=streams)
        limit = session.scale.limit
        with crew(
            Player.of(contender, verb, order, limit=limit, part=PART)
            for verb, order in (("work", working), ("read", reading))
        ) as (worker, reader):
            worker.expect("ready")
            reader.expect("ready")
            before = meter.read()
            reader.go()
            worker.go()
            told = reader.expect("done")
            lap = meter.lap(before, meter.read())
    session.record(STREAMS, contender.name, Sample.of(told["p99"], lap), note=f"{streams} streams")
