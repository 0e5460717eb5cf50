"""The ledger of one attempt: what its handler may ask of the store, each question a single call.

In the worker the store answers. In a process of its own, the worker answers through a pipe. The context above is
the same in both, so its rules exist once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from holdfast.clock import Ports
from holdfast.errors import LeaseLost, UsageError
from holdfast.kernel import waiting
from holdfast.kernel.database import Database, Transactor
from holdfast.kernel.drivers.lent import lend
from holdfast.kernel.enqueue import enqueue_children
from holdfast.kernel.rows import ChildRow, NewJob, Route
from holdfast.kernel.waiting import TakenSignal
from holdfast.settings import Settings
from holdfast.workers.telemetry import sending, tell_enqueued

if TYPE_CHECKING:
    from holdfast.workers.slots import Holding


class Steps(Protocol):
    """Where the results of steps are kept. Each call may raise `LeaseLost`: stop the attempt."""

    async def find_step(self, name: str) -> str | None:
        """What is stored under `name`; None when nothing is and there is still time to do it."""

    async def store_step(self, name: str, result: str) -> str: ...


class Ledger(Steps, Protocol):
    """Every call but `cancelled` may raise `LeaseLost`: stop the attempt."""

    @property
    def cancelled(self) -> bool: ...

    def lent(self, tx: object, *, sync: bool) -> Steps:
        """Steps that become part of the handler's own transaction; `UsageError` where that is not possible."""

    async def report_progress(self, progress: str) -> None: ...

    async def start_child(self, child: NewJob, route: Route) -> None: ...

    async def list_children(self) -> Sequence[ChildRow]: ...

    async def take_signal(self, channel: str, step: str) -> TakenSignal: ...


class StoreLedger:
    """The ledger as the worker that holds the lease keeps it."""

    def __init__(self, holding: Holding, database: Database, settings: Settings, ports: Ports) -> None:
        self._holding = holding
        self.lease = holding.lease
        self.database = database
        self._settings = settings
        self._ports = ports
        self._steps: dict[str, str] | None = None

    @property
    def cancelled(self) -> bool:
        return self._holding.cancelled

    async def find_step(self, name: str) -> str | None:
        if self._steps is None:
            rows = await self.database.transact(waiting.list_steps, self.lease.seq)
            self._steps = {row.name: row.result for row in rows}
        if name not in self._steps:
            self.require_lease()
        return self._steps.get(name)

    async def store_step(self, name: str, result: str) -> str:
        stored = await self.database.transact(waiting.store_step, self.lease, name, result)
        if self._steps is not None:
            self._steps[name] = stored
        return stored

    def lent(self, tx: object, *, sync: bool) -> Steps:
        lent = lend(tx, self._settings.url, self._settings, self._ports, sync=sync)
        if lent.commits_each:
            raise UsageError(
                "this connection has no open transaction, so a step could not be part of it: begin one first, or leave "
                "tx out."
            )
        self._steps = None  # it may be stored there, and asked for without tx later
        return LentSteps(self, lent)

    async def report_progress(self, progress: str) -> None:
        await self.database.transact(waiting.report_progress, self.lease, progress)

    async def start_child(self, child: NewJob, route: Route) -> None:
        with sending(self._ports, child, [child.id]) as carrying:
            started = await self.database.transact(enqueue_children, self.lease, [carrying], [route])
        if started:
            tell_enqueued(self._ports, child, parent=self.lease.id)

    async def list_children(self) -> Sequence[ChildRow]:
        return await self.database.transact(waiting.list_children, self.lease.seq)

    async def take_signal(self, channel: str, step: str) -> TakenSignal:
        return await self.database.transact(waiting.take_signal, self.lease, channel, step)

    def require_lease(self) -> None:
        """Raise `LeaseLost` when this process may no longer act, as far as it knows."""
        if self._ports.clock.monotonic() >= self._holding.fence_at:
            raise LeaseLost(self.lease.id, self.lease.fence)


class LentSteps:
    """Steps in a transaction of the handler's own: stored when it commits, and never if it does not.

    Nothing is remembered here, because a rollback takes a stored step away again.
    """

    def __init__(self, ledger: StoreLedger, lent: Transactor) -> None:
        self._ledger = ledger
        self._lent = lent

    async def find_step(self, name: str) -> str | None:
        stored = await self._lent.transact(waiting.begin_step, self._ledger.lease.seq, name)
        if stored is None:
            self._ledger.require_lease()
        return stored

    async def store_step(self, name: str, result: str) -> str:
        """The lease stays locked until the transaction ends, so no other worker can take the job before that."""
        return await self._lent.transact(waiting.store_step, self._ledger.lease, name, result)
