"""Problems: what an error says to a program, in one shape for HTTP, streams and `--json`.

`error` is the class, `detail` the whole message, `retry` whether to call again, `remedy` what to do about it.
"""

from __future__ import annotations

import re

from holdfast.errors import HoldfastError, NotFound, StoreRefused, Unavailable, UsageError
from holdfast.redaction import MARGIN
from holdfast.shown_text import shown_text

_SENTENCE = re.compile(r"(?<=[.:;])\s+(?=\S)")
_FEWEST_SPACES = 2
_LONGEST = 8_000  # characters of a message
_REMEDIES: tuple[tuple[type[HoldfastError], str], ...] = (
    (NotFound, "Look it up in the list that has it; it may have been removed."),
    (UsageError, "Correct the call: the same call gets the same answer."),
    (Unavailable, "Try again later; nothing was lost."),
    (StoreRefused, "Look at the present state, and decide again."),
)


def told(problem: HoldfastError) -> dict[str, str]:
    """The members of a problem."""
    return members(type(problem).__name__, str(problem), problem.retry, remedy_of(problem))


def members(error: str, detail: str, retry: str, remedy: str) -> dict[str, str]:
    return {"error": error, "detail": _text(detail), "retry": retry, "remedy": _text(remedy)}


def _text(text: str) -> str:
    """What may be shown. A message repeats what was sent, and that is as long as its sender likes."""
    if len(text) <= _LONGEST:
        return shown_text(text)
    return f"{shown_text(text[: MARGIN * _LONGEST])[:_LONGEST]}… ({len(text):,} characters)"


def remedy_of(problem: HoldfastError) -> str:
    """What the message advises after it has said what happened, or what is right for this kind of error."""
    if own := getattr(problem, "remedy", ""):
        return str(own)
    advice = "".join(_SENTENCE.split(str(problem)[: MARGIN * _LONGEST], maxsplit=1)[1:])
    if advice.count(" ") >= _FEWEST_SPACES:  # else it is a value, not what to do about it
        return advice[0].upper() + advice[1:]
    return next((remedy for kind, remedy in _REMEDIES if isinstance(problem, kind)), "")
