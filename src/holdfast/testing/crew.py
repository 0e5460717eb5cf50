"""The crew of a lab: real workers, one after the other, until nothing is left to claim.

Nothing runs between two drains. A worker that was killed is followed by another, once the clock has passed its leases.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import nullcontext
from contextvars import Context
from typing import Any, ParamSpec, TypeVar

from holdfast.agents.runs.turn import TurnInputs
from holdfast.app import Holdfast, core_of
from holdfast.clock import Ports
from holdfast.durations import microseconds, next_tick
from holdfast.errors import HoldfastError
from holdfast.kernel import duties, workers
from holdfast.kernel import workers as registry
from holdfast.kernel.claim import heads
from holdfast.kernel.database import (
    BlockingStore,
    Database,
    Guard,
    Operation,
    Presence,
    StoredSchema,
    ignore_change,
    is_reading,
)
from holdfast.kernel.drivers import connect
from holdfast.kernel.ids import JobId
from holdfast.kernel.leases import Beat, beat
from holdfast.kernel.rows import Lease
from holdfast.kernel.schedules import due_schedules, fire, put_schedule
from holdfast.kernel.sql import Dialect
from holdfast.kernel.states import State
from holdfast.outcomes import Outcome
from holdfast.settings import Settings
from holdfast.testing.clock import LabClock
from holdfast.testing.crashes import Commit, CrashPlan, When, WorkerLife, mortal_tasks
from holdfast.workers.attempt import Processes
from holdfast.workers.claims import RouteTable
from holdfast.workers.context import JobContext
from holdfast.workers.definitions import Definition
from holdfast.workers.isolation.pool import ProcessPool
from holdfast.workers.lifeline import Pulse, TaskLifeline
from holdfast.workers.role import Role
from holdfast.workers.sweeper import Sweeper
from holdfast.workers.worker import Worker, first_of

# A worker's wire to the store: everything it asks passes here, so here it is watched, and here it is killed.
#
# The database still executes what a process sent before its death; only the answer is lost.


P = ParamSpec("P")
R = TypeVar("R")

_HOUSEKEEPING = (duties.__name__, workers.__name__)  # continues whether or not a job moves


class SeenTraffic:
    """What all workers of a lab have in common: what passed their wires."""

    def __init__(self) -> None:
        self.claims: Counter[str] = Counter()  # how often each job was claimed
        self.agents: dict[str, str] = {}  # by run: known before its model is asked


class Wire:
    """The database as one worker of a lab has it."""

    def __init__(self, database: Database, life: WorkerLife, plan: CrashPlan, seen: SeenTraffic) -> None:
        self.dialect: Dialect = database.dialect
        self.presence: Presence = WirePresence(self)
        self.database = database
        self.progress = 0  # commits that moved a job
        self.beaten = asyncio.Event()  # set by every heartbeat that the store took
        self._life = life
        self._plan = plan
        self._seen = seen
        self._sent: set[asyncio.Task[Any]] = set()

    async def transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        commit = None if is_reading(operation) else self._plan.reach(operation)
        await self._pass("before", commit)
        try:
            answer = await self.send(self.database.transact(operation, *args, **kwargs))
        except (Exception, asyncio.CancelledError):
            await self._pass("after", commit)
            raise
        await self._pass("after", commit)
        self._saw(operation, answer)
        return answer

    async def send(self, work: Coroutine[Any, Any, R]) -> R:
        """Have something done that continues when this worker is killed meanwhile."""
        if self._life.over:
            work.close()
            await self._life.rest()
        sent = asyncio.create_task(work, context=Context())
        self._sent.add(sent)
        sent.add_done_callback(self._sent.discard)
        return await sent

    async def cut(self) -> None:
        """After a death: the store ends what was sent, and then drops the connections."""
        if self._sent:
            await asyncio.wait(self._sent)
        await self.database.close()

    def _saw(self, operation: Callable[..., Any], answer: object) -> None:
        if operation is beat:
            self.beaten.set()
        elif not is_reading(operation) and operation.__module__ not in _HOUSEKEEPING and answer != []:
            self.progress += 1
        if isinstance(answer, list):
            self._seen.claims.update(each.id for each in answer if isinstance(each, Lease))
        elif isinstance(answer, TurnInputs):
            self._seen.agents[answer.run.id] = answer.run.agent_name

    async def _pass(self, when: When, commit: Commit | None) -> None:
        if self._plan.strikes(when, commit):
            self._life.end()
        if self._life.over:
            await self._life.rest()

    @property
    def crowd(self) -> float:
        return self.database.crowd

    def introduce(self, owner: str) -> None:
        self.database.introduce(owner)

    async def connect(self) -> None:
        await self.send(self.database.connect())

    async def open(self) -> None:
        await self.send(self.database.open())

    async def close(self) -> None:
        await self.send(self.database.close())

    def blocking(self) -> BlockingStore:
        return self.database.blocking()

    async def listen(self, heard: Callable[[str], None]) -> None:
        await self.send(self.database.listen(heard))

    def unlisten(self, heard: Callable[[str], None]) -> None:
        self.database.unlisten(heard)

    async def script(self, statements: Sequence[str], *, at: int | None, guard: Guard | None = None) -> bool:
        return await self.send(self.database.script(statements, at=at, guard=guard))

    async def tidy(self, after: int) -> bool:
        return await self.send(self.database.tidy(after))

    async def stored_schema(self) -> StoredSchema | None:
        return await self.send(self.database.stored_schema())


class WirePresence:
    """The worker's sign of life, kept outside of its tasks: it goes when the wire is cut."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def hold(self, worker: int, changed: Callable[[], None] = ignore_change) -> bool:
        return await self._wire.send(self._wire.database.presence.hold(worker, changed))

    def shows(self, worker: int) -> bool:
        return self._wire.database.presence.shows(worker)

    def disputed(self, worker: int) -> bool:
        return self._wire.database.presence.disputed(worker)

    async def withdraw(self, worker: int) -> None:
        await self._wire.send(self._wire.database.presence.withdraw(worker))

    async def absent(self, workers: Iterable[int]) -> set[int]:
        return await self._wire.send(self._wire.database.presence.absent(workers))


class WireProcesses:
    """The worker's child processes, which somebody must be left to kill."""

    def __init__(self, wire: Wire, processes: Processes) -> None:
        self._wire = wire
        self._processes = processes

    async def run(self, definition: Definition, context: JobContext, payload: Any) -> Outcome | None:
        return await self._wire.send(self._processes.run(definition, context, payload))

    async def close(self) -> None:
        await self._processes.close()


_MOST_CLAIMS = 1_000  # of one job in one drain
_MOST_SCHEDULES = 1_000
_SHOWN = 20
_LOOKS = 20  # at the worker, while the patience lasts


class Stuck(HoldfastError):
    """The lab cannot continue: a handler makes no progress, or the test waits for something that cannot happen."""


class LabCrew:
    def __init__(self, app: Holdfast, ports: Ports, clock: LabClock, plan: CrashPlan) -> None:
        self._app = app
        self._ports = ports
        self._clock = clock
        self._plan = plan
        self._dead: list[WorkerLife] = []
        self._worker: LabWorker | None = None  # at work now
        self.seen = SeenTraffic()

    async def plan_schedules(self) -> None:
        """Write the app's schedules down, as a worker does when it starts: they tick from now on."""
        database = core_of(self._app).runtime().database
        for schedule in core_of(self._app).registry.schedules:
            await database.transact(put_schedule, schedule, next_tick)

    async def drain(self, patience: float) -> None:
        """Work until nothing can be claimed at this time. `Stuck` after `patience` real seconds without a commit."""
        self.seen.claims.clear()
        in_vain = False
        while await self._something_to_claim():
            if in_vain:
                raise Stuck(f"there are jobs to claim, and the worker claims none:\n{await self._open_jobs()}")
            before = self.seen.claims.total(), len(self._plan.crashes)
            await self._work(patience)
            in_vain = before == (self.seen.claims.total(), len(self._plan.crashes))

    async def close(self) -> None:
        for life in self._dead:
            await life.bury()
        self._dead.clear()

    @property
    def _role(self) -> Role:
        """Every capability that any job of the app requires: what is declared can be tested."""
        required = {
            each for definition in core_of(self._app).registry.definitions.values() for each in definition.requires
        }
        return Role(name="lab", capabilities=tuple(sorted(required)), until="empty")

    async def _something_to_claim(self) -> bool:
        """Do what is due, until nothing is, then see whether there is work for this app."""
        runtime = core_of(self._app).runtime()
        await runtime.open()
        database, role = runtime.database, self._role
        sweeper = Sweeper(database, self._ports, self._app.settings)
        routing = RouteTable(role.queues, core_of(self._app).registry.capabilities(role.capabilities))
        for due in await database.transact(due_schedules, limit=_MOST_SCHEDULES):
            await database.transact(fire, due, next_tick)
        routing.learn(await database.transact(registry.list_routes, since=0))
        while await sweeper.sweep(await database.transact(registry.look, 0, routing.served)):
            pass
        return bool(await database.transact(heads, routing.served))

    async def _work(self, patience: float) -> None:
        """One worker, from its start until it leaves or is killed."""
        app, settings, life = self._app, self._app.settings, WorkerLife()
        wire = Wire(
            connect(app.settings.url, settings, self._ports, core_of(app).registry.layers), life, self._plan, self.seen
        )
        processes = WireProcesses(wire, ProcessPool(settings.concurrency))
        heart = LabLifeline(wire, life, self._ports, settings)
        worker = self._worker = LabWorker(
            core_of(app).registry, wire, settings, self._ports, role=self._role, processes=processes, lifeline=heart
        )
        with mortal_tasks() if self._plan.to_come else nullcontext(), self._clock.followed_by(heart):
            run = life.spawn(worker.run(), name="lab worker")
            try:
                await self._watch(run, life, wire, patience)
            finally:
                if not life.over:
                    worker.hurry()
                    run.cancel()
                    await asyncio.wait({run, life.ended}, return_when=asyncio.FIRST_COMPLETED)
                if life.over:
                    self._dead.append(life)
                    await processes.close()
                await wire.cut()
        if life.over:
            await self._clock.advance(settings.lease_ttl)
        else:
            run.result()

    async def _watch(self, run: asyncio.Task[None], life: WorkerLife, wire: Wire, patience: float) -> None:
        """Until the worker has left or was killed; `Stuck` when it gets nowhere."""
        seen, idle = wire.progress, 0
        while not run.done() and not life.over:
            if idle == _LOOKS:
                raise Stuck(
                    f"no job moved for {patience:g} s, and there are:\n{await self._open_jobs()}\n"
                    f"If they need longer, drain(patience=...); if they wait for the test, have it act first."
                )
            await asyncio.wait({run, life.ended}, timeout=patience / _LOOKS, return_when=asyncio.FIRST_COMPLETED)
            self._refuse_endless()
            idle = idle + 1 if wire.progress == seen else 0
            seen = wire.progress

    def _refuse_endless(self) -> None:
        for id, times in self.seen.claims.most_common(1):
            if times > _MOST_CLAIMS:
                raise Stuck(
                    f"job {id} was claimed {times:,} times in one drain: it comes back at once, for ever. "
                    f"Time stands still in a lab; give its retry or snooze a delay, and advance the clock."
                )

    async def _open_jobs(self) -> str:
        """What runs, and where it waits; then what could run."""
        places = {id: waits_at(task) for id, task in self._worker.attempts()} if self._worker is not None else {}
        rows = [
            row
            for state in (State.RUNNING, State.PENDING)
            for row in await self._app.jobs.list(state=state, system=True)
        ]
        lines = [f"  {row.kind} {row.id}, {row.state}{places.get(row.id, '')}" for row in rows[:_SHOWN]]
        return "\n".join([*lines, *([f"  and {len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else [])])


class LabWorker(Worker):
    """Leaves when its first round of duties is done, not before: so every run of a test makes the same commits."""

    def attempts(self) -> list[tuple[JobId, asyncio.Task[None]]]:
        """What runs here, and in which task."""
        return [(each.lease.id, each.task) for each in self.holdings.all() if each.task is not None]

    async def run(self, started: Callable[[], None] = ignore_change, ready: Callable[[], None] = ignore_change) -> None:
        try:
            await self.start()
            started()
            ready()
            await first_of(self.leaving, self._quiet)
            await first_of(self.leaving, self.tended)
        finally:
            await self.stop()


class LabLifeline(TaskLifeline):
    """The worker's lifeline, on the loop; it also beats at every step of the lab's clock."""

    def __init__(self, wire: Wire, life: WorkerLife, ports: Ports, settings: Settings) -> None:
        super().__init__(wire, ports, settings.heartbeat.total_seconds())
        self.longest_step_us: int | None = microseconds(min(settings.lease_ttl, settings.worker_ttl)) // 3
        self._wire = wire
        self._life = life
        self._beating = False

    def start(self, compose: Callable[[], Pulse | None], heard: Callable[[float, Beat], None]) -> None:
        self._beating = True
        super().start(compose, heard)

    async def stop(self) -> None:
        self._beating = False
        self._wire.beaten.set()  # nobody waits for a beat that will not come
        await super().stop()

    async def follow(self, us: int) -> None:
        if self._beating and not self._life.over:
            self._wire.beaten.clear()
            self.poke()
            beaten: asyncio.Future[Any] = asyncio.ensure_future(self._wire.beaten.wait())
            await asyncio.wait({beaten, self._life.ended}, return_when=asyncio.FIRST_COMPLETED)
            beaten.cancel()


def waits_at(task: asyncio.Task[Any]) -> str:
    """Where a task waits: the innermost line that is neither ours nor asyncio's."""
    found = ""
    step: Any = task.get_coro()
    while frame := getattr(step, "cr_frame", None):
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ("holdfast", "asyncio"):
            found = f", in {frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"
        step = step.cr_await
    return found
