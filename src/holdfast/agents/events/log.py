"""The log: the events of one transaction, numbered without gap in each run, and what is sent to outside listeners.

Five topics are public, with the payloads that AgentPG documents. Each change is announced once, after its commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

from holdfast.agents.rows import NewEvent, NewRun
from holdfast.agents.statements import EventsSql
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction
from holdfast.kernel.hints import EVERY, Announcement

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
