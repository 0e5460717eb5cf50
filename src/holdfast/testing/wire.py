"""A worker's wire to the store: everything it asks passes here, so here it is watched, and here it is killed.

The database still executes what a process sent before its death; only the answer is lost.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextvars import Context
from typing import Any, ParamSpec, TypeVar

from holdfast.agents.runs.turns import Loaded
from holdfast.kernel import duties, workers
from holdfast.kernel.database import Blocking, Database, Guard, Operation, Presence, StoredSchema, is_reading, unheeded
from holdfast.kernel.leases import beat
from holdfast.kernel.rows import Lease
from holdfast.kernel.sql import Dialect
from holdfast.outcomes import Outcome
from holdfast.testing.crashes import Commit, CrashPlan, When, WorkerLife
from holdfast.workers.attempt import Processes
from holdfast.workers.context import JobContext
from holdfast.workers.definitions import Definition

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
        elif isinstance(answer, Loaded):
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

    def blocking(self) -> Blocking:
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

    async def hold(self, worker: int, changed: Callable[[], None] = unheeded) -> bool:
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
