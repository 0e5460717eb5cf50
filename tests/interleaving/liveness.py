"""Who waits for whom: one session sleeps on a row, and every operation that needs nothing of it must go through.

A case is a row that can be held and a verb of the scene `Everything`. The verb must end while the holder still holds;
if the server names the holder as who blocks it, the case is wrong. No clock decides. A new row is one line of `HOLDS`,
a new operation one verb. What waits by nature stands in `BY_NATURE`, with the reason.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple

import asyncpg

from holdfast.agents import listings, queries
from holdfast.agents.lanes import close_lane
from holdfast.agents.lanes import list_lanes as list_closed_lanes
from holdfast.agents.money.api import list_budgets, set_budget
from holdfast.agents.money.records import BudgetRow, BudgetsSql
from holdfast.agents.people.rulings import list_inquiries
from holdfast.agents.runs.create import create_run
from holdfast.agents.runs.turn import Play, begin
from holdfast.agents.statements import RunsSql
from holdfast.durations import next_tick
from holdfast.errors import HoldfastError
from holdfast.kernel.broker_rows import NOWHERE, OwnerBeat
from holdfast.kernel.brokers import Claimer, claim_for, take
from holdfast.kernel.cancel import cancel, cancel_free_family
from holdfast.kernel.claim import claim
from holdfast.kernel.complete import complete
from holdfast.kernel.database import Transaction
from holdfast.kernel.drivers.lent_postgres import LentAsyncpg
from holdfast.kernel.duties import CLEANUP, SCHEDULES, acquire, clean_up
from holdfast.kernel.enqueue import enqueue, enqueue_children, enqueue_once, enqueue_unique
from holdfast.kernel.lanes import open_lanes
from holdfast.kernel.leases import beat, expire, return_unnamed
from holdfast.kernel.queries import list_jobs
from holdfast.kernel.queues import list_lanes, list_queues, set_queue
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import Lease, NewJob
from holdfast.kernel.schedules import NewSchedule, find_schedule, fire, put_schedule
from holdfast.kernel.statements import BrokersSql, EnqueueSql, JobsSql, LanesSql, LeasesSql, WaitingSql, WorkersSql
from holdfast.kernel.waiting import overdue, park, signal, store_step, wake
from holdfast.kernel.why import why
from holdfast.kernel.workers import adopt_routes, list_workers, look, lose_workers, register
from holdfast.machines import family
from holdfast.outcomes import Done, Snooze
from holdfast.resp.pops import ClaimRequest, QueueTurn, claim_asked, claim_at_once
from holdfast.resp.records import Epoch, HoldersSql
from holdfast.resp.workers import beat_all
from tests.interleaving.edits import Edit
from tests.interleaving.mutants import Mutant
from tests.interleaving.pausing import Call, Gate, call, through
from tests.interleaving.scene import CEILING_US, SECOND, TTL_US, Scene, verb
from tests.interleaving.scenes_agents import INTENT, PROMPT, Agents
from tests.interleaving.stage import Stage, staged
from tests.support.stores import Store

_HOUR = 3_600 * SECOND
COSTS = INTENT._replace(nano=1_000)
_MIGRATION_LOCK = 5_073_114  # as the driver takes it


class Talks(Agents):
    """Runs of agents, each in a session of its own, under a budget of its own."""

    name = "talks"

    async def accepted(self, name: str) -> Lease:
        """A run that was claimed."""
        session = name.removesuffix(" again")
        new = self.submission(name, None, session, session)
        await self.do(put_budget, new.session.id)
        await self.do(create_run, new, "")
        (lease,) = await self.do(claim, self.worker, [new.route.id], 1, TTL_US)
        assert isinstance(lease, Lease)
        return lease

    async def asked(self, name: str) -> Play:
        """Its model is being asked."""
        play = await self.play(await self.accepted(name))
        assert await self.do(begin, play, PROMPT, COSTS) == "begun"
        return play


class Everything(Scene):
    """Jobs of every standing, two of each: one whose rows somebody holds, and one that has nothing to do with it."""

    name = "everything"

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.talks = Talks(store)

    def laned(self, name: str, lane: str, concurrency: int = 1, **changes: Any) -> NewJob:
        return self.job(name, lane=lane, concurrency=concurrency, **changes)

    async def build(self) -> None:
        self.worker, self.stopped = await self.register(), await self.register("stopped")
        await self.do(acquire, CLEANUP, self.stopped, ttl_us=3 * _HOUR, gone=[])
        self.term = await self.do(acquire, SCHEDULES, self.worker, ttl_us=3 * _HOUR, gone=[])
        for name in ("held", "nightly"):
            tick = NewSchedule(name, "* * * * *", "UTC", "one", self.job(f"tick {name}"), route_for("default", "work"))
            await self.do(put_schedule, tick, next_tick)
        await self.build_losses()
        await self.put(self.job("runs held"), self.job("runs"), self.job("parks"))
        self.runs_held, self.runs, self.parks = await self.claimed(3)
        await self.put(self.laned("narrow", "held"), self.laned("other narrow", "other"))
        self.narrow, self.other_narrow = await self.claimed(2, laned=True)
        await self.put(self.laned("blocked", "held"))
        await self.claimed(2, laned=True)
        for name, channel in (("channel", "held"), ("other channel", "other")):
            await self.put(self.job(name))
            (waits,) = await self.claimed()
            await self.do(park, waits, channel=channel, timeout_us=None)
        key = self.job("unique", unique_key="held", unique_scope="live")
        await self.do(enqueue_unique, key, self.routes(key))
        once = self.job("once")
        await self.do(enqueue_once, once, self.routes(once), key="held")
        await self.store.advance("2h")  # lanes and routes are old: the next call that enqueues writes them
        for worker in (self.worker, self.stopped):
            await self.do(beat, worker, 0, [], ttl_us=TTL_US, ceiling_us=CEILING_US)
        await self.store.query(
            f"update holdfast.lease set lease_until = {self.store.clock.us + _HOUR} where true returning 1"
        )
        await self.do(set_queue, "default", on_orphan="requeue")
        await self.build_talks()
        await self.build_owners()
        await self.build_late()
        self.schedule = await self.do(find_schedule, "nightly")
        await self.put(self.job("ready held"), self.job("ready"))
        await self.put(self.laned("behind", "held"), self.laned("free", "free"))
        await self.store.query(f"update holdfast.lane set updated_at = {self.store.clock.us - 2 * _HOUR} returning 1")
        await self.store.query(f"update holdfast.route set used_at = {self.store.clock.us - 2 * _HOUR} returning 1")

    async def build_losses(self) -> None:
        """A worker is dead, and the next sweep ends what it had: jobs, runs that were to stop, children of machines.
        The families of two cancelled jobs are to be cancelled, and two jobs are due."""
        self.dead = await self.register("dead")
        await self.put(self.job("lost held"), self.job("lost"))
        await self.claimed(2, worker=self.dead)
        self.talks.worker = self.dead
        for name in ("dying held", "dying"):
            await self.talks.answered(await self.talks.asked(name))
            await self.talks.asked(f"{name} again")
            await self.do(cancel, self.talks.id(f"{name} again"), reason="no more")
        for name in ("machine held", "machine"):
            await self.launched(name, layer="machines")
        for name in ("machine held", "machine"):
            await self.claimed(1, f"machine:child of {name}", worker=self.dead)
            await self.do(cancel, self.id(f"child of {name}"), reason="no more")
        await self.do(lose_workers, gone=[self.dead], reason="killed")
        for name in ("parent held", "parent"):
            await self.launched(name)
            await self.do(cancel, self.id(name), reason="no more")
        await self.put(*(self.job(name, "other", delay_us=SECOND) for name in ("due held", "due")))

    async def build_late(self) -> None:
        """Jobs and runs that nobody has begun are overdue."""
        for name in ("late held", "late"):
            await self.put(self.job(name, "other", deadline_us=SECOND))
            new = self.talks.submission(name, None, name, name)
            await self.do(create_run, new._replace(job=new.job._replace(deadline_us=SECOND)), "")
        await self.store.advance("2s")

    async def launched(self, name: str, **changes: Any) -> None:
        """A parent that waits for its child."""
        kind = f"machine:{name}" if changes else "parent"
        await self.put(self.job(name, kind, **changes))
        (parent,) = await self.claimed(1, kind)
        child = self.job(f"child of {name}", f"machine:child of {name}" if changes else "child", **changes)
        await self.do(enqueue_children, parent, [child], self.routes(child))
        if changes:
            await self.do(family._park_unless_ended, parent, [child.id], None)
        else:
            await self.do(park, parent, channel=None, timeout_us=None)

    async def build_talks(self) -> None:
        self.talks.worker = self.worker
        self.asked_held = await self.talks.asked("held")
        self.asked = await self.talks.asked("other")
        self.begins = await self.talks.play(await self.talks.accepted("begins"))
        for lane in ("held", "other"):
            await self.do(close_lane, lane, None, person=True, reason="no money")

    async def build_owners(self) -> None:
        """Brokers and clients of a gateway, which share statements with others."""
        names = ("broker held", "broker", "client held", "client")
        self.broker_held, self.broker, self.client_held, self.client = [await self.enter(name) for name in names]

    async def enter(self, name: str) -> Epoch:
        unique = str(self.id("incarnation", name))
        who = self.who(name)._replace(incarnation=unique, host=self.worker if "broker" in name else NOWHERE)
        return Epoch(await self.do(register, who, [], ttl_us=2 * _HOUR, gone=[]), unique)

    # What workers do

    @verb
    def claim_plain(self) -> Call:
        return self.claiming(10)

    @verb
    def claim_in_lanes(self) -> Call:
        return self.claiming(10, laned=True)

    @verb
    def claim_for(self) -> Call:
        routes = frozenset(route_for("default", "work", laned=laned).id for laned in (False, True))
        return call(claim_for, [Claimer(self.worker, routes, 10, TTL_US)])

    @verb
    def take(self) -> Call:
        return call(take, self.worker, self.id("ready"), TTL_US)

    @verb
    def complete(self) -> Call:
        return call(complete, [self.ending(self.runs, Done(1))])

    @verb
    def complete_in_held_lane(self) -> Call:
        return self.settling((self.narrow, Done(1)))

    @verb
    def complete_in_lanes(self) -> Call:
        return self.settling((self.other_narrow, Done(1)), (self.narrow, Snooze("1s")))

    @verb
    def step(self) -> Call:
        return call(store_step, self.runs, "a step", "1")

    @verb
    def park(self) -> Call:
        return call(park, self.parks, channel="other", timeout_us=None)

    @verb
    def beat(self) -> Call:
        held = [self.runs_held.held, self.runs.held, self.narrow.held]
        return call(beat, self.worker, 3, held, ttl_us=TTL_US, ceiling_us=CEILING_US)

    @verb
    def beat_for_brokers(self) -> Call:
        """A heartbeat of a process with brokers: each of them lives, though somebody holds the row of one."""
        hosted = [OwnerBeat(each.worker, 0) for each in (self.broker_held, self.broker)]
        return call(beat, self.worker, 3, [], ttl_us=TTL_US, ceiling_us=CEILING_US, hosted=hosted)

    @verb
    def beat_for_clients(self) -> Call:
        epochs = sorted([self.client_held, self.client])
        return call(beat_all, epochs, ttl_us=TTL_US, delivered=frozenset())

    @verb
    def pop(self) -> Call:
        """A claim of a gateway, for all who wait at it."""
        return call(claim_asked, self.asks(), ttl_us=TTL_US)

    @verb
    def pop_at_once(self) -> Call:
        return call(claim_at_once, self.asks(), ttl_us=TTL_US)

    def asks(self) -> list[ClaimRequest]:
        turn = QueueTurn("default", frozenset({route_for("default", "work").id}))
        return [ClaimRequest(each, 1, (turn,), "") for each in (self.client_held, self.client)]

    @verb
    def register_another(self) -> Call:
        routes = [route_for("default", kind) for kind in ("work", "other")]
        return call(register, self.who("another"), routes, ttl_us=TTL_US, gone=[])

    @verb
    def renew_duty(self) -> Call:
        return call(acquire, SCHEDULES, self.worker, ttl_us=_HOUR, gone=[])

    @verb
    def look_for_work(self) -> Call:
        return call(look, self.worker, [route_for("default", "work").id])

    @verb
    def adopt_routes(self) -> Call:
        return call(adopt_routes, since=0)

    @verb
    def open_lanes(self) -> Call:
        return call(open_lanes, limit=100)

    @verb
    def wake(self) -> Call:
        return call(wake, limit=100)

    @verb
    def expire(self) -> Call:
        return call(expire, gone=[self.dead], limit=100, backoff_us=SECOND, chance=random.Random(0))

    @verb
    def overdue(self) -> Call:
        return call(overdue, limit=100)

    @verb
    def cancel_free_family(self) -> Call:
        return call(cancel_free_family, limit=100)

    @verb
    def fire(self) -> Call:
        return call(fire, self.schedule, next_tick)

    @verb
    def clean_up(self) -> Call:
        return call(clean_up, self.term, self.worker, key_age_us=_HOUR, worker_age_us=_HOUR)

    @verb
    def return_unnamed(self) -> Call:
        """It knows only one of its jobs."""
        return call(return_unnamed, self.worker, self.id("incarnation", "w", "first"), [self.runs.held], limit=100)

    @verb
    def lose_workers(self) -> Call:
        return call(lose_workers, gone=[self.stopped], reason="its presence is gone")

    # What programs do

    @verb
    def enqueue(self) -> Call:
        return self.enqueuing(self.job("another"))

    @verb
    def enqueue_in_lanes(self) -> Call:
        return self.enqueuing(
            self.laned("in held", "held", 2), self.laned("in other", "other"), self.laned("in new", "new")
        )

    @verb
    def enqueue_on_new_route(self) -> Call:
        return self.enqueuing(self.job("new route", kind="new"))

    @verb
    def enqueue_unique(self) -> Call:
        job = self.job("other unique", unique_key="other", unique_scope="live")
        return call(enqueue_unique, job, self.routes(job))

    @verb
    def enqueue_once(self) -> Call:
        job = self.job("other once")
        return call(enqueue_once, job, self.routes(job), key="other")

    @verb
    def signal(self) -> Call:
        return self.signalling("other", "other")

    @verb
    def cancel(self) -> Call:
        return call(cancel, self.id("ready"), reason="no more")

    # What agents do, each in a session of its own

    @verb
    def accept_run(self) -> Call:
        return call(create_run, self.talks.submission("new", None, "new", "new"), "")

    @verb
    def begin_turn(self) -> Call:
        return call(begin, self.begins, PROMPT, COSTS)

    @verb
    def journal(self) -> Call:
        return self.talks.speaking(self.asked, "Well")

    @verb
    def commit_calls(self) -> Call:
        return self.talks.answering(self.asked, "look", "buy")

    @verb
    def close_provider_lane(self) -> Call:
        return call(close_lane, "other", None, person=True, reason="still no money")

    @verb
    def budget(self) -> Call:
        return call(put_budget, self.talks.id("new"))

    # What is read

    @verb
    def read(self) -> Call:
        return call(read_everything, self.id("blocked"))

    @verb
    def read_agents(self) -> Call:
        return call(read_agents, self.talks.id("held"))


async def read_everything(tx: Transaction, id: Any) -> None:
    """What pages show."""
    await list_jobs(tx, limit=100)
    await list_lanes(tx)
    await list_queues(tx)
    await list_workers(tx, all=True, limit=100)
    await why(tx, id)


async def read_agents(tx: Transaction, id: Any) -> None:
    await listings.list_runs(tx, limit=100)
    await listings.list_sessions(tx, limit=100)
    await listings.list_messages(tx, id)
    await list_inquiries(tx, state=None)
    await queries.session_usage(tx, id)
    await list_budgets(tx, None, None)
    await list_closed_lanes(tx)


async def put_budget(tx: Transaction, session: str) -> None:
    """Enough for anything that is asked here."""
    await set_budget(tx, BudgetRow(f"{session} 1", "session", session, 0, 10**12, "end"))


Hold = Callable[[Everything, Any], Awaitable[object]]


class Held(NamedTuple):
    """Something that a session sleeps on, inside its open transaction."""

    what: str
    hold: Hold


def row(what: str, rows: str) -> Held:
    """These rows, locked by a process that was stopped or by a slow statement."""

    async def hold(scene: Everything, connection: Any) -> None:
        found = await connection.fetch(f"select 1 from holdfast.{rows.format_map(_Ids(scene))} for update")
        assert found, f"there is no {what} to hold"

    return Held(what, hold)


def lent(what: str, made: Callable[[Everything], Call]) -> Held:
    """What a call with `tx=` has written, and not committed yet."""

    async def hold(scene: Everything, connection: Any) -> None:
        said = made(scene)
        await LentAsyncpg(connection, "holdfast").transact(said.operation, *said.args, **said.options)

    return Held(what, hold)


class _Ids(dict[str, str]):
    """The id of a job by its name in the scene, as `{name}` in a condition."""

    def __init__(self, scene: Everything) -> None:
        super().__init__()
        self._scene = scene

    def __missing__(self, name: str) -> str:
        return f"(select seq from holdfast.job where id = '{self._scene.id(name)}')"


async def _migration_lock(_: Everything, connection: Any) -> None:
    await connection.fetch(f"select pg_advisory_xact_lock({_MIGRATION_LOCK})")


def _unique(scene: Everything) -> Call:
    job = scene.job("lent unique", unique_key="lent", unique_scope="live")
    return call(enqueue_unique, job, scene.routes(job))


def _once(scene: Everything) -> Call:
    job = scene.job("lent once")
    return call(enqueue_once, job, scene.routes(job), key="lent")


def _enqueue(*jobs: NewJob, scene: Everything) -> Call:
    return call(enqueue, list(jobs), scene.routes(*jobs))


HOLDS: Final = (
    row("lane", "lane where name = 'held'"),
    row("route", "route"),
    row("channel", "channel where name = 'held'"),
    row("unique key", "unique_key where key = 'held'"),
    row("idempotency key", "idempotency where key = 'held'"),
    row("worker", "worker where id = 'stopped'"),
    row("duty", "duty where name = 'cleanup'"),
    row("ready row", "ready where seq = {ready held}"),
    row("blocked row", "later where state = 'blocked'"),
    row("waiting row", "later where seq in ({channel}, {due held})"),
    row("lease row", "lease where seq in ({runs held}, {lost held})"),
    row("anchor of a job", "job where seq in ({runs held}, {lost held}, {parent held}, {machine held}, {late held})"),
    row("channel of a machine", "channel where name = 'holdfast:machine ' || {machine held}"),
    row(
        "totals of a session", "session_total where session in (select id from holdfast.session where key like '%held')"
    ),
    row("schedule", "schedule where name = 'held'"),
    row("queue", "queue where name = 'default'"),
    row("broker", "worker where id = 'broker held'"),
    row("client of a gateway", "worker where id = 'client held'"),
    row("session", "session where key like '%held'"),
    row("run", "run where session in (select id from holdfast.session where key like '%held')"),
    row(
        "turn",
        "turn where run in (select r.id from holdfast.run r join holdfast.session s on s.id = r.session"
        " where s.key like '%held')",
    ),
    row("agent", "agent where name = 'helper'"),
    row("budget", "budget where subject in (select id from holdfast.session where key like '%held')"),
    row(
        "use of a budget",
        "budget_use where budget in (select b.id from holdfast.budget b join holdfast.session s"
        " on s.id = b.subject where s.key like '%held')",
    ),
    row("provider lane", "provider_lane where name = 'held'"),
    Held("migration lock", _migration_lock),
    lent("tx= into a lane and a route that are old", lambda s: _enqueue(s.laned("l", "held"), s.job("p"), scene=s)),
    lent("tx= with other limits", lambda s: _enqueue(s.laned("l", "held", 5), scene=s)),
    lent("tx= into a new lane", lambda s: _enqueue(s.laned("l", "new"), scene=s)),
    lent("tx= on a new route", lambda s: _enqueue(s.job("l", kind="new"), scene=s)),
    lent("tx= with a unique key", _unique),
    lent("tx= with an idempotency key", _once),
    lent("tx= that signals", lambda s: call(signal, s.id("lent signal"), "held", '"lent"')),
)

# What a case is about itself, so that waiting, within the patience of a statement, is right.
BY_NATURE: Final[dict[tuple[str, str], str]] = {}

MUTANTS: Final = (
    Mutant(
        "claims wait for lanes",
        "lane/claim_in_lanes",
        (Edit(LanesSql.lock_lanes, " for update skip locked", " for update"),),
    ),
    Mutant(
        "endings wait for lanes",
        "lane/complete_in_held_lane",
        (Edit(LanesSql.lock_lanes, " for update skip locked", " for update"),),
    ),
    Mutant(
        "a call that enqueues refreshes a lane that somebody holds",
        "lane/enqueue_in_lanes",
        (Edit(EnqueueSql.enqueue, "s.name in (select f.name from free_lane f)) order by", "true) order by"),),
    ),
    Mutant(
        "a call that enqueues refreshes a route that somebody holds",
        "route/enqueue",
        (Edit(EnqueueSql.enqueue, "s.id in (select f.id from free_route f)) order by", "true) order by"),),
    ),
    Mutant(
        "a claim waits for jobs that somebody holds",
        "ready row/claim_plain",
        (Edit(JobsSql.claim_one, " for update skip locked", " for update"),),
    ),
    Mutant(
        "a sweep waits for a run that it has to end",
        "run/expire",
        (Edit(RunsSql.held_runs, "order by r.id for update skip locked", "order by r.id for update"),),
    ),
    Mutant(
        "a sweep waits for money that a run has reserved",
        "use of a budget/expire",
        (Edit(RunsSql.held_runs, "order by u.budget, u.period for update skip locked", "order by u.budget, u.period"),),
    ),
    Mutant(
        "a sweep waits for who wakes a machine",
        "channel of a machine/expire",
        (Edit(WaitingSql.held_channels, " for update skip locked", " for update"),),
    ),
    Mutant(
        "a sweep waits for a child of a cancelled job",
        "anchor of a job/cancel_free_family",
        (Edit(JobsSql.try_lock_anchors, " for update skip locked", " for update"),),
    ),
    Mutant(
        "a sweep waits for the row of a worker",
        "worker/lose_workers",
        (Edit(WorkersSql.lose_workers, " for update skip locked", " for update"),),
    ),
    Mutant(
        "heartbeats wait for the row of one broker",
        "broker/beat_for_brokers",
        (Edit(BrokersSql.lock_living, " for update skip locked", " for update"),),
    ),
    Mutant(
        "all who wait at a gateway wait for the row of one",
        "client of a gateway/pop",
        (Edit(HoldersSql.lock_holders, " for update skip locked", " for update"),),
    ),
    Mutant(
        "a claim at once waits for the row of one",
        "client of a gateway/pop_at_once",
        (Edit(BrokersSql.claim_each, "order by w.seq for update skip locked", "order by w.seq for update"),),
    ),
    Mutant(
        "a page of budgets waits for who changes one",
        "budget/read_agents",
        (Edit(BudgetsSql.list_budgets, "order by b.scope, b.subject, b.period_us", "order by b.id for update of b"),),
    ),
    Mutant(
        "heartbeats wait for a lease",
        "lease row/beat",
        (Edit(LeasesSql.renew, " for update skip locked", " for update"),),
    ),
)


class Waits(AssertionError):
    """An operation waits for somebody with whom it has nothing to do."""


@asynccontextmanager
async def holding(stage: Stage, held: Held) -> AsyncIterator[int]:
    """From the start of the scene, a session sleeps on this; gives the number of its process."""
    await stage.set_back()
    scene = stage.scene
    assert isinstance(scene, Everything)
    holder = await asyncpg.connect(scene.store.url)
    try:
        transaction = holder.transaction()
        await transaction.start()
        await held.hold(scene, holder)
        yield holder.get_server_pid()
        await transaction.rollback()
    finally:
        await holder.close()


async def judge(stage: Stage, held: Held, *names: str) -> None:
    """Raise `Waits` if one of these verbs, called one after the other, waits for whoever holds this."""
    running: asyncio.Task[None] | None = None
    waits = ""
    async with holding(stage, held) as holder:
        for name in names:
            gate, said = Gate(), stage.scene.call(name)
            running = asyncio.create_task(_answer(stage, gate, said))
            if await _waits(stage, running, holder):
                waits = f"{name} waits for whoever holds: {held.what} (after {', '.join(gate.statements) or 'nothing'})"
                break
    if running is not None:
        await running
    if waits:
        raise Waits(waits)


async def _answer(stage: Stage, gate: Gate, said: Call) -> None:
    with suppress(HoldfastError):  # what the verb before has done may leave nothing to do for this one
        await stage.database.transact(through(gate, said))


async def _waits(stage: Stage, running: asyncio.Task[None], holder: int) -> bool:
    """Whether the server names the holder as who blocks it, before it has ended."""
    blocked = "select 1 from pg_stat_activity where datname = current_database() and $1 = any(pg_blocking_pids(pid))"
    while not running.done():
        if await stage.observer.fetchval(blocked, holder):
            return True
        await asyncio.sleep(0)
    return False


def verbs_beside(held: Held) -> list[str]:
    return [name for name in Everything.verbs() if (held.what, name) not in BY_NATURE]


async def play(stage: Stage, holds: Sequence[Held] = HOLDS, *, every: bool) -> AsyncIterator[str]:
    """What waits and must not. `every`: each case from the start of the scene, not one verb after the other."""
    for held in holds:
        names = verbs_beside(held)
        for some in [(name,) for name in names] if every else [tuple(names)]:
            try:
                await judge(stage, held, *some)
            except Waits as problem:
                yield str(problem)


async def judge_pair(url: str, pair: str, plant: Callable[[Any], None] = lambda _database: None) -> None:
    """One case, as a mutant names it."""
    what, name = pair.split("/")
    async with staged(url, Everything) as stage:
        plant(stage.database)
        await judge(stage, next(held for held in HOLDS if held.what == what), name)
