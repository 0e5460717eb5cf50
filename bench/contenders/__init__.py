"""Who is measured, with which versions and settings. Standard library only: peers import this too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

StoreKind = Literal["postgres", "redis", "sqlite"]

HOLDFAST = "holdfast"
BARE = "bare"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """`requires` are the packages of its own environment; without any it runs in this project's.

    `pace` is the share of a work's jobs it is given: a peer that is fifty times slower need not run as many for
    its rate to be known. `unfinished` asks its store whether a job is left that has not ended; without it a job
    counts as ended when it ran.
    """

    name: str
    module: str
    store: StoreKind
    about: str
    requires: tuple[str, ...] = ()
    pace: float = 1.0
    bulk: bool = True
    unfinished: str = ""
    settings: Mapping[str, int] = field(default_factory=dict)
    batches: tuple[int, ...] = ()  # sizes to try before the rounds; the best is used


CONTENDERS = (
    Contender(
        name=HOLDFAST,
        module="holdfast",
        store="postgres",
        about="concurrency 100, batch 200",
        unfinished="select exists (select 1 from holdfast.job where state in ('pending', 'running'))",
        settings={"concurrency": 100, "batch": 200},
    ),
    Contender(
        name=BARE,
        module="bare",
        store="postgres",
        about="asyncpg, one table; claim 100, run each as a task, complete 100 under their leases, one after the other",
        unfinished="select exists (select 1 from bare_job where state <> 'succeeded')",
        settings={"batch": 100},
    ),
    Contender(
        name="pgqueuer",
        module="pgqueuer",
        store="postgres",
        about="asyncpg, uvloop as its own command uses",
        requires=("pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"),
        unfinished="select exists (select 1 from pgqueuer)",
        batches=(100, 500, 1000),
    ),
    Contender(
        name="procrastinate",
        module="procrastinate",
        store="postgres",
        about="psycopg 3, concurrency 10",
        requires=("procrastinate==3.10.0", "psycopg[binary,pool]==3.3.8"),
        pace=0.15,
        unfinished="select exists (select 1 from procrastinate_jobs where status in ('todo', 'doing'))",
        settings={"concurrency": 10},
    ),
    Contender(
        name="saq",
        module="saq",
        store="postgres",
        about="its PostgreSQL queue, psycopg 3, concurrency 50",
        requires=("saq[postgres]==0.26.4", "psycopg[binary,pool]==3.3.8"),
        pace=0.2,
        bulk=False,
        unfinished="select exists (select 1 from saq_jobs where status in ('new', 'queued', 'active'))",
        settings={"concurrency": 50},
    ),
    Contender(
        name="celery",
        module="celery",
        store="redis",
        about="Redis without persistence, so not durable; prefork, one child a process, prefetch 64, early "
        "acknowledgement, no results, handlers not async",
        requires=("celery[redis]==5.7.0",),
        pace=0.2,
        bulk=False,
    ),
    Contender(
        name=HOLDFAST,
        module="holdfast",
        store="sqlite",
        about="concurrency 100, batch 200, synchronous=FULL",
        unfinished="select exists (select 1 from job where state in ('pending', 'running'))",
        settings={"concurrency": 100, "batch": 200},
    ),
    Contender(
        name="huey",
        module="huey",
        store="sqlite",
        about="WAL, synchronous=FULL, one thread a process; a job is deleted when it is taken, so a killed one is "
        "lost; handlers not async",
        requires=("huey==3.5.4",),
        pace=0.4,
        bulk=False,
    ),
)
