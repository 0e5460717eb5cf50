"""The log of attempts: a line for each at INFO, and what went wrong with one at WARNING or ERROR.

A failure is logged once the store has accepted it: as a warning while another attempt follows, as an error when it was
the last. The record has the user's traceback, and nothing in it can command a terminal.
"""

from __future__ import annotations

import logging
from typing import Any

from holdfast.durations import show
from holdfast.kernel import codec
from holdfast.kernel.rows import Ending, Lease
from holdfast.kernel.states import State
from holdfast.shown_text import first_line, shown
from holdfast.tracebacks import log_with_traceback

log = logging.getLogger("holdfast.attempts")

_LONGEST = 500  # characters of a message on the first line; the traceback has more of it


def is_worth_a_line(ending: Ending) -> bool:
    """Asked of every attempt that ended, so it must be cheap."""
    return ending.error is not None or log.isEnabledFor(logging.INFO)


def report(lease: Lease, ending: Ending, state: str, extra: dict[str, Any], *, awaited: bool, seconds: float) -> None:
    """Log how an attempt ended, after which the job is in `state`.

    `awaited`: a caller in this process gets that failure as an exception. Where nobody has set up logging, Python would
    print both on the same terminal, so then the exception alone tells it.
    """
    error = codec.decode(ending.error) or {}
    job = f"job {lease.id} ({shown(lease.kind)})"
    number = f"attempt {lease.attempts + 1} of {lease.max_attempts}"
    extra = {**extra, "outcome": ending.outcome, "state": str(state), "seconds": round(seconds, 3)}
    extra |= {"max_attempts": lease.max_attempts, "error_type": error.get("type")}
    if ending.outcome == "retried" and state != State.CANCELLED:
        extra["next_try"] = ending.delay_us / 1e6
        when = f"in {_span(ending.delay_us)}" if ending.delay_us else "at once"
        _fail(logging.WARNING, f"{job} failed on {number} and is tried again {when}", error, extra)
    elif ending.outcome == "failed" and state == State.FAILED:
        level = logging.INFO if awaited and not log.hasHandlers() else logging.ERROR
        _fail(level, f"{job} failed on {number} and is not tried again", error, extra)
    elif log.isEnabledFor(logging.INFO):
        why = f": {_short(error['message'])}" if error else ""
        outcome = "cancelled" if state == State.CANCELLED else _WORDS.get(ending.outcome, ending.outcome)
        log_with_traceback(log, logging.INFO, f"{job} {outcome} after {seconds:.3f} s, {number}{why}", "", extra)


def note(lease: Lease, what: str, extra: dict[str, Any]) -> None:
    """One line at INFO for an attempt that ended in another way than by an outcome."""
    if log.isEnabledFor(logging.INFO):
        log_with_traceback(log, logging.INFO, f"job {lease.id} ({shown(lease.kind)}) {what}", "", extra)


_WORDS = {"released": "was handed back"}  # where the word of the outcome would not do


def _fail(level: int, words: str, error: dict[str, str], extra: dict[str, Any]) -> None:
    message = error.get("message", "no reason was given")
    rest = error.get("trace") or (message if "\n" in message.strip() else "")
    if log.isEnabledFor(level):
        log_with_traceback(log, level, f"{words}: {_short(message)}", rest, extra)


def _span(us: int) -> str:
    if us >= 60_000_000:
        return show(us // 1_000_000 * 1_000_000)
    return f"{us / 1e6:.1f} s" if us >= 1_000_000 else f"{us // 1000} ms"


def _short(message: str) -> str:
    line = shown(first_line(message.strip()))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
