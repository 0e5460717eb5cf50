"""The targets, as data, and the judgement on them.

They are meant for a quiet machine. A ratio is of the same run, so it holds on a busy one too, as far as the rounds
were equally busy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from bench.contenders import BARE, BARE_JOIN, CONTENDERS, HOLDFAST
from bench.figures import Figure, Figures, Noted, Subject, ratio, worst
from bench.meter import UNKNOWN
from bench.works import (
    agents,
    backlog,
    batches,
    brokers,
    drain,
    enqueue,
    fairness,
    idle,
    latency,
    machines,
    pools,
    resp,
    routes,
    sqlite,
    startup,
    steady,
    web,
)

Verdict = Literal["met", "missed", "too small to tell", "not measured"]
Sense = Literal["≥", "≤", "<"]
Reader = Callable[[Figures], float]


@dataclass(frozen=True, slots=True)
class Target:
    """`limit` is the least or the most that is good enough; `unit` is shown with both figures."""

    work: str
    what: str
    sense: Sense
    limit: float
    unit: str
    read: Reader


@dataclass(frozen=True, slots=True)
class Judged:
    """`disturbed`: others had too much of the machine in some round of a figure that the target is about."""

    target: Target
    measured: float
    verdict: Verdict
    disturbed: bool = False


def value(subject: Subject) -> Reader:
    """Holdfast's median."""
    return lambda figures: figure.median if (figure := figures.find(subject.key, HOLDFAST)) else UNKNOWN


def at_worst(subject: Subject) -> Reader:
    """The highest that Holdfast had in any round."""
    return lambda figures: worst(figure.values) if (figure := figures.find(subject.key, HOLDFAST)) else UNKNOWN


def cpu(subject: Subject) -> Reader:
    """CPU microseconds per job of Holdfast's workers and their database."""
    return lambda figures: figure.own_us if (figure := figures.find(subject.key, HOLDFAST)) else UNKNOWN


def of(subject: Subject, contender: str) -> Reader:
    """The median of one of them."""
    return lambda figures: figure.median if (figure := figures.find(subject.key, contender)) else UNKNOWN


def within_one(one: Subject, other: Subject, contender: str) -> Reader:
    """One figure of a contender as a multiple of another."""
    return lambda figures: compare(figures.find(one.key, contender), figures.find(other.key, contender))


def against(subject: Subject, contender: str) -> Reader:
    """Holdfast's figure as a multiple of another contender's."""
    return lambda figures: compare(figures.find(subject.key, HOLDFAST), figures.find(subject.key, contender))


def between(subject: Subject, one: str, other: str) -> Reader:
    """One's figure as a multiple of another's."""
    return lambda figures: compare(figures.find(subject.key, one), figures.find(subject.key, other))


def against_best(subject: Subject, best: Subject, contender: str) -> Reader:
    """Holdfast's figure as a multiple of another contender's at another subject."""
    return lambda figures: compare(figures.find(subject.key, HOLDFAST), figures.find(best.key, contender))


def within(one: Subject, other: Subject) -> Reader:
    """One of Holdfast's figures as a multiple of another."""
    return lambda figures: compare(figures.find(one.key, HOLDFAST), figures.find(other.key, HOLDFAST))


def against_best_postgres_peer(*subjects: Subject) -> Reader:
    """Holdfast's first figure as a multiple of the lowest one that a peer on PostgreSQL has at any of the subjects."""
    peers = [each.name for each in CONTENDERS if each.store == "postgres" and each.requires]

    def read(figures: Figures) -> float:
        found = [figures.find(subject.key, name) for subject in subjects for name in peers]
        best = min((each for each in found if each), key=lambda each: each.median, default=None)
        return compare(figures.find(subjects[0].key, HOLDFAST), best)

    return read


def compare(one: Figure | None, other: Figure | None) -> float:
    return ratio(one, other) if one and other else UNKNOWN


def group(work: str, *targets: tuple[str, Sense, float, str, Reader]) -> tuple[Target, ...]:
    return tuple(Target(work, *target) for target in targets)


# What they are about is a size, and a quick run is smaller.
SIZED = frozenset({"a large table", "steady state", "a crowd of idle workers", "the web over a million runs"})
PGQUEUER = "pgqueuer"

# By the name of the work that measures them.
TARGETS: dict[str, tuple[Target, ...]] = {
    "drain": (
        *group(
            drain.ONE.title,
            ("rate", "≥", 12_000, "jobs/s", value(drain.ONE)),
            ("CPU of worker and PostgreSQL", "≤", 50, "µs/job", cpu(drain.ONE)),
            ("against pgqueuer at its best", "≥", 2, "×", against(drain.ONE, PGQUEUER)),
            ("against the bare loop", "≥", 1, "×", against(drain.ONE, BARE)),
            ("against the bare loop with a better plan", "≥", 1, "×", against(drain.ONE, BARE_JOIN)),
            ("against procrastinate", "≥", 20, "×", against(drain.ONE, "procrastinate")),
        ),
        *group(
            "drain, one worker process, as it comes, without uvloop",
            ("against pgqueuer as it comes", "≥", 1.5, "×", against(drain.DEFAULT, PGQUEUER)),
            ("against pgqueuer at its best", "≥", 1.5, "×", against_best(drain.DEFAULT, drain.ONE, PGQUEUER)),
        ),
        *group(
            drain.TWO.title,
            ("rate", "≥", 20_000, "jobs/s", value(drain.TWO)),
            ("against pgqueuer at its best", "≥", 1.8, "×", against(drain.TWO, PGQUEUER)),
        ),
        *group("drain", ("WAL", "≤", 800, "B/job", value(drain.WAL))),
    ),
    "enqueue": group(
        "enqueue",
        ("one by one", "≥", 1_800, "jobs/s", value(enqueue.ONE)),
        ("one by one, against pgqueuer", "≥", 1.1, "×", against(enqueue.ONE, PGQUEUER)),
        ("8 concurrent callers, against one", "≥", 3, "×", within(enqueue.EIGHT, enqueue.ONE)),
        ("in bulk", "≥", 50_000, "jobs/s", value(enqueue.BULK)),
        ("in bulk, against pgqueuer", "≥", 1.5, "×", against(enqueue.BULK, PGQUEUER)),
        ("16 clients, against the same without hints", "≥", 0.8, "×", within(enqueue.CLIENTS, enqueue.QUIET)),
    ),
    "latency": group(
        "idle worker, one job per 20 ms",
        ("p50", "≤", 1.2, "ms", value(latency.P50)),
        ("p99", "≤", 5, "ms", value(latency.P99)),
        ("p50 against the bare loop", "≤", 2.5, "×", against(latency.P50, BARE)),
        (
            "p50 against the best of any PostgreSQL peer",
            "<",
            1,
            "×",
            against_best_postgres_peer(latency.P50, latency.DEFAULT_P50),
        ),
        (
            "p99 against the best of any PostgreSQL peer",
            "<",
            1,
            "×",
            against_best_postgres_peer(latency.P99, latency.DEFAULT_P99),
        ),
    ),
    "backlog": group(
        "a large table",
        ("pending, never analyzed, against the empty case", "≥", 0.85, "×", within(backlog.PENDING, backlog.EMPTY)),
        ("finished, vacuumed, against the empty case", "≥", 0.85, "×", within(backlog.FINISHED, backlog.EMPTY)),
    ),
    "steady": group(
        "steady state",
        ("the last part against the first", "≥", 0.85, "×", within(steady.LAST, steady.FIRST)),
        ("the same beside an open transaction", "≥", 0.85, "×", within(steady.BESIDE, steady.BEGUN)),
    ),
    "routes": group(
        "10,000 routes",
        ("claim of 100 from 25, alone", "≤", 4, "ms", value(routes.ALONE)),
        ("claim of 100 from 25, 4 contending, against 1", "≤", 1.5, "×", within(routes.CONTENDING, routes.SINGLE)),
        ("empty answers while work waited", "≤", 0, "", at_worst(routes.EMPTY)),
        ("refresh of 5,000", "≤", 40, "ms", value(routes.REFRESH)),
    ),
    "fairness": group(
        "fairness",
        ("wait beside a flood, against a short line", "≤", 2, "×", within(fairness.FLOODED, fairness.SHARED)),
    ),
    "sqlite": group(
        "SQLite, synchronous=FULL",
        ("one process", "≥", 20_000, "jobs/s", value(sqlite.ONE)),
        ("one process, against huey", "≥", 3, "×", against(sqlite.ONE, "huey")),
        ("enqueue one by one, against huey", "≥", 0.8, "×", against(sqlite.ENQUEUE, "huey")),
        ("4 processes: the least-served, of an even share", "≥", 25, "%", value(sqlite.SHARE)),
    ),
    "idle": (
        *group(
            "idle worker",
            ("statements", "≤", 1.5, "/s", value(idle.QUERIES)),
            ("CPU", "≤", 0.5, "% of a core", value(idle.CPU)),
        ),
        *group(
            "a crowd of idle workers",
            ("statements of each", "≤", 0.3, "/s", value(idle.CROWD_QUERIES)),
            ("CPU of each", "≤", 0.5, "% of a core", value(idle.CROWD_CPU)),
            ("CPU of PostgreSQL", "≤", 5, "% of a core", value(idle.CROWD_SERVER)),
        ),
    ),
    "brokers": group(
        "brokers",
        ("one, against the worker", "≥", 0.6, "×", within(brokers.ONE, brokers.WORKER)),
        ("16 in one process, against the worker", "≥", 0.6, "×", within(brokers.SIXTEEN, brokers.WORKER)),
        ("statements of 1,000 idle ones", "≤", 15, "/s", value(brokers.IDLE)),
    ),
    "resp": group(
        "Redis clients",
        ("one connection, against a Redis that flushes", "≥", 0.5, "×", against(resp.ONE, resp.DURABLE)),
        ("the same on SQLite", "≥", 0.5, "×", between(resp.ONE, resp.SQLITE, resp.DURABLE)),
        ("16 connections, against a Redis that flushes", "≥", 0.5, "×", against(resp.SIXTEEN, resp.DURABLE)),
        ("in a pipeline, against a Redis that flushes", "≥", 0.5, "×", against(resp.PIPELINED, resp.DURABLE)),
        ("a parked pop wakes, p50", "≤", 20, "ms", value(resp.P50)),
        ("a parked pop wakes, p99", "≤", 50, "ms", value(resp.P99)),
        ("memory of 1,000 parked connections", "≤", 64, "MB", value(resp.MEMORY)),
        ("statements of 1,000 parked connections", "≤", 15, "/s", value(resp.PARKED)),
    ),
    "agents": group(
        "agents",
        ("runs of two model calls and one tool call", "≥", 80, "runs/s", value(agents.RUNS)),
        ("CPU of ours a run", "≤", 12, "ms", value(agents.RUN_CPU)),
        ("our own time in a turn, p50", "≤", 10, "ms", value(agents.TURN)),
        ("tool calls of one worker", "≥", 2_500, "calls/s", value(agents.TOOLS)),
        ("live streams: p99 of the lag", "≤", 250, "ms", value(agents.STREAMS)),
    ),
    "batches": group(
        "batches",
        ("final turns applied by one worker", "≥", 50_000, "turns/min", value(batches.FINAL)),
        ("turns that start a tool call", "≥", 15_000, "turns/min", value(batches.TOOLED)),
    ),
    "startup": group(
        "start-up",
        ("holdfast --help", "≤", 0.4, "s", value(startup.HELP)),
        ("job worker ready", "≤", 1.5, "s", value(startup.READY)),
        ("memory of an idle worker", "≤", 90, "MB", value(startup.MEMORY)),
    ),
    "pools": group(
        "pools",
        ("a burst until a new worker process claims, p50", "≤", 2, "s", value(pools.P50)),
    ),
    "machines": group(
        "machines",
        ("a state with an action, PostgreSQL", "≤", 3, "ms", value(machines.POSTGRES.state)),
        ("a state with an action, SQLite", "≤", 1, "ms", value(machines.SQLITE.state)),
    ),
    "web": (
        *group(
            "the web over a million runs",
            ("the slowest list or aggregate, p95", "≤", 100, "ms", value(web.WORST)),
            ("the same on SQLite", "≤", 100, "ms", of(web.WORST, web.SQLITE)),
            ("the slowest page, p95", "≤", 200, "ms", value(web.WORST_PAGE)),
            ("the same on SQLite", "≤", 200, "ms", of(web.WORST_PAGE, web.SQLITE)),
        ),
        *group(
            "the web's streams",
            ("500 readers of one run: p99 of the lag", "<", 250, "ms", value(web.LAG)),
            ("the same on SQLite", "<", 250, "ms", of(web.LAG, web.SQLITE)),
            ("the worker's CPU, against one reader", "≤", 1.1, "×", within(web.CROWD, web.ALONE)),
            ("the same on SQLite", "≤", 1.1, "×", within_one(web.CROWD, web.ALONE, web.SQLITE)),
        ),
    ),
}


def judge(target: Target, figures: Figures, *, full: bool = True) -> Judged:
    noted = Noted(figures)
    measured = target.read(noted)
    disturbed = any(figure.disturbed for figure in noted.found)
    if math.isnan(measured):
        return Judged(target, measured, "not measured")
    if target.work in SIZED and not full:
        return Judged(target, measured, "too small to tell", disturbed)
    good = {"≥": measured >= target.limit, "≤": measured <= target.limit, "<": measured < target.limit}
    return Judged(target, measured, "met" if good[target.sense] else "missed", disturbed)


def judge_all(figures: Figures, works: Iterable[str] = TARGETS, *, full: bool = True) -> list[Judged]:
    return [judge(target, figures, full=full) for work in works for target in TARGETS[work]]
