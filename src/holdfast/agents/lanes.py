"""Lanes to a provider: one for each account and model, closed for everybody by the answer that one worker got.

A run that finds its lane closed waits on the lane's channel, without a poll until it opens. A worker that closes, opens
or waits locks that channel first, so a run cannot begin to wait behind a lane that has opened meanwhile.

A person opens a lane for all at once. One that a time has closed is tried by a few, who are due at that time; each
answer that one of them gets lets some more follow. So only a few ask a provider that still refuses, however
many wait. If the worker that opens a lane dies half way, a chore continues.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from holdfast.agents.rows import ClosedLane, ProviderLaneRow
from holdfast.agents.statements import ProviderLanesSql
from holdfast.kernel import codec, leases
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.rows import Lease
from holdfast.kernel.waiting import list_channels, lock_channel, own_channel, park, wake_some
from holdfast.kernel.why import AwaitsSignal
from holdfast.models import ModelFailure, ResponseHead
from holdfast.outcomes import Cancel, Outcome, Settled, Snooze
from holdfast.reasons import Gate, Reason, time_text
from holdfast.settings import Settings
from holdfast.text import shell_word
from holdfast.workers.layer import Chore

TOGETHER = 500  # woken by one transaction, when a person opens a lane
TRYING = 10  # who comes back by itself when a lane's time is over, and who follows each answer then
_OPEN_US = 15_000_000  # so long who tries a lane, and who follows, is left to it
_LOOK = 1_000  # channels that one look of the chore goes through
_UNTIL = 5.0  # seconds, where the provider does not say
_LONGEST_WAIT = 300.0  # seconds, whatever clock the provider has
_CHANNEL = own_channel("lane ")

LaneWaitResult = Literal["waiting", "open", "cancelled"]


class ProviderWait(Snooze):
    """The run asks its provider again later. Its attempt is stored under this type: the words are about the account."""

    error_type = "provider_wait"


def lane_of(credential: str, model: str) -> str:
    return f"{credential}/{model}"


def channel_of(lane: str) -> str:
    """Where runs wait behind a lane."""
    return f"{_CHANNEL}{lane}"


def rate_limit_reset(answered: ResponseHead, now: float) -> float | None:
    """How many seconds to wait until a limit that this answer used up is there again; None: there is more."""
    waits = []
    for name, left in answered.limits.items():
        reset = answered.limits.get(name.removesuffix("remaining") + "reset")
        if name.endswith("-remaining") and left == "0" and reset is not None:
            with contextlib.suppress(ValueError):
                waits.append(datetime.fromisoformat(reset).timestamp() - now)
    return min(max(waits), _LONGEST_WAIT) if waits and max(waits) > 0 else None


def is_closed(lane: ProviderLaneRow | ClosedLane) -> bool:
    return bool(lane.person) or (lane.closed_until is not None and lane.closed_until > lane.now)


def closed(lanes: Sequence[ProviderLaneRow], name: str) -> ProviderLaneRow | None:
    """The lane of this name, if it is closed."""
    return next((lane for lane in lanes if lane.name == name and is_closed(lane)), None)


def is_reopened(lanes: Sequence[ProviderLaneRow], name: str) -> bool:
    """Whether a lane was closed recently, so that a run may still wait behind it."""
    return any(lane.name == name and not is_closed(lane) for lane in lanes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderClosed(Reason):
    """A lane to a provider is closed: until a time, or until a person opens it."""

    gate = Gate.LANE

    lane: str
    cause: str
    person_since: int | None

    @property
    def sentence(self) -> str:
        if self.person_since is None:
            return f"lane {self.lane} is closed until {time_text(self.until, '%H:%M:%S UTC')}: {self.cause}"
        since = time_text(self.person_since, "%Y-%m-%d %H:%M UTC")
        return (
            f"lane {self.lane} has waited for a person since {since}: {self.cause}. Fix that, then run `holdfast "
            f"lanes open {shell_word(self.lane)}`"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderReopened(Reason):
    """A lane to a provider is open again; who waits behind it follows little by little."""

    gate = Gate.LANE

    lane: str

    @property
    def sentence(self) -> str:
        return f"lane {self.lane} is open again and lets runs through a few at a time"


def explain(lane: ProviderLaneRow | ClosedLane) -> ProviderClosed:
    """Why nobody gets through a closed lane, and what to do about it."""
    person, until = (lane.updated_at, None) if lane.person else (None, lane.closed_until)
    return ProviderClosed(lane=lane.name, cause=lane.reason, person_since=person, until=until)


async def close_lane(tx: Transaction, name: str, wait_us: int | None, *, person: bool, reason: str) -> None:
    await lock_channel(tx, channel_of(name))
    await tx.run(
        ProviderLanesSql.close_lane, name=name, wait_us=wait_us, person=int(person), reason=codec.clip(reason, 2_000)
    )


async def close_spent(tx: Transaction, name: str, wait_us: int) -> None:
    """Close a lane whose limit an answer has used up: until then it was open."""
    await close_lane(tx, name, wait_us, person=False, reason="the rate limit is used up")
    await tx.run(ProviderLanesSql.note_answer, name=name)


async def close_for(tx: Transaction, name: str, failure: ModelFailure) -> None:
    """Close a lane for as long as this failure holds for everybody."""
    person = failure.closes_lane == "person"
    wait_us = None if person else round((failure.retry_after or _UNTIL) * 1e6)
    await close_lane(tx, name, wait_us, person=person, reason=str(failure))


async def wait_for_lane(
    tx: Transaction, lease: Lease, name: str, *, left_us: int | None = None, chance: float = 0.0
) -> LaneWaitResult:
    """Park a job until its lane opens, and no longer than `left_us`. "open": it has by now, so it need not wait.

    `chance` is one's place in a spread: who tries a lane whose time is over need not come in the same moment.
    """
    fence = await leases.hold(tx, lease)
    if fence.cancel_requested_at is not None:
        return "cancelled"
    channel = channel_of(name)
    await lock_channel(tx, channel)  # before the look: who opens the lane locks it too
    lane = await tx.one(ProviderLanesSql.find_lane, name=name)
    if lane is None or not is_closed(lane):
        return "open"
    due_us = None if lane.person else await _tries_at(tx, lane, chance)
    waits = [us for us in (left_us, due_us) if us is not None]
    await park(tx, lease, channel=channel, timeout_us=min(waits) if waits else None)
    return "waiting"


async def _tries_at(tx: Transaction, lane: ProviderLaneRow, chance: float) -> int | None:
    """In how long one more comes back by itself; None: there are enough who do."""
    wait_us = (lane.closed_until or lane.now) - lane.now
    latest = lane.now + wait_us + wait_us // 10
    due = await tx.one(ProviderLanesSql.due_behind, channel=channel_of(lane.name), until=latest, limit=TRYING)
    return None if due is not None and due.n >= TRYING else round(wait_us + wait_us / 10 * chance)


def after(waiting: LaneWaitResult) -> Outcome | None:
    """What an attempt says after it tried to wait; None: it continues."""
    match waiting:
        case "waiting":
            return Settled()
        case "open":
            return None
        case "cancelled":
            return Cancel("cancelled before it waited for its lane")


async def close_and_wait(
    tx: Transaction, lease: Lease, name: str, failure: ModelFailure, *, left_us: int | None = None, chance: float = 0.0
) -> LaneWaitResult:
    """Close the lane for everybody and wait behind it, both or neither."""
    await leases.hold(tx, lease)
    await close_for(tx, name, failure)
    return await wait_for_lane(tx, lease, name, left_us=left_us, chance=chance)


async def let_through(tx: Transaction, name: str, *, opened: bool = False, limit: int | None = None) -> int:
    """Wake some of those who wait behind a lane that is open; returns how many. `opened` by a person: it is now."""
    limit = TOGETHER if limit is None else limit
    channel = channel_of(name)
    await lock_channel(tx, channel)
    lane = await tx.one(ProviderLanesSql.find_lane, name=name)
    if lane is not None and is_closed(lane):
        if not opened:
            return 0
        await tx.run(ProviderLanesSql.begin_opening, name=name)
    woken = await wake_some(tx, channel, limit=limit)
    if woken < limit:
        await tx.run(ProviderLanesSql.forget_lane, name=name)
    return woken


async def follow_answer(tx: Transaction, name: str) -> int:
    """An answer came through a lane that was closed recently: some of those who wait follow it."""
    await lock_channel(tx, channel_of(name))
    await tx.run(ProviderLanesSql.note_answer, name=name)
    return await let_through(tx, name, limit=TRYING)


class OpenLanes:
    """The chore that continues with lanes that are open again."""

    def __init__(self) -> None:
        self._after = ""  # how far it has come through the channels

    async def is_due(self, tx: Transaction, _settings: Settings) -> bool:
        gone, left, after = await self._look(tx)
        if not gone | left:
            self._after = after
        return bool(gone | left)

    async def tend(self, tx: Transaction, _settings: Settings) -> None:
        """Lanes that have been open for a while, and channels of lanes whose row is gone: nobody stays behind there."""
        gone, left, self._after = await self._look(tx)
        for name in sorted(gone | left):
            await let_through(tx, name, limit=TOGETHER if name in gone else TRYING)

    async def _look(self, tx: Transaction) -> tuple[set[str], set[str], str]:
        """Lanes whose row is gone, lanes that are open again, and how far this has come."""
        lanes = await tx.many(ProviderLanesSql.lanes)
        channels = await list_channels(tx, after=self._after, limit=_LOOK)
        known = {lane.name for lane in lanes}
        gone = {name.removeprefix(_CHANNEL) for name in channels if name.startswith(_CHANNEL)} - known
        left = {lane.name for lane in lanes if not lane.person and (lane.closed_until or 0) < lane.now - _OPEN_US}
        return gone, left, channels[-1] if len(channels) == _LOOK else ""


def chore() -> Chore:
    lanes = OpenLanes()

    @reading
    async def is_due(tx: Transaction, settings: Settings) -> bool:
        return await lanes.is_due(tx, settings)

    return Chore(lambda settings: settings.sweep_interval, lanes.tend, is_due)


@reading
async def list_lanes(tx: Transaction) -> list[ClosedLane]:
    return await tx.many(ProviderLanesSql.closed_lanes)


async def behind(tx: Transaction, reasons: Sequence[Reason]) -> list[Reason]:
    """What `why` says in place of these reasons of a job that waits behind a lane."""
    channels = [each.channel for each in reasons if isinstance(each, AwaitsSignal)]
    for name in [each.removeprefix(_CHANNEL) for each in channels if each.startswith(_CHANNEL)]:
        lane = await tx.one(ProviderLanesSql.find_lane, name=name)
        if lane is not None:
            return [explain(lane) if is_closed(lane) else ProviderReopened(lane=name)]
    return []
