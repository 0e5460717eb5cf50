"""How an attempt can end. A handler returns one of these, returns its plain result, or raises.

`Cancel`, `Discard` and `Snooze` are both values and exceptions: `return Snooze("5m")` and
`raise Snooze("5m")` mean the same. A handler that raises anything else is retried by its policy.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import durations
from holdfast.durations import Duration


@dataclass(frozen=True, slots=True)
class Done:
    """Succeeded; `result` must be JSON."""

    result: object = None


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Failed this time. Another attempt follows `after` this long, or when the policy says, while any is left."""

    after: Duration | None = None
    error: str = "the handler asked for a retry"
    type: str = "processing_error"
    trace: str = ""

    def __post_init__(self) -> None:
        if self.after is not None:
            durations.microseconds(self.after)


@dataclass(frozen=True, slots=True)
class Fail:
    """Failed for good, whatever attempts are left."""

    error: str = "the handler gave up"
    type: str = "processing_error"
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Park:
    """Wait, holding neither lease nor worker: for the children, or for a signal on `channel`.

    The handler starts again from its beginning when woken; its steps return what they stored. `timeout` wakes
    it without the signal.
    """

    channel: str | None = None
    timeout: Duration | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None:
            durations.microseconds(self.timeout)


@dataclass(frozen=True, slots=True)
class Settled:
    """The handler itself has ended or parked its job, together with what it wrote; nothing is left to write."""


class Cancel(Exception):
    """End the job as cancelled."""

    def __init__(self, reason: str = "the handler cancelled the job") -> None:
        super().__init__(reason)
        self.reason = reason


class Discard(Exception):
    """End the job as failed without using its remaining attempts."""

    def __init__(self, reason: str = "the handler discarded the job") -> None:
        super().__init__(reason)
        self.reason = reason
        self.trace = ""  # where it was raised, and because of what


class Snooze(Exception):
    """Come back after a while; costs no attempt."""

    error_type = "snoozed"  # of the reason, where attempts are stored

    def __init__(self, delay: Duration, reason: str = "") -> None:
        super().__init__(reason or f"snoozed for {delay}")
        self.delay_us = durations.microseconds(delay)
        self.reason = reason


class StoreTrouble(Snooze):
    """The store failed the handler, which is not the job's fault: it comes back soon, and that costs no attempt.

    Holdfast makes it of what a handler raises. Only a job that may start once is not run again for it.
    """

    error_type = "store_trouble"

    def __init__(self, reason: str, trace: str = "") -> None:
        super().__init__("1s", reason)
        self.trace = trace


Outcome = Done | TryAgain | Fail | Park | Settled | Cancel | Discard | Snooze
