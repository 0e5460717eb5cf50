"""The works in the order in which they are measured and shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from bench.session import Session
from bench.works import (
    agents,
    backlog,
    batches,
    drain,
    enqueue,
    fairness,
    idle,
    latency,
    routes,
    sqlite,
    startup,
    steady,
)


@dataclass(frozen=True, slots=True)
class Work:
    name: str
    title: str
    module: ModuleType
    keys: tuple[str, ...]

    @property
    def measure(self) -> Callable[[Session], None]:
        found: Callable[[Session], None] = self.module.measure
        return found


WORKS = (
    Work("drain", "Drain", drain, (drain.ONE.key, drain.TWO.key)),
    Work(
        "enqueue",
        "Enqueue",
        enqueue,
        (enqueue.ONE.key, enqueue.EIGHT.key, enqueue.BULK.key, enqueue.CLIENTS.key, enqueue.QUIET.key),
    ),
    Work("latency", "Latency of an idle worker", latency, (latency.P50.key, latency.P99.key, latency.COLD.key)),
    Work("backlog", "A large table", backlog, (backlog.EMPTY.key, backlog.PENDING.key, backlog.FINISHED.key)),
    Work("steady", "Steady state", steady, (steady.FIRST.key, steady.LAST.key)),
    Work(
        "routes",
        "Routes",
        routes,
        (routes.ALONE.key, routes.CONTENDING.key, routes.SINGLE.key, routes.EMPTY.key, routes.REFRESH.key),
    ),
    Work("fairness", "Fairness", fairness, (fairness.SHARED.key, fairness.FLOODED.key, fairness.PLAIN.key)),
    Work("sqlite", "SQLite", sqlite, (sqlite.ONE.key, sqlite.FOUR.key, sqlite.SHARE.key, sqlite.ENQUEUE.key)),
    Work(
        "idle",
        "Idle workers",
        idle,
        (idle.QUERIES.key, idle.CPU.key, idle.CROWD_QUERIES.key, idle.CROWD_CPU.key, idle.CROWD_SERVER.key),
    ),
    Work(
        "agents",
        "Agents",
        agents,
        (
            agents.RUNS.key,
            agents.RUN_CPU.key,
            agents.PROVIDER_CPU.key,
            agents.TURN.key,
            agents.TOOLS.key,
            agents.STREAMS.key,
        ),
    ),
    Work(
        "batches",
        "Batches, compaction and budgets",
        batches,
        (
            batches.FINAL.key,
            batches.TOOLED.key,
            batches.HYBRID.key,
            batches.SUMMARY.key,
            batches.UNBUDGETED.key,
            batches.BUDGETED.key,
        ),
    ),
    Work("startup", "Start-up and memory", startup, (startup.HELP.key, startup.READY.key, startup.MEMORY.key)),
)
