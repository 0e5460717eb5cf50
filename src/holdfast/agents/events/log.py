"""The log: the events of one transaction, numbered without gap in each run, and what is sent to outside listeners.

Five topics are public, with the payloads that AgentPG documents. Each change is announced once, after its commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.agents.rows import CallRequestId, NewDelta, NewEvent, NewRun, StreamingAttempt
from holdfast.agents.statements import EventsSql, RunsSql
from holdfast.clock import Ports
from holdfast.errors import Unavailable
from holdfast.kernel import codec
from holdfast.kernel.database import EVERY, Announcement, Database, Transaction
from holdfast.kernel.rows import Lease
from holdfast.text import shown

Topic = Literal["run_created", "run_state", "run_finalized", "tool_pending", "tools_complete"]

_PENDING = ("execution_id", "run_id", "tool_name", "is_agent_tool", "agent_name", "agent_id")
_CAP = 64 * 1024 * 1024
_NOTE_CAP = 7_900  # what a NOTIFY can carry
_MOST_NAMED = 150  # runs in one hint


def payload_of(topic: str, data: dict[str, Any]) -> dict[str, Any]:
    """What a topic says of an event."""
    return {name: data.get(name) for name in _PENDING} if topic == "tool_pending" else data


def state_change(
    id: str, session: str, agent_name: str, parent: str | None, *, agent: str, state: str, before: str | None
) -> dict[str, Any]:
    """What is announced of a change of state."""
    return {
        "run_id": id,
        "session_id": session,
        "agent_name": agent_name,
        "agent_id": agent,
        "state": state,
        "previous_state": before,
        "parent_run_id": parent,
    }


def created(run: NewRun) -> dict[str, Any]:
    """What is announced of a new run."""
    return {
        "run_id": run.id,
        "session_id": run.session,
        "agent_name": run.agent_name,
        "agent_id": run.agent,
        "run_mode": run.mode,
        "parent_run_id": run.parent,
        "depth": run.depth,
    }


def run_note(runs: Iterable[str]) -> str:
    """The hint for those who read these runs."""
    named = sorted(set(runs))
    return f"run {EVERY if len(named) > _MOST_NAMED else ','.join(named)}"


class Changes:
    """Collects what happened; `write` stores and announces it, in the transaction that did it."""

    def __init__(self, prefix: str = "") -> None:
        """`prefix` of the channels; without one nothing is announced."""
        self._prefix = prefix
        self._events: list[tuple[str, str, str, str | None]] = []
        self._notes: list[Announcement] = []

    def tell(self, run: str, type: str, data: dict[str, Any] | None = None, *, topic: Topic | None = None) -> None:
        """Something happened to a run. With a topic, outside listeners get as much of its data as is documented."""
        text = codec.encode(data or {}, what="an event", cap=_CAP)
        self._events.append((run, type, text, topic))
        if topic is None or not self._prefix:
            return
        note = codec.encode(payload_of(topic, data or {}), what="an announcement", cap=_CAP)
        if len(note.encode()) <= _NOTE_CAP:
            self._notes.append(Announcement(f"{self._prefix}_{topic}", note))

    async def write(self, tx: Transaction) -> None:
        if not self._events:
            return
        places: Counter[str] = Counter()
        rows = []
        for run, type, data, topic in self._events:
            places[run] += 1
            rows.append(NewEvent(run, places[run], type, data, topic))
        notes, self._events, self._notes = self._notes, [], []  # each is sent once
        added = await tx.one(EventsSql.add_events, events=rows)
        if added is not None and added.readers:
            await tx.hint(run_note(places))
        await tx.announce(notes)


# The journal: what models say while they say it, of all runs of one worker, a few writes a second.
#
# Pieces of one kind that follow each other become one event. A write is fenced by the run's token, so what a late
# attempt still has in hand changes nothing. What is not written when its turn is committed goes with that commit.


log = logging.getLogger("holdfast.agents")

_NOTES_CAP = 1 << 26
_INTERRUPT = "interrupt "
_LIFE = 5.0  # seconds between notes that a silent model is there


@dataclass(slots=True)
class Piece:
    """Something that a model said in one go."""

    type: str
    turn: int
    index: int
    offset: int  # how many characters of the block came before
    texts: list[str]

    def continues(self, other: Piece) -> bool:
        return (self.type, self.turn, self.index) == (other.type, other.turn, other.index)

    def data(self) -> dict[str, Any]:
        return {"turn": self.turn, "index": self.index, "offset": self.offset, "text": "".join(self.texts)}


@dataclass(slots=True)
class _PendingDeltas:
    lease: Lease
    pieces: list[Piece] = field(default_factory=list)
    requested: CallRequestId | None = None
    alive: bool = False


class Journal:
    def __init__(self, database: Database, ports: Ports, interval: float) -> None:
        self._database = database
        self._ports = ports
        self._interval = interval
        self._pending: dict[StreamingAttempt, _PendingDeltas] = {}
        self._seen: dict[StreamingAttempt, float] = {}  # when a run's life was last noted
        self._writing: asyncio.Task[None] | None = None
        self._write: asyncio.Future[None] | None = None  # the one in flight
        self._scopes: dict[StreamingAttempt, asyncio.Timeout] = {}  # of calls that may be interrupted
        self._listening = False

    def put(self, lease: Lease, run: str, piece: Piece) -> None:
        pieces = self._of(lease, run).pieces
        if pieces and pieces[-1].continues(piece):
            pieces[-1].texts += piece.texts
        else:
            pieces.append(piece)

    def alive(self, lease: Lease, run: str) -> None:
        """The model is there, though it may say nothing that is shown: a ping counts."""
        now = self._ports.clock.monotonic()
        key = _key(lease, run)
        if now - self._seen.get(key, float("-inf")) >= _LIFE:
            self._seen[key] = now
            self._of(lease, run).alive = True

    async def listen(self) -> None:
        """Hear of interruptions from now on."""
        if not self._listening:
            self._listening = True
            await self._database.listen(self._heard)

    @contextmanager
    def interruptible(self, lease: Lease, run: str, scope: asyncio.Timeout) -> Iterator[None]:
        """Let `scope` end when somebody interrupts the run. Listen first."""
        self._scopes[_key(lease, run)] = scope
        try:
            yield
        finally:
            self._scopes.pop(_key(lease, run), None)

    def _heard(self, note: str) -> None:
        if note.startswith(_INTERRUPT):
            self._interrupt(set(note.removeprefix(_INTERRUPT).split(",")))

    def _interrupt(self, runs: Collection[str]) -> None:
        for (run, _, _), scope in list(self._scopes.items()):
            if run in runs and not scope.expired():
                scope.reschedule(asyncio.get_running_loop().time())

    def note_request(self, lease: Lease, run: str, turn: int, request_id: str) -> None:
        self._of(lease, run).requested = CallRequestId(run, turn, lease.epoch, lease.token, request_id)

    async def take(self, lease: Lease, run: str) -> list[tuple[str, dict[str, Any]]]:
        """What has not been written yet, in order, for the one that writes it now."""
        while self._write is not None:
            await asyncio.shield(self._write)
        self._seen.pop(_key(lease, run), None)
        pending = self._pending.pop(_key(lease, run), None)
        return [] if pending is None else [(piece.type, piece.data()) for piece in pending.pieces]

    async def close(self) -> None:
        """Write nothing more; what is pending goes with its turn's commit, or never was."""
        self._database.unlisten(self._heard)
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    def drop(self, lease: Lease, run: str) -> None:
        self._seen.pop(_key(lease, run), None)
        self._pending.pop(_key(lease, run), None)

    def _of(self, lease: Lease, run: str) -> _PendingDeltas:
        pending = self._pending.setdefault(_key(lease, run), _PendingDeltas(lease))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._keep_writing(), name="journal")
        return pending

    async def _keep_writing(self) -> None:
        while True:
            await self._ports.clock.sleep(self._interval)
            if not self._pending:
                return
            batch, self._pending = self._pending, {}
            self._write = asyncio.get_running_loop().create_future()
            try:
                await self._write_some(batch)
            finally:
                self._write.set_result(None)
                self._write = None

    async def _write_some(self, batch: dict[StreamingAttempt, _PendingDeltas]) -> None:
        """What the store refuses of one run must not take the others along; readers see it later, from the turn."""
        try:
            while not await self._written(batch):
                await self._ports.clock.sleep(10 * self._interval)
        except Exception as problem:  # noqa: BLE001  whatever it is, the journal continues
            if len(batch) == 1:
                ((run, _, _),) = batch
                log.warning("the output of run %s could not be streamed: %s", run, shown(problem))
                return
            for key, pending in batch.items():
                await self._write_some({key: pending})

    async def _written(self, batch: dict[StreamingAttempt, _PendingDeltas]) -> bool:
        """False when the store is away: the same again, later. What it has nevertheless stored is not stored twice."""
        try:
            stopped = await self._database.transact(write, _deltas(batch), _requests(batch), _living(batch))
            self._interrupt(stopped)
        except Unavailable:
            return False
        return True


def _key(lease: Lease, run: str) -> StreamingAttempt:
    return StreamingAttempt(run, lease.epoch, lease.token)


def _deltas(batch: dict[StreamingAttempt, _PendingDeltas]) -> list[NewDelta]:
    rows = []
    for (run, _, _), pending in sorted(batch.items(), key=lambda each: each[0]):
        for place, piece in enumerate(pending.pieces, 1):
            data = codec.encode(piece.data(), what="a delta", cap=_NOTES_CAP)
            rows.append(NewDelta(run, pending.lease.epoch, pending.lease.token, place, piece.type, data))
    return rows


def _requests(batch: dict[StreamingAttempt, _PendingDeltas]) -> list[CallRequestId]:
    return [pending.requested for pending in batch.values() if pending.requested is not None]


def _living(batch: dict[StreamingAttempt, _PendingDeltas]) -> list[StreamingAttempt]:
    return [key for key, pending in sorted(batch.items(), key=lambda each: each[0]) if pending.alive]


async def write(
    tx: Transaction,
    deltas: Sequence[NewDelta],
    requests: Sequence[CallRequestId],
    living: Sequence[StreamingAttempt] = (),
) -> list[str]:
    """Returns the runs that somebody has interrupted. Four statements at most, however many runs there are.

    The runs are locked first, and then their turns, as everybody locks them: see `begin_turn`.
    """
    if deltas:
        speaking = sorted({StreamingAttempt(delta.run, delta.epoch, delta.token) for delta in deltas})
        await tx.many(EventsSql.lock_speaking, speaking=speaking)
        added = await tx.one(EventsSql.add_deltas, deltas=deltas)
        if added is not None and added.readers:
            await tx.hint(run_note(delta.run for delta in deltas))
    lives = await tx.many(RunsSql.note_life, living=living) if living else []
    if requests:
        await tx.run(RunsSql.note_request, requests=requests)
    return [run.id for run in lives if run.interrupted]
