"""Words: states, times, spans and sums as people read them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from holdfast.agents.states import BatchState, CallState, InquiryState, RunState, TurnState
from holdfast.kernel.states import State, WorkerState

LONGEST_TEXT = 20_000  # characters of one text on a page


class StateWord(NamedTuple):
    """A state as people see it: its tone is one of waits, runs, person, well, failed, and over for what was ended."""

    tone: str
    word: str


_TONES: dict[str, StateWord] = {
    # The same word in two tables means the same to a person, so one dictionary serves them all.
    RunState.PENDING: StateWord("waits", "waiting"),
    RunState.BATCH_SUBMITTING: StateWord("waits", "for a batch"),
    RunState.BATCH_PENDING: StateWord("waits", "in a batch"),
    RunState.BATCH_PROCESSING: StateWord("runs", "in a batch"),
    RunState.STREAMING: StateWord("runs", "running"),
    RunState.PENDING_TOOLS: StateWord("runs", "in tools"),
    RunState.AWAITING_INPUT: StateWord("person", "needs you"),
    RunState.COMPLETED: StateWord("well", "completed"),
    RunState.CANCELLED: StateWord("over", "cancelled"),
    RunState.FAILED: StateWord("failed", "failed"),
    TurnState.CALLING: StateWord("runs", "asking"),
    TurnState.BATCHED: StateWord("waits", "in a batch"),
    CallState.RUNNING: StateWord("runs", "running"),
    CallState.SKIPPED: StateWord("over", "skipped"),
    State.SCHEDULED: StateWord("waits", "scheduled"),
    State.WAITING: StateWord("waits", "parked"),
    State.SUCCEEDED: StateWord("well", "succeeded"),
    BatchState.ENDED: StateWord("well", "ended"),
    WorkerState.STARTING: StateWord("waits", "starting"),
    WorkerState.ACTIVE: StateWord("runs", "active"),
    WorkerState.DRAINING: StateWord("person", "draining"),
    WorkerState.STOPPED: StateWord("over", "stopped"),
    WorkerState.LOST: StateWord("failed", "lost"),
    "problem": StateWord("failed", "problem"),
    "warning": StateWord("person", "warning"),
    "note": StateWord("waits", "note"),
    "ok": StateWord("well", "well"),
    "paused": StateWord("person", "paused"),
    InquiryState.OPEN: StateWord("person", "open"),
    InquiryState.APPROVED: StateWord("well", "approved"),
    InquiryState.DENIED: StateWord("over", "denied"),
    InquiryState.ANSWERED: StateWord("well", "answered"),
    InquiryState.EXPIRED: StateWord("over", "expired"),
    InquiryState.WITHDRAWN: StateWord("over", "withdrawn"),
}


def state(name: str | None) -> StateWord:
    """A state of anything; one that is not known here is shown by its own name."""
    return _TONES.get(name or "", StateWord("waits", (name or "unknown").replace("_", " ")))


def span(seconds: float | timedelta | None) -> str:
    """How long: 850 ms, 12.4 s, 3 m 20 s, 4 h 5 m, 3 d 4 h."""
    if seconds is None:
        return "–"
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    if seconds < 0:
        return f"−{span(-seconds)}"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, name, below, part in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            count, rest = divmod(whole, size)
            return f"{count} {name}" + (f" {rest // below} {part}" if rest // below else "")
    return f"{whole} s"


def ago(at: datetime | None, now: datetime) -> str:
    """When, as seen from now: just now, 3 min ago, in 2 h."""
    if at is None:
        return "–"
    seconds = (now - at).total_seconds()
    if abs(seconds) < 5:
        return "just now"
    size = abs(seconds)
    for limit, length, name in ((90, 1, "s"), (5_400, 60, "min"), (129_600, 3_600, "h"), (float("inf"), 86_400, "d")):
        if size < limit:
            text = f"{round(size / length)} {name}"
            break
    else:  # pragma: no cover - the last limit has no end
        text = ""
    return f"{text} ago" if seconds > 0 else f"in {text}"


def clock(at: datetime | None) -> str:
    """A time in full, in UTC."""
    return "" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def money(usd: Any) -> str:
    """Dollars: cents above one, four digits below."""
    if usd is None:
        return "–"
    sum_ = Decimal(str(usd))
    if sum_ == 0:
        return "$0"
    if abs(sum_) < Decimal("0.0001"):
        return "<$0.0001"
    return f"${sum_:,.4f}" if abs(sum_) < 1 else f"${sum_:,.2f}"


def count(number: int | None) -> str:
    """A number that fits a column: 950, 12.4k, 3.1M."""
    if number is None:
        return "–"
    for size, name in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if abs(number) >= size:
            unit = 1_000 if name == "k" else size
            return f"{number / unit:.1f}{name}"
    return f"{number:,}"


def short(id: object) -> str:
    """An id as a column shows it: its last characters, which tell it from its neighbours."""
    text = str(id)
    return text if len(text) <= 13 else f"…{text[-10:]}"


def cut(text: str, longest: int = LONGEST_TEXT) -> str:
    """The beginning of a text, with how much there is."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]}… ({longest:,} of {len(text):,} characters)"
