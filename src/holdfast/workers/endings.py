"""Endings: outcomes on their way to the store, many to a statement.

One write is in flight; what arrives meanwhile goes next. So a lonely job is not delayed and a busy worker
writes in batches, without a timer. An outcome is kept and offered again while the store is away; only the loss
of its lease makes it worthless. One that the database refuses is set apart, and holds up no other.

Somebody's open transaction may hold a row that an ending writes: that of a parent, or what a layer keeps. So the
endings that write nothing but their own rows are a line of their own, and so are those of each layer. Where a write
takes long nevertheless, what arrives meanwhile does not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from holdfast.clock import Ports
from holdfast.errors import BadPayload, Unavailable
from holdfast.kernel import codec
from holdfast.kernel.complete import complete, complete_and_settle, error_json, repeated
from holdfast.kernel.complete import ending as ending_of
from holdfast.kernel.database import Database, urgent
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.rows import Ending, Lease
from holdfast.kernel.states import State
from holdfast.outcomes import Cancel, Discard, Done, Fail, Snooze, StoreTrouble, TryAgain
from holdfast.settings import Settings
from holdfast.text import MARGIN, Redactor, plural, shown
from holdfast.workers.definitions import Definition
from holdfast.workers.telemetry import WorkerTelemetry

# Reasons: what an outcome says in words, without the secrets that an exception may carry.
#
# What a handler of a layer above raises goes to places where nobody expects a secret: to a provider, into a history
# that
# is sent again and again, to people and to listeners of events. So it is redacted once, here, on
# its way into the store, as what leaves the house is. A job of the program's own keeps its errors as they are.


Written = Done | TryAgain | Fail | Cancel | Discard | Snooze


def is_read_by_others(definition: Definition | None) -> bool:
    """Whether the handler belongs to a layer above, which shows what it raises to others."""
    return definition is not None and definition.layer is not None


def without_secrets(outcome: Written, cap: int) -> Written:
    """The same outcome with a reason that others may read."""
    match outcome:
        case TryAgain():
            return replace(outcome, error=redacted(outcome.error, cap), trace=_redacted_trace(outcome.trace, cap))
        case Fail():
            return replace(outcome, error=redacted(outcome.error, cap), trace=_redacted_trace(outcome.trace, cap))
        case Cancel() | Discard():
            return type(outcome)(redacted(outcome.reason, cap))
        case Snooze():
            shown = Snooze(f"{outcome.delay_us}us", redacted(outcome.reason, cap))
            shown.error_type = outcome.error_type
            return shown
        case _:
            return outcome


def _redacted_trace(trace: str, cap: int) -> str:
    return Redactor().text(codec.clip_middle(trace, cap * MARGIN))


def redacted(reason: object, cap: int) -> str:
    """A reason, whatever it is, as a text that others may read."""
    return Redactor().text(codec.clip(str(reason), cap * MARGIN))


log = logging.getLogger("holdfast.worker")

_FIRST_PAUSE, _LAST_PAUSE, _RARELY = 0.05, 2.0, 30.0
_SLOW = 0.25  # seconds after which a write seems to wait for somebody, and another begins beside it
_MOST_FLIGHTS = 2  # writes of one line at once
_TRIES = 6  # of an outcome that is refused, before its job fails; what refused it may have passed by then


_NO_POLICY = RetryPolicy()


def ending_after(
    lease: Lease,
    outcome: Done | TryAgain | Fail | Cancel | Discard | Snooze,
    definition: Definition | None,
    settings: Settings,
    chance: random.Random,
) -> Ending:
    """What the store gets of an outcome. A result that it cannot hold is a failure; secrets are removed."""
    policy = definition.retry if definition else _NO_POLICY
    caps = definition.result_cap(settings) if definition else settings.result_cap, settings.error_cap
    if isinstance(outcome, StoreTrouble) and definition is not None and definition.once:
        outcome = TryAgain(error=outcome.reason, trace=outcome.trace)  # its handler may have done something
    if is_read_by_others(definition):
        outcome = without_secrets(outcome, settings.error_cap)
    try:
        return ending_of(lease, outcome, policy, chance, *caps)
    except BadPayload as problem:
        return ending_of(lease, Fail(str(problem), "result_error"), policy, chance, *caps)


class EndingLine:
    """Endings that may wait for the same rows of others: they are written one batch after the other."""

    def __init__(
        self, batch: int, write: Callable[[Sequence[tuple[Lease, Ending]]], Coroutine[Any, Any, None]]
    ) -> None:
        self._batch = batch
        self._write = write
        self._waiting: list[tuple[Lease, Ending]] = []
        self._flights: dict[asyncio.Task[None], int] = {}  # and how many endings each has
        self._timer: asyncio.TimerHandle | None = None  # until the last flight counts as slow

    @property
    def backlog(self) -> int:
        return len(self._waiting) + sum(self._flights.values())

    @property
    def flights(self) -> list[asyncio.Task[None]]:
        return list(self._flights)

    def put(self, lease: Lease, ending: Ending) -> None:
        self._waiting.append((lease, ending))
        if not self._flights:
            self._begin()

    def close(self) -> None:
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._flights:
            task.cancel()

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and len(self._flights) < _MOST_FLIGHTS:
            batch = self._waiting[: self._batch]
            del self._waiting[: self._batch]
            task = asyncio.create_task(self._write(batch), name="endings")
            self._flights[task] = len(batch)
            task.add_done_callback(self._landed)
        if self._flights and len(self._flights) < _MOST_FLIGHTS:
            self._timer = asyncio.get_running_loop().call_later(_SLOW, self._begin)

    def _landed(self, task: asyncio.Task[None]) -> None:
        del self._flights[task]
        if self._waiting:
            self._begin()
        elif not self._flights and self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Endings:
    def __init__(
        self,
        database: Database,
        ports: Ports,
        telemetry: WorkerTelemetry,
        *,
        batch: int,
        settled: Callable[[Lease, Ending, str | None], None],
    ) -> None:
        """`settled` is told each job's new state, or None when its lease was lost."""
        self._database = database
        self._ports = ports
        self._telemetry = telemetry
        self._settled = settled
        self._lines: defaultdict[str | None, EndingLine] = defaultdict(lambda: EndingLine(batch, self._write))
        self._apart: set[asyncio.Task[None]] = set()  # each with an outcome that was refused

    def put(self, lease: Lease, ending: Ending) -> None:
        self._lines[self._line_of(lease)].put(lease, ending)

    async def flushed(self) -> None:
        """Until everything handed in so far is settled."""
        while tasks := self._tasks():
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Give up what the store has not taken; those leases run out and the jobs are rescued."""
        tasks = self._tasks()
        for line in self._lines.values():
            line.close()
        for task in self._apart:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def backlog(self) -> int:
        return sum(line.backlog for line in self._lines.values()) + len(self._apart)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [*self._apart, *(flight for line in self._lines.values() for flight in line.flights)]

    def _line_of(self, lease: Lease) -> str | None:
        """None: it writes no rows but its own, and those of a lane, for which nobody waits."""
        return lease.layer if lease.layer is not None else "" if lease.parent is not None else None

    async def _write(self, batch: Sequence[tuple[Lease, Ending]]) -> None:
        """Store these. One that the database refuses must not take the others along."""
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._complete(batch)
            except Unavailable as problem:
                log.debug("outcomes of %s wait for the store: %s", plural(len(batch), "job"), problem)
                self._ports.try_again(problem)
                await self._ports.clock.sleep(self._jittered(pause))
                pause = min(pause * 2, _LAST_PAUSE)
            except Exception as problem:  # noqa: BLE001  whatever it is, the others may be stored
                if len(batch) == 1:
                    self._set_apart(*batch[0], problem)
                    return
                for item in batch:
                    await self._write([item])
                return
            else:
                return

    def _set_apart(self, lease: Lease, ending: Ending, problem: Exception) -> None:
        task = asyncio.create_task(self._insist(lease, ending, problem), name=f"ending of {lease.id}")
        self._apart.add(task)
        task.add_done_callback(self._apart.discard)

    async def _insist(self, lease: Lease, ending: Ending, problem: Exception) -> None:
        """Store one outcome that was refused. If it is refused again and again, the job fails, and says why.

        Where even that is refused, the outcome is not to blame: both are tried ever more rarely, and the job is leased
        as long as this worker lives.
        """
        pause, refusals = _FIRST_PAUSE, 1
        while True:
            about = {"job": lease.id, "kind": lease.kind, "worker": self._telemetry.worker}
            log.warning(
                "the outcome of job %s (%s) was refused: %s",
                lease.id,
                *map(shown, (lease.kind, repr(problem))),
                extra=about,
            )
            final = isinstance(problem, BadPayload) or refusals >= _TRIES
            if final and await self._try_again(lease, _refused(ending, problem)) is None:
                return
            await self._ports.clock.sleep(self._jittered(pause))
            pause = min(pause * 2, _RARELY)
            again = await self._try_again(lease, ending)
            if again is None:
                return
            if not isinstance(again, Unavailable):
                problem, refusals = again, refusals + 1

    async def _try_again(self, lease: Lease, ending: Ending) -> Exception | None:
        """None when it is stored, or worth nothing any more."""
        try:
            await self._complete([(lease, ending)])
        except Exception as problem:  # noqa: BLE001  an outcome is kept, whatever keeps the store from taking it
            return problem
        return None

    def _jittered(self, pause: float) -> float:
        return pause * (0.5 + self._ports.random.random())

    async def _complete(self, batch: Sequence[tuple[Lease, Ending]]) -> None:
        sent_at = self._ports.clock.monotonic()
        with urgent(when=self._line_of(batch[0][0]) is None):
            states = await self._store(batch)
        self._telemetry.timed("complete.done", sent_at, batch[0][0].worker, jobs=len(batch))
        for lease, ending in batch:
            self._settled(lease, ending, states.get(ending.seq))

    async def _store(self, batch: Sequence[tuple[Lease, Ending]]) -> dict[int, str]:
        endings = [ending for _, ending in batch]
        # Every parent, whatever the outcome: a cancel that came meanwhile ends the child, too.
        parents = sorted({lease.parent for lease, _ in batch if lease.parent is not None})
        if parents or any(lease.lane is not None or lease.layer is not None for lease, _ in batch):
            ended = await self._database.transact(complete_and_settle, endings, parents)
        else:
            ended = await self._database.transact(complete, endings)
        states = {row.seq: row.state for row in ended}
        missing = [ending for ending in endings if ending.seq not in states]
        if missing:
            for seq in await self._database.transact(repeated, missing):
                states[seq] = next(str(e.state) for e in missing if e.seq == seq)
        return states


def _refused(ending: Ending, problem: Exception) -> Ending:
    error = error_json("result_error", f"the database refused the outcome: {problem}")
    return ending._replace(outcome="failed", state=State.FAILED, delay_us=0, result=None, error=error)
