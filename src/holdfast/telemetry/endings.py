"""How the span of an attempt says how it ended."""

from __future__ import annotations

from opentelemetry.trace import Span, StatusCode

from holdfast.outcomes import Cancel, Discard, Fail, Snooze, TryAgain


class AttemptSpan:
    """The span of one attempt, which says how it ended."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def conclude(self, outcome: object | None) -> None:
        self._span.set_attribute("holdfast.outcome", _word_for(outcome))
        match outcome:
            case None:
                self._fail("lost", "its lease was lost; the result is dropped")
            case TryAgain(_, message, type=kind, trace=stack):
                if stack:
                    details = {"exception.message": str(message), "exception.stacktrace": stack}
                    self._span.add_event("exception", {"exception.type": _exception(message), **details})
                self._fail(kind, message)
            case Fail(message, type=kind):
                self._fail(kind, message)
            case Discard():
                self._fail("discarded", outcome.reason)
            case Cancel():
                self._span.set_attribute("holdfast.reason", str(outcome.reason))
            case _:
                pass

    def _fail(self, kind: str, message: object) -> None:
        self._span.set_attribute("error.type", str(kind))
        self._span.set_status(StatusCode.ERROR, str(message))


def _word_for(outcome: object | None) -> str:
    """The outcome as dashboards know it: a `TryAgain` is still a "retry" there, and every `Snooze` a "snooze"."""
    match outcome:
        case None:
            return "lost"
        case TryAgain():
            return "retry"
        case Snooze():
            return "snooze"
        case _:
            return type(outcome).__name__.lower()


def _exception(message: object) -> str:
    return str(message).partition(":")[0]
