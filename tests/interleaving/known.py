"""Pairs of verbs that are known to go wrong, and why; and those that are meant to do what neither order does."""

from __future__ import annotations

from typing import Final

_DROPPED: Final = "replace says that the holder has the new payload, though it was claimed or ended in between"
_GATED: Final = (
    "a blocked job that is replaced with a delay keeps its gate, and its lane believes that nobody is blocked"
)
_PASSED_OVER: Final = "an ending passes over the blocked job that is being replaced, and nobody looks at the lane again"
_ROBBED: Final = "a namesake registers in the place of a worker that beat in between"

# Each is tried by a test that fails when it is mended.
KNOWN: Final = {
    "debounced-lane/cancel_blocked/replace_blocked": _DROPPED,
    "debounced-lane/cancel_blocked/replace_blocked_later": _DROPPED,
    "debounced-lane/complete/replace_blocked_later": _GATED,
    "debounced-lane/replace_blocked/cancel_blocked": _DROPPED,
    "debounced-lane/replace_blocked/complete": _PASSED_OVER,
    "debounced-lane/replace_blocked_later/cancel_blocked": _DROPPED,
    "debounced-lane/replace_blocked_later/complete": _PASSED_OVER,
    "lonely-lane/cancel_blocked/replace_blocked": _DROPPED,
    "lonely-lane/cancel_blocked/replace_blocked_later": _DROPPED,
    "lonely-lane/complete/replace_blocked_later": _GATED,
    "lonely-lane/replace_blocked/cancel_blocked": _DROPPED,
    "lonely-lane/replace_blocked/complete": _PASSED_OVER,
    "lonely-lane/replace_blocked_later/cancel_blocked": _DROPPED,
    "lonely-lane/replace_blocked_later/complete": _PASSED_OVER,
    "unique-due/cancel/replace": _DROPPED,
    "unique-due/cancel/replace_later": _DROPPED,
    "unique-due/overdue/replace": _DROPPED,
    "unique-due/overdue/replace_later": _DROPPED,
    "unique-due/replace/cancel": _DROPPED,
    "unique-due/replace/overdue": _DROPPED,
    "unique-due/replace_later/cancel": _DROPPED,
    "unique-due/replace_later/overdue": _DROPPED,
    "unique-pending/cancel/replace": _DROPPED,
    "unique-pending/cancel/replace_later": _DROPPED,
    "unique-pending/replace/cancel": _DROPPED,
    "unique-pending/replace/claim": _DROPPED,
    "unique-pending/replace_later/cancel": _DROPPED,
    "unique-pending/replace_later/claim": _DROPPED,
    "workers/beat/register_namesake": _ROBBED,
    "workers/beat/register_twin": _ROBBED,
    "workers/register_namesake/beat": _ROBBED,
    "workers/register_twin/beat": _ROBBED,
}

# These went wrong once. Each is tried after every statement in every run of the suite, not after one.
MENDED: Final = ("unique-window/cancel/prune", "unique-window/retry/prune")

# A message that is to join the run under way begins one of its own when that run ends before it is locked, also where
# another run has taken its place by then. Everything must come to its end here too.
MEANT: Final = frozenset(
    {
        ("message_that_steers", "message_that_interrupts"),
        ("message_that_interrupts", "message_that_steers"),
    }
)
