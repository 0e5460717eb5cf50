"""The web: lists and aggregates over a million runs, many readers of one run, and requests beside a bare route."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from bench import meter
from bench.contenders import HOLDFAST, Contender
from bench.contenders.protocol import Order
from bench.figures import Sample, Subject, percentile
from bench.players import Player, crew, play
from bench.session import Session
from bench.stores import Recipe
from bench.works.agents import PART as AGENTS
from bench.works.agents import TALK

SQLITE = "holdfast, SQLite"
BARE = "a bare FastAPI route"
PART = "holdfast_web"
MOUNT = "/ops"
API = f"{MOUNT}/api/v1"
TENANT = "tenant%207"
# Lists and aggregates, by what they are called on the page.
PATHS = {
    "runs": "/runs",
    "runs of an agent": "/runs?agent=guide",
    "runs of a tenant": f"/runs?tenant={TENANT}",
    "runs that failed": "/runs?state=failed",
    "runs of a tenant that failed": f"/runs?state=failed&tenant={TENANT}",
    "runs of a session": "/sessions/{session}/runs",
    "sessions": "/sessions",
    "a session": "/sessions/{session}",
    "messages of a session": "/sessions/{session}/messages",
    "usage of a session": "/sessions/{session}/usage",
    "turns of a run": "/runs/{run}/turns",
    "usage of a run": "/runs/{run}/usage",
    "waterfall of a run": "/runs/{run}/waterfall",
    "jobs": "/jobs",
    "jobs that failed": "/jobs?state=failed",
    "agents": "/agents",
    "queues": "/queues",
    "a queue": "/queues/default",
    "inquiries": "/inquiries",
    "tenants": "/tenants",
    "usage by day": "/usage?by=day",
    "usage by tenant": "/usage?by=tenant",
}
# What a browser asks for, by what the page is called.
PAGES = {
    "now": "/",
    "the doctor": "/now/health",
    "inbox": "/inbox",
    "runs": "/runs",
    "runs that failed": "/runs?state=failed",
    "runs of a tenant": f"/runs?tenant={TENANT}",
    "a run": "/runs/{run}",
    "events of a run": "/runs/{run}/events",
    "sessions": "/sessions",
    "a chat": "/sessions/{session}",
    "agents": "/agents",
    "an agent": "/agents/{agent}",
    "tools": "/tools",
    "calls": "/calls",
    "jobs": "/jobs",
    "jobs that failed": "/jobs?state=failed",
    "a job": "/jobs/{run}",
    "why": "/why?id={run}",
    "queues": "/queues",
    "a queue": "/queues/default",
    "workers": "/workers",
    "schedules": "/schedules",
    "batches": "/batches",
    "pools": "/pools",
    "machines": "/machines",
    "triggers": "/triggers",
    "plans": "/plans",
    "money": "/money",
    "money by tenant": "/money?by=tenant",
    "audit": "/audit",
    "settings": "/settings",
    "search": "/find?q=guide",
}


def _looked(title: str) -> Subject:
    return Subject(f"web.{title.replace(' ', '_')}", f"{title}, p95", "ms", more_is_better=False)


LOOKS = {title: _looked(title) for title in PATHS}
SHOWN = {title: _looked(f"page: {title}") for title in PAGES}
WORST = Subject("web.worst", "the slowest of them, p95", "ms", more_is_better=False)
WORST_PAGE = Subject("web.worst_page", "the slowest page, p95", "ms", more_is_better=False)
LAG = Subject("web.lag", "readers of one run at 30 pieces a second, p99 of the lag", "ms", more_is_better=False)
ALONE = Subject("web.alone", "CPU of the worker with one reader", "s", more_is_better=False)
CROWD = Subject("web.crowd", "CPU of the worker with all of them", "s", more_is_better=False)
POST = Subject("web.post", "POST /runs, 8 connections", "requests/s")
GET = Subject("web.get", "GET /runs/{id}, 8 connections", "requests/s")
KEYS = tuple(each.key for each in (*LOOKS.values(), WORST, *SHOWN.values(), WORST_PAGE, LAG, ALONE, CROWD, POST, GET))
CALLERS = 8
WARM = 5

HOW = """
A server of one process, with default settings, over a store with as many runs that have ended as the note says, of a
hundred tenants, and one session with many messages. A client on one connection asks for the first page of each list,
and for each aggregate, one after the other, and then for each page as a browser does. Then two runs, each in a worker
of its own, say 30 pieces a second; a client in another process has one reader of the one and, of the other, as many as
the note says, who are all there before it begins. The lag is from the moment a piece is said to the moment a reader has
it. The two workers' CPU is compared: both are on the same machine at the same time. Requests a second are those
of the API, with its gate, its audit and its commit, beside a route of the same process that returns what it is given.
"""


def measure(session: Session) -> None:
    def run(contender: Contender) -> None:
        name = SQLITE if contender.store == "sqlite" else HOLDFAST
        session.cell(contender, partial(_look, session, contender, name), repeats=0)
        session.cell(contender, partial(_streams, session, contender, name), repeats=0)
        session.cell(contender, partial(_hits, session, contender, name))

    session.rounds(session.contenders("postgres", "sqlite", only=frozenset({HOLDFAST})), run, rounds=1)


def _recipe(session: Session, runs: int = 0) -> Recipe:
    order = Order(n=runs, ahead=session.scale.web_messages)

    def make(contender: Contender, url: str) -> None:
        play(contender, "prepare", replace(order, url=url), limit=session.scale.limit * 3, part=PART)

    return Recipe(f"web_{runs}", make)


@contextmanager
def _served(session: Session, contender: Contender, runs: int = 0) -> Iterator[Order]:
    """A server over a store, and how its clients are started."""
    with session.stores(contender).lend(contender, _recipe(session, runs)) as store:
        order, limit = Order(url=store.url), session.scale.limit
        with crew([Player.of(contender, "serve", order, limit=limit, part=PART)]) as (server,):
            yield replace(order, slot=int(server.expect("ready")["port"]))


def _look(session: Session, contender: Contender, name: str) -> None:
    runs = session.scale.web_runs
    session.progress.show(f"web: lists of {runs:,} runs, {contender.store}")
    with _served(session, contender, runs) as order:
        for titles, prefix, subjects, worst in ((PATHS, API, LOOKS, WORST), (PAGES, MOUNT, SHOWN, WORST_PAGE)):
            found, lap = _asked(session, contender, order, [prefix + path for path in titles.values()])
            named = dict(zip(titles, found, strict=True))
            for title, value in named.items():
                session.record(subjects[title], name, Sample.of(value, lap), note=f"{runs:,} runs")
            slowest = max(named, key=lambda title: named[title])
            session.record(worst, name, Sample.of(named[slowest], lap), note=slowest)


def _asked(session: Session, contender: Contender, order: Order, paths: list[str]) -> tuple[list[float], meter.Lap]:
    """The p95 of each path, in milliseconds, and what the machine did meanwhile."""
    asking = replace(order, what=json.dumps(paths), n=session.scale.web_looks, warm=WARM)
    with crew([Player.of(contender, "look", asking, limit=session.scale.limit, part=PART)]) as (client,):
        client.expect("ready")
        before = meter.read()
        client.go()
        taken = client.expect("done")["times"]
        lap = meter.lap(before, meter.read())
    return [percentile(times, 0.95) for times in taken], lap


def _streams(session: Session, contender: Contender, name: str) -> None:
    readers, limit = session.scale.web_readers, session.scale.limit
    session.progress.show(f"web: {readers} readers of one run, one of another, {contender.store}")
    with _served(session, contender) as order:
        working = replace(order, until_empty=True, pause=TALK)
        with crew(
            [
                Player.of(contender, "work", replace(working, what="crier"), limit=limit, part=AGENTS),
                Player.of(contender, "work", replace(working, what="talker"), limit=limit, part=AGENTS),
                Player.of(contender, "read", replace(order, n=readers), limit=limit, part=PART),
            ]
        ) as (crowded, alone, reader):
            for player in (reader, crowded, alone):
                player.expect("ready")
            before, used = meter.read(), [meter.cpu_seconds({worker.pid}) for worker in (crowded, alone)]
            for player in (reader, crowded, alone):
                player.go()
            told = reader.expect("done")
            spent = [meter.cpu_seconds({each.pid}) - at for each, at in zip((crowded, alone), used, strict=True)]
            lap = meter.lap(before, meter.read())
    session.record(LAG, name, Sample.of(told["p99"], lap), note=f"{readers} readers")
    session.record(CROWD, name, Sample.of(spent[0], lap), note=f"{readers} readers")
    session.record(ALONE, name, Sample.of(spent[1], lap), note="1 reader")


def _hits(session: Session, contender: Contender, name: str) -> None:
    with _served(session, contender) as order:
        for subject, what in ((POST, "runs"), (GET, "run")):
            session.progress.show(f"web: {subject.title}, {contender.store}")
            session.record(subject, name, _hit(session, contender, replace(order, what=what)))
            if name == HOLDFAST:
                session.record(subject, BARE, _hit(session, contender, replace(order, what=f"bare {what}")))


def _hit(session: Session, contender: Contender, order: Order) -> Sample:
    requests = session.scale.web_requests
    order = replace(order, n=requests, callers=CALLERS)
    with crew([Player.of(contender, "hit", order, limit=session.scale.limit, part=PART)]) as (client,):
        client.expect("ready")
        before = meter.read()
        client.go()
        seconds = client.expect("done")["seconds"]
        lap = meter.lap(before, meter.read())
    return Sample.of(requests / seconds, lap, jobs=requests)
