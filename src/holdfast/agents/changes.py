"""Changes: the events of one transaction, numbered without gap in each run, and what outside listeners are told.

Five topics are public, with the payloads that AgentPG documents. Each change is announced once, when it commits.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from holdfast.agents.records import NewEvent, Note
from holdfast.agents.statements import Events
from holdfast.kernel import encoding
from holdfast.kernel.database import Transaction

Topic = Literal["run_created", "run_state", "run_finalized", "tool_pending", "tools_complete"]

_CAP = 64 * 1024 * 1024
_NOTE_CAP = 7_900  # what a NOTIFY can carry


class Changes:
    """Collects what happened; `write` stores and announces it, in the transaction that did it."""

    def __init__(self, prefix: str = "") -> None:
        """`prefix` of the channels; without one nothing is announced."""
        self._prefix = prefix
        self._events: list[tuple[str, str, str, str | None]] = []
        self._notes: list[Note] = []

    def tell(self, run: str, type: str, data: dict[str, Any] | None = None, *, topic: Topic | None = None) -> None:
        """Something happened to a run. With a topic its data are also what is announced."""
        text = encoding.encode(data or {}, what="an event", cap=_CAP)
        self._events.append((run, type, text, topic))
        if topic is not None:
            self._announce(topic, text)

    def announce(self, topic: Topic, data: dict[str, Any]) -> None:
        """Tell outside listeners more than the event says."""
        self._announce(topic, encoding.encode(data, what="an announcement", cap=_CAP))

    def _announce(self, topic: Topic, text: str) -> None:
        if self._prefix and len(text.encode()) <= _NOTE_CAP:
            self._notes.append(Note(f"{self._prefix}_{topic}", text))

    async def write(self, tx: Transaction) -> None:
        if not self._events:
            return
        places: Counter[str] = Counter()
        rows = []
        for run, type, data, topic in self._events:
            places[run] += 1
            rows.append(NewEvent(run, places[run], type, data, topic))
        await tx.run(Events.add_events, events=rows, notes=self._notes)
