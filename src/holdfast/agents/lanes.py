"""Lanes to a provider: one for each account and model, closed for everybody by the answer that one worker got."""

from __future__ import annotations

import contextlib
from datetime import datetime

from holdfast.agents.records import LaneRow
from holdfast.agents.statements import Providers
from holdfast.kernel import encoding
from holdfast.kernel.database import Transaction
from holdfast.models import Answered
from holdfast.outcomes import Snooze

PERSON_PAUSE = "30s"
_LONGEST_WAIT = 300.0  # seconds, whatever clock the provider has


def lane_of(credential: str, model: str) -> str:
    return f"{credential}/{model}"


def spent_up(answered: Answered, now: float) -> float | None:
    """How many seconds to wait until a limit that this answer used up is there again; None: there is more."""
    waits = []
    for name, left in answered.limits.items():
        reset = answered.limits.get(name.removesuffix("remaining") + "reset")
        if name.endswith("-remaining") and left == "0" and reset is not None:
            with contextlib.suppress(ValueError):
                waits.append(datetime.fromisoformat(reset).timestamp() - now)
    return min(max(waits), _LONGEST_WAIT) if waits and max(waits) > 0 else None


def closed(lanes: list[LaneRow], name: str) -> Snooze | None:
    for lane in lanes:
        if lane.name != name:
            continue
        if lane.person:
            return Snooze(PERSON_PAUSE, f"lane {name} waits for a person: {lane.reason}")
        if lane.closed_until is not None and lane.closed_until > lane.now:
            return Snooze(f"{lane.closed_until - lane.now}us", f"lane {name} is closed: {lane.reason}")
    return None


async def close_lane(tx: Transaction, name: str, wait_us: int | None, *, person: bool, reason: str) -> None:
    await tx.run(
        Providers.close_lane, name=name, wait_us=wait_us, person=int(person), reason=encoding.clip(reason, 2_000)
    )
