"""The tool ledger's replay policies, as the effects of Holdfast's tools.

What may happen again after a crash is decided by a tool's effect, in one place; a policy is another word for it.
"""

from __future__ import annotations

from typing import Literal

from holdfast.errors import UsageError

Effect = Literal["read", "idempotent", "once"]

REPLAY_EXACT = "REPLAY_EXACT"  # a recorded result is returned; a call of unknown outcome waits for a person
REPLAY_IDEMPOTENT = "REPLAY_IDEMPOTENT"  # it may be called again, with the same key
RELAUNCH = "RELAUNCH"  # it is simply called again

EFFECTS: dict[str, Effect] = {REPLAY_EXACT: "once", REPLAY_IDEMPOTENT: "idempotent", RELAUNCH: "read"}


def effect_of(policy: str) -> Effect:
    """What to give to `@hf.tool(effect=…)` for a policy."""
    if policy not in EFFECTS:
        raise UsageError(f"a replay policy is one of {', '.join(EFFECTS)}, not {str(policy)[:80]!r}.")
    return EFFECTS[policy]
