"""Who is measured, with which versions and settings. Standard library only: peers import this too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

StoreKind = Literal["postgres", "redis", "sqlite"]
Loop = Literal["", "asyncio", "uvloop"]  # "": it has no event loop

HOLDFAST = "holdfast"
BARE = "bare"
BARE_JOIN = "bare-join"
UVLOOP = "uvloop==0.23.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """`requires` are the packages of its own environment; without any it runs in this project's.

    `settings` and `loop` are the best we know for it; `defaults` are what it does when nobody says anything.

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
    loop: Loop = "uvloop"
    settings: Mapping[str, int] = field(default_factory=dict)
    defaults: Mapping[str, int] = field(default_factory=dict)
    trials: tuple[Mapping[str, int], ...] = ()  # settings to try before the rounds; the best are used
    works: frozenset[str] = frozenset()  # the only works it takes part in; none: all

    @property
    def slow(self) -> bool:
        """Whether it is so far behind that a few rounds tell all."""
        return self.pace < 0.1

    @property
    def as_it_comes(self) -> Contender:
        """With its own defaults, on asyncio's own event loop."""
        return replace(self, settings=self.defaults, loop=self.loop and "asyncio", trials=())

    @property
    def told(self) -> str:
        """Loop and settings, as a note beside a figure."""
        return ", ".join([*filter(None, [self.loop]), *(f"{name} {value}" for name, value in self.settings.items())])


# Where a job of Holdfast is says what becomes of it: one that has not ended and waits for nothing is in these.
UNFINISHED = "select exists (select 1 from {0}lease) or exists (select 1 from {0}ready)"

CONTENDERS = (
    Contender(
        name=HOLDFAST,
        module="holdfast",
        store="postgres",
        about="asyncpg; at its best with uvloop and the best of three batch sizes; as it comes 20 slots, batch 100",
        unfinished=UNFINISHED.format("holdfast."),
        settings={"concurrency": 100, "batch": 200},
        trials=(
            {"concurrency": 100, "batch": 200},
            {"concurrency": 200, "batch": 400},
            {"concurrency": 400, "batch": 1000},
        ),
    ),
    Contender(
        name=BARE,
        module="bare",
        store="postgres",
        about="asyncpg, one wide table; claim a batch, run each as a task, complete them under their leases, one batch "
        "after the other; at its best with uvloop and the best of two batch sizes; as it comes batch 100",
        unfinished="select exists (select 1 from bare_job where state <> 'succeeded')",
        settings={"batch": 100},
        defaults={"batch": 100},
        trials=({"batch": 100}, {"batch": 200}),
    ),
    Contender(
        name=BARE_JOIN,
        module="bare",
        store="postgres",
        about="the bare loop with another statement for the completion, whose plan does not compare every job of a "
        "batch with every other",
        unfinished="select exists (select 1 from bare_job where state <> 'succeeded')",
        settings={"batch": 100, "join": 1},
        defaults={"batch": 100, "join": 1},
        trials=({"batch": 500, "join": 1}, {"batch": 1000, "join": 1}),
        works=frozenset({"drain"}),
    ),
    Contender(
        name="pgqueuer",
        module="pgqueuer",
        store="postgres",
        about="asyncpg; at its best with uvloop, as its own command uses, and the best of three batch sizes; as it "
        "comes batch 10",
        requires=("pgqueuer==1.6.0", "asyncpg==0.32.0", UVLOOP),
        unfinished="select exists (select 1 from pgqueuer)",
        settings={"batch": 1000},
        defaults={"batch": 10},
        trials=({"batch": 100}, {"batch": 500}, {"batch": 1000}),
    ),
    Contender(
        name="procrastinate",
        module="procrastinate",
        store="postgres",
        about="psycopg 3; at its best with uvloop and concurrency 10; as it comes concurrency 1",
        requires=("procrastinate==3.10.0", "psycopg[binary,pool]==3.3.8", UVLOOP),
        pace=0.05,
        unfinished="select exists (select 1 from procrastinate_jobs where status in ('todo', 'doing'))",
        settings={"concurrency": 10},
        defaults={"concurrency": 1},
    ),
    Contender(
        name="saq",
        module="saq",
        store="postgres",
        about="its PostgreSQL queue, psycopg 3; at its best with uvloop and concurrency 50; as it comes concurrency 10",
        requires=("saq[postgres]==0.26.4", "psycopg[binary,pool]==3.3.8", UVLOOP),
        pace=0.05,
        bulk=False,
        unfinished="select exists (select 1 from saq_jobs where status in ('new', 'queued', 'active'))",
        settings={"concurrency": 50},
        defaults={"concurrency": 10},
    ),
    Contender(
        name="celery",
        module="celery",
        store="redis",
        about="Redis without persistence, so not durable; prefork, one child a process, early acknowledgement, no "
        "results, handlers not async; at its best prefetch 64, as it comes 4",
        requires=("celery[redis]==5.7.0",),
        pace=0.05,
        bulk=False,
        loop="",
        settings={"prefetch": 64},
        defaults={"prefetch": 4},
    ),
    Contender(
        name=HOLDFAST,
        module="holdfast",
        store="sqlite",
        about="synchronous=FULL; at its best with uvloop and the best of two batch sizes; as it comes 20 slots, "
        "batch 100",
        unfinished=UNFINISHED.format(""),
        settings={"concurrency": 100, "batch": 200},
        trials=({"concurrency": 100, "batch": 200}, {"concurrency": 200, "batch": 400}),
    ),
    Contender(
        name="huey",
        module="huey",
        store="sqlite",
        about="WAL, synchronous=FULL, which it does not have by itself, one thread a process; a job is deleted when it "
        "is taken, so a killed one is lost; handlers not async",
        requires=("huey==3.5.4",),
        pace=0.4,
        bulk=False,
        loop="",
    ),
)
