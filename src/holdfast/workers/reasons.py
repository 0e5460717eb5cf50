"""Reasons: what an outcome says in words, without the secrets that an exception may carry.

What a handler of a layer above raises goes to places where nobody expects a secret: to a provider, into a history that
is sent again and again, to people and to listeners of events. So it is redacted once, here, on
its way into the store, as what leaves the house is. A job of the program's own keeps its errors as they are.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.kernel import codec
from holdfast.outcomes import Cancel, Discard, Done, Fail, Snooze, TryAgain
from holdfast.redaction import MARGIN, Redactor
from holdfast.workers.definitions import Definition

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
