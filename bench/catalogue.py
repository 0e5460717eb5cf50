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

    def begin(self, session: Session) -> Callable[[], None] | None:
        """What some works begin before all others; the answer is to be called after `measure`."""
        begin: Callable[[Session], Callable[[], None]] | None = getattr(self.module, "begin", None)
        return begin(session) if begin else None


WORKS = (
    Work(
        "drain",
        "Drain",
        drain,
        (drain.ONE.key, drain.DEFAULT.key, drain.TWO.key, drain.WAL.key, drain.IMAGES.key),
    ),
    Work(
        "enqueue",
        "Enqueue",
        enqueue,
        (
            enqueue.ONE.key,
            enqueue.DEFAULT.key,
            enqueue.EIGHT.key,
            enqueue.BULK.key,
            enqueue.CLIENTS.key,
            enqueue.QUIET.key,
        ),
    ),
    Work(
        "latency",
        "Latency of an idle worker",
        latency,
        (
            latency.P50.key,
            latency.P99.key,
            latency.COLD.key,
            latency.DEFAULT_P50.key,
            latency.DEFAULT_P99.key,
        ),
    ),
    Work("backlog", "A large table", backlog, (backlog.EMPTY.key, backlog.PENDING.key, backlog.FINISHED.key)),
    Work("steady", "Steady state", steady, (steady.FIRST.key, steady.LAST.key, steady.BEGUN.key, steady.BESIDE.key)),
    Work(
        "routes",
        "Routes",
        routes,
        (routes.ALONE.key, routes.CONTENDING.key, routes.SINGLE.key, routes.EMPTY.key, routes.REFRESH.key),
    ),
    Work("fairness", "Fairness", fairness, (fairness.SHARED.key, fairness.FLOODED.key, fairness.PLAIN.key)),
    Work(
        "sqlite",
        "SQLite",
        sqlite,
        (
            sqlite.ONE.key,
            sqlite.DEFAULT.key,
            sqlite.FOUR.key,
            sqlite.SHARE.key,
            sqlite.ENQUEUE.key,
            sqlite.ENQUEUE_DEFAULT.key,
        ),
    ),
    Work(
        "idle",
        "Idle workers",
        idle,
        (idle.QUERIES.key, idle.CPU.key, idle.CROWD_QUERIES.key, idle.CROWD_CPU.key, idle.CROWD_SERVER.key),
    ),
    Work("brokers", "Brokers", brokers, (brokers.WORKER.key, brokers.ONE.key, brokers.SIXTEEN.key, brokers.IDLE.key)),
    Work(
        "resp",
        "Redis clients",
        resp,
        (
            resp.ONE.key,
            resp.SIXTEEN.key,
            resp.PIPELINED.key,
            resp.P50.key,
            resp.P99.key,
            resp.MEMORY.key,
            resp.PARKED.key,
        ),
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
    Work("pools", "Pools", pools, (pools.P50.key, pools.P99.key)),
    Work(
        "machines",
        "Machines",
        machines,
        (
            machines.POSTGRES.state.key,
            machines.COMMITS.key,
            machines.SQLITE.state.key,
            machines.POSTGRES.launches.key,
            machines.SQLITE.launches.key,
            machines.POSTGRES.items.key,
            machines.SQLITE.items.key,
        ),
    ),
    Work("web", "The web", web, web.KEYS),
)
