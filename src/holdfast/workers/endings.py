"""Endings: outcomes on their way to the store, many to a statement.

One write is in flight; what arrives meanwhile goes next. So a lonely job is not delayed and a busy worker
writes in batches, without a timer. An outcome is kept and offered again while the store is away; only the loss
of its lease makes it worthless.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

from holdfast.clock import Ports
from holdfast.errors import BadPayload
from holdfast.kernel.complete import complete, complete_and_settle, error_json, repeated
from holdfast.kernel.complete import ending as ending_of
from holdfast.kernel.database import Database
from holdfast.kernel.records import Ending, Lease
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.states import State
from holdfast.outcomes import Cancel, Discard, Done, Fail, Retry, Snooze
from holdfast.settings import Settings
from holdfast.workers.definitions import Definition
from holdfast.workers.slots import TOOLS
from holdfast.workers.telling import Telling

log = logging.getLogger("holdfast.worker")


_NO_POLICY = RetryPolicy()


def as_written(
    lease: Lease,
    outcome: Done | Retry | Fail | Cancel | Discard | Snooze,
    definition: Definition | None,
    settings: Settings,
    chance: random.Random,
) -> Ending:
    """What the store is told of an outcome. A result that it cannot hold is a failure."""
    policy = definition.retry if definition else _NO_POLICY
    shown = definition is not None and definition.line == TOOLS  # to a model, so it may hold images and documents
    caps = settings.prompt_cap if shown else settings.result_cap, settings.error_cap
    try:
        return ending_of(lease, outcome, policy, chance, *caps)
    except BadPayload as problem:
        return ending_of(lease, Fail(str(problem), "result_error"), policy, chance, *caps)


class Endings:
    def __init__(
        self,
        database: Database,
        ports: Ports,
        telling: Telling,
        *,
        batch: int,
        settled: Callable[[Lease, Ending, str | None], None],
    ) -> None:
        """`settled` is told each job's new state, or None when its lease was lost."""
        self._database = database
        self._ports = ports
        self._telling = telling
        self._batch = batch
        self._settled = settled
        self._waiting: list[tuple[Lease, Ending]] = []
        self._writer: asyncio.Task[None] | None = None

    def put(self, lease: Lease, ending: Ending) -> None:
        self._waiting.append((lease, ending))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write(), name="endings")

    async def flushed(self) -> None:
        """Until everything handed in so far is settled."""
        while self._writer is not None and not self._writer.done():
            await asyncio.shield(self._writer)

    async def close(self) -> None:
        """Give up what the store has not taken; those leases run out and the jobs are rescued."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)

    @property
    def backlog(self) -> int:
        return len(self._waiting)

    async def _write(self) -> None:
        pause = 0.05
        while self._waiting:
            batch = self._waiting[: self._batch]
            try:
                await self._complete(batch)
            except Exception as problem:  # noqa: BLE001  an outcome is kept, whatever keeps the store from taking it
                log.warning("outcomes of %d jobs wait for the store: %s", len(self._waiting), problem)
                await self._ports.clock.sleep(pause * (0.5 + self._ports.random.random()))
                pause = min(pause * 2, 2.0)
                continue
            pause = 0.05
            del self._waiting[: len(batch)]

    async def _complete(self, batch: list[tuple[Lease, Ending]]) -> None:
        """Store a batch; a value that the database refuses must not take the others along."""
        sent_at = self._ports.clock.monotonic()
        try:
            states = await self._store(batch)
        except BadPayload as problem:
            await self._one_by_one(batch, problem)
            return
        self._telling.timed("complete.done", sent_at, batch[0][0].worker, jobs=len(batch))
        for lease, ending in batch:
            self._settled(lease, ending, states.get(ending.seq))

    async def _one_by_one(self, batch: list[tuple[Lease, Ending]], problem: BadPayload) -> None:
        if len(batch) > 1:
            for item in batch:
                await self._complete([item])
            return
        ((lease, ending),) = batch
        refused = error_json("result_error", f"the database refused the outcome: {problem}")
        failed = ending._replace(outcome="failed", state=State.FAILED, delay_us=0, result=None, error=refused)
        await self._complete([(lease, failed)])

    async def _store(self, batch: Sequence[tuple[Lease, Ending]]) -> dict[int, str]:
        endings = [ending for _, ending in batch]
        # Every parent, whatever the outcome: a cancel that came meanwhile ends the child all the same.
        parents = sorted({lease.parent for lease, _ in batch if lease.parent is not None})
        if parents or any(lease.lane is not None or ":" in lease.kind for lease, _ in batch):
            ended = await self._database.transact(complete_and_settle, endings, parents)
        else:
            ended = await self._database.transact(complete, endings)
        states = {row.seq: row.state for row in ended}
        missing = [ending for ending in endings if ending.seq not in states]
        if missing:
            for seq in await self._database.transact(repeated, missing):
                states[seq] = next(str(e.state) for e in missing if e.seq == seq)
        return states
