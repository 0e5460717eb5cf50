"""Pairs of verbs that went wrong once, and those that are meant to do what neither order does."""

from __future__ import annotations

from typing import Final

# These went wrong once. Each is tried after every statement in every run of the suite, not after one.
MENDED: Final = (
    "agent-asking/commit_calls/journal",
    "agent-asking/fail_turn/journal",
    "agent-asking/journal/commit_calls",
    "agent-asking/journal/fail_turn",
    "agent-inherited/begin/journal_of_the_frozen",
    "agent-inherited/journal_of_the_frozen/begin",
    "agent-zombie/journal/journal",
    "batches-searching/disown/take_too",
    "batches-searching/take/take_too",
    "batches-searching/take_too/disown",
    "batches-searching/take_too/take",
    "takeover/sweep/take",
    "takeover/take/take_too",
    "debounced-lane/cancel_blocked/replace_blocked",
    "debounced-lane/cancel_blocked/replace_blocked_later",
    "debounced-lane/complete/replace_blocked_later",
    "debounced-lane/replace_blocked/cancel_blocked",
    "debounced-lane/replace_blocked/complete",
    "debounced-lane/replace_blocked_later/cancel_blocked",
    "debounced-lane/replace_blocked_later/complete",
    "lonely-lane/cancel_blocked/replace_blocked",
    "lonely-lane/cancel_blocked/replace_blocked_later",
    "lonely-lane/complete/replace_blocked_later",
    "lonely-lane/replace_blocked/cancel_blocked",
    "lonely-lane/replace_blocked/complete",
    "lonely-lane/replace_blocked_later/cancel_blocked",
    "lonely-lane/replace_blocked_later/complete",
    "redeclared-lane/cancel_blocked/replace_blocked",
    "redeclared-lane/cancel_blocked/replace_blocked_later",
    "redeclared-lane/claim/replace_new",
    "redeclared-lane/claim/replace_new_later",
    "redeclared-lane/replace_blocked/cancel_blocked",
    "redeclared-lane/replace_blocked_later/cancel_blocked",
    "redeclared-lane/replace_new/claim",
    "redeclared-lane/replace_new_later/claim",
    "unique-due/cancel/replace",
    "unique-due/cancel/replace_later",
    "unique-due/overdue/replace",
    "unique-due/overdue/replace_later",
    "unique-due/replace/cancel",
    "unique-due/replace/overdue",
    "unique-due/replace_later/cancel",
    "unique-due/replace_later/overdue",
    "unique-pending/cancel/replace",
    "unique-pending/cancel/replace_later",
    "unique-pending/replace/cancel",
    "unique-pending/replace/claim",
    "unique-pending/replace_later/cancel",
    "unique-pending/replace_later/claim",
    "workers/beat/register_namesake",
    "workers/beat/register_twin",
    "workers/register_namesake/beat",
    "workers/register_twin/beat",
    "unique-window/cancel/prune",
    "unique-window/retry/prune",
)

# A message that is to join the run under way begins one of its own when that run ends before it is locked, also where
# another run has taken its place by then. Everything must come to its end here too.
MEANT: Final = frozenset(
    {
        ("message_that_steers", "message_that_interrupts"),
        ("message_that_interrupts", "message_that_steers"),
    }
)
