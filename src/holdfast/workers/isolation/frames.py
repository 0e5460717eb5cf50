"""What a worker and a job's own process say to each other: one JSON value a line, tagged by its single key.

    to the child      {"job": …}   {"answer": …}   {"problem": [class, message]}
    to the worker     {"ask": [verb, …]}   {"log": [level, text]}   {"outcome": …}

What the child sends is bounded, since user code decides its size; what it is sent comes from the store.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, assert_never

from holdfast import durations, errors
from holdfast.durations import Duration
from holdfast.errors import BadPayload, HoldfastError, UsageError
from holdfast.kernel.codec import clip, clip_middle
from holdfast.outcomes import Cancel, Discard, Done, Fail, Outcome, Park, Settled, Snooze, StoreTrouble, TryAgain
from holdfast.settings import Settings
from holdfast.text import MARGIN


def limit(settings: Settings, result_cap: int) -> int:
    """Bytes of the longest frame a child may send: whatever the caps allow, written with every escape it may need.

    `result_cap` is that of the job. A step's result has the one of the settings.
    """
    results = max(result_cap, settings.result_cap)
    caps = settings.payload_cap + settings.metadata_cap + results + settings.progress_cap
    return 4 * (caps + 5 * MARGIN * settings.error_cap) + 65_536


def pack(frame: dict[str, Any], most: int | None = None) -> bytes:
    """One line. ASCII, because paths and arguments of the command line may not be UTF-8."""
    line = json.dumps(frame, separators=(",", ":")).encode() + b"\n"
    if most is not None and len(line) > most:
        raise BadPayload(
            f"{next(iter(frame))!r} is {len(line):,} bytes on its way from the job's process to the worker, over the "
            f"limit of {most:,}. Store it elsewhere and pass a reference, or raise result_cap or payload_cap."
        )
    return line


def unpack(line: bytes) -> Any:
    return json.loads(line)


def write_problem(problem: HoldfastError) -> list[str]:
    return [type(problem).__name__, str(problem)]


def read_problem(frame: list[str]) -> HoldfastError:
    """The same error, of the same class, as the worker met it."""
    name, message = frame
    kind: type[HoldfastError] = getattr(errors, name, HoldfastError)
    # Past __init__, whose parameters differ; it has already made the message.
    return kind.__new__(kind, message)


def write_outcome(outcome: Outcome | None, cap: int) -> dict[str, Any]:  # noqa: PLR0911  one for each outcome
    """An outcome as JSON; None is a lost lease. The worker redacts its texts, and keeps `cap` bytes of each."""
    most = cap * MARGIN

    def text(value: object) -> str:
        return clip(str(value), most)

    match outcome:
        case None:
            return {"lost": True}
        case Done(result):
            return {"done": result}
        case TryAgain(after, error, type, trace):
            return {"retry": [_us(after), text(error), text(type), clip_middle(trace, most)]}
        case Fail(error, type, trace):
            return {"fail": [text(error), text(type), clip_middle(trace, most)]}
        case Park(channel, timeout):
            return {"park": [channel, _us(timeout)]}
        case Cancel():
            return {"cancel": text(outcome.reason)}
        case Discard():
            return {"discard": [text(outcome.reason), clip_middle(outcome.trace, most)]}
        case StoreTrouble():
            return {"store_trouble": [text(outcome.reason), clip_middle(outcome.trace, most)]}
        case Snooze():
            return {"snooze": [outcome.delay_us, text(outcome.reason)]}
        case Settled():
            raise UsageError("a job in a separate process cannot end itself in the store.")
        case _:
            assert_never(outcome)


def read_outcome(frame: Any) -> Outcome | None:  # noqa: PLR0911  one for each outcome
    match frame:
        case {"lost": True}:
            return None
        case {"done": result}:
            return Done(result)
        case {"retry": [after, str(error), str(type), str(trace)]}:
            return TryAgain(_duration(after), error, type, trace)
        case {"fail": [str(error), str(type), str(trace)]}:
            return Fail(error, type, trace)
        case {"park": [channel, timeout]}:
            return Park(channel, _duration(timeout))
        case {"cancel": str(reason)}:
            return Cancel(reason)
        case {"discard": [str(reason), str(trace)]}:
            discarded = Discard(reason)
            discarded.trace = trace
            return discarded
        case {"store_trouble": [str(reason), str(trace)]}:
            return StoreTrouble(reason, trace)
        case {"snooze": [int(delay_us), str(reason)]}:
            return Snooze(timedelta(microseconds=delay_us), reason)
        case _:
            raise ValueError(f"{frame!r} is not an outcome")


def _us(value: Duration | None) -> int | None:
    return None if value is None else durations.microseconds(value)


def _duration(us: int | None) -> timedelta | None:
    return None if us is None else timedelta(microseconds=us)
