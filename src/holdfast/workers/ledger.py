"""The ledger of one attempt: what its handler may ask of the store, each question a single call.

In the worker the store answers. In a process of its own, the worker answers through a pipe. The context above is
the same in both, so its rules exist once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from holdfast.clock import Ports
from holdfast.errors import LeaseLost
from holdfast.kernel import waiting
from holdfast.kernel.database import Database
from holdfast.kernel.enqueue import enqueue_children
from holdfast.kernel.records import Child, NewJob, Route
from holdfast.kernel.waiting import Taken
from holdfast.workers.telling import sending, tell_enqueued

if TYPE_CHECKING:
    from holdfast.workers.holdings import Holding


class Ledger(Protocol):
    """Every call but `cancelled` may raise `LeaseLost`: stop the attempt."""

    @property
    def cancelled(self) -> bool: ...

    async def find_step(self, name: str) -> str | None:
        """What is stored under `name`; None when nothing is and there is still time to do it."""

    async def store_step(self, name: str, result: str) -> str: ...

    async def report_progress(self, progress: str) -> None: ...

    async def start_child(self, child: NewJob, route: Route) -> None: ...

    async def list_children(self) -> Sequence[Child]: ...

    async def take_signal(self, channel: str, step: str) -> Taken: ...


class StoreLedger:
    """The ledger as the worker that holds the lease keeps it."""

    def __init__(self, holding: Holding, database: Database, ports: Ports) -> None:
        self._holding = holding
        self._lease = holding.lease
        self.database = database
        self._ports = ports
        self._steps: dict[str, str] | None = None

    @property
    def cancelled(self) -> bool:
        return self._holding.cancelled

    async def find_step(self, name: str) -> str | None:
        if self._steps is None:
            rows = await self.database.transact(waiting.list_steps, self._lease.seq)
            self._steps = {row.name: row.result for row in rows}
        if name not in self._steps:
            self.require_lease()
        return self._steps.get(name)

    async def store_step(self, name: str, result: str) -> str:
        stored = await self.database.transact(waiting.store_step, self._lease, name, result)
        if self._steps is not None:
            self._steps[name] = stored
        return stored

    async def report_progress(self, progress: str) -> None:
        await self.database.transact(waiting.report_progress, self._lease, progress)

    async def start_child(self, child: NewJob, route: Route) -> None:
        with sending(self._ports, child, [child.id]) as carrying:
            started = await self.database.transact(enqueue_children, self._lease, [carrying], [route])
        if started:
            tell_enqueued(self._ports, child, parent=self._lease.id)

    async def list_children(self) -> Sequence[Child]:
        return await self.database.transact(waiting.list_children, self._lease.seq)

    async def take_signal(self, channel: str, step: str) -> Taken:
        return await self.database.transact(waiting.take_signal, self._lease, channel, step)

    def require_lease(self) -> None:
        if self._ports.clock.monotonic() >= self._holding.fence_at:
            raise LeaseLost(self._lease.id, self._lease.fence)
