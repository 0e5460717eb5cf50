"""Leases: the right to run a job, for a while.

Every write a worker makes carries its token, and the store refuses a token that is not current. So a worker
that was frozen for a minute cannot overwrite its successor. Rescue tests state and expiry in the statement that
changes the row, never by id.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from holdfast.kernel.complete import error_json
from holdfast.kernel.database import Transaction, reading, single
from holdfast.kernel.families import lock_order, settle
from holdfast.kernel.records import Held, Moved, Renewed
from holdfast.kernel.statements import Leases, Workers
from holdfast.kernel.states import State

DEADLINE_ERROR = error_json("deadline_exceeded", "its deadline passed before it ended")
ORPHAN_ERROR = error_json("instance_disconnected", "its worker died or lost contact, and its queue says on_orphan=fail")
RESCUE_ERROR = error_json("rescue_failed", "lost its lease more often than max_rescues allows")

EXPIRY = "expiry"
FOREVER = 2**62  # every moment of the store's clock is trusted


class Beat(NamedTuple):
    """What a heartbeat learned."""

    registered: bool  # False: this incarnation was given up for lost and must register again
    renewed: list[Renewed]
    lost: list[Held]  # stop these attempts and drop their results
    draining: bool = False  # as the store has it: someone may have asked for it there
    now: int | None = None  # the store's time of this beat; None: it did not say
    oldest_code: int = 0  # the schema version that code must have to use the tables
    incarnation: str | None = None  # whose beat it was


class OwnRow(NamedTuple):
    """What a worker knows of its own row, for the store to compare."""

    incarnation: str | None = None  # None: whoever has the number
    last_beat: int = 0  # the store's time of the last beat that was answered
    presence: bool | None = None  # whether its sign of life is shown now; None: as it was
    lines: str | None = None  # how many slots of each line there are, and are taken, as JSON; None: as it was


_ANYBODY = OwnRow()


async def beat(  # noqa: PLR0913  what a beat says, and two limits
    tx: Transaction,
    worker: int,
    active: int,
    held: Sequence[Held],
    *,
    ttl_us: int,
    ceiling_us: int,
    me: OwnRow = _ANYBODY,
    leapt: Callable[[int], int] = lambda _now: 0,
) -> Beat:
    """Show life and renew the leases this worker knows it holds, and no others.

    `leapt` says, given the store's time, by how many microseconds its clock has leapt since these leases were known to
    hold: they have not run out because it leapt forward, and end no later because it went back.
    """
    shown = await show_life(tx, worker, active, me=me)
    leap_us = leapt(shown.now) if shown.now is not None else 0
    renewed, lost = await renew(tx, held, ttl_us=ttl_us, ceiling_us=ceiling_us, leap_us=leap_us)
    return shown._replace(renewed=renewed, lost=lost)


@single
async def show_life(tx: Transaction, worker: int, active: int, *, me: OwnRow = _ANYBODY) -> Beat:
    """The beat of a worker that holds nothing."""
    row = await tx.one(
        Workers.heartbeat,
        seq=worker,
        active=active,
        incarnation=me.incarnation,
        last_beat=me.last_beat,
        presence=None if me.presence is None else int(me.presence),
        lines=me.lines,
    )
    if row is None:
        return Beat(False, [], [], incarnation=me.incarnation)
    return Beat(True, [], [], row.status == "draining", row.now, row.oldest_code, me.incarnation)


async def renew(
    tx: Transaction, held: Sequence[Held], *, ttl_us: int, ceiling_us: int, leap_us: int = 0
) -> tuple[list[Renewed], list[Held]]:
    """Extend these leases. What was only skipped (someone is ending it right now) is neither renewed nor lost."""
    if not held:
        return [], []
    ordered = sorted(held)
    renewed = await tx.many(Leases.renew, held=ordered, ttl_us=ttl_us, ceiling_us=ceiling_us, leap_us=leap_us)
    kept = {(row.seq, row.epoch, row.token) for row in renewed}
    missing = [h for h in ordered if (h.seq, h.epoch, h.token) not in kept]
    if not missing:
        return renewed, []
    rows = await tx.many(Leases.held_tokens, seqs=[h.seq for h in missing])
    alive = {
        (row.seq, row.epoch, row.token)
        for row in rows
        if row.state == State.RUNNING and row.lease_until is not None and row.lease_until > row.now - max(leap_us, 0)
    }
    return renewed, [h for h in missing if (h.seq, h.epoch, h.token) not in alive]


@reading
async def lapsed(tx: Transaction, *, until: int) -> bool:
    """Whether a lease ran out by `until`. Reads every job that runs: ask when it is this worker's turn."""
    first = await tx.one(Leases.next_expiry)
    return first is not None and first.at is not None and first.at <= until


@single
async def take_expiry_turn(tx: Transaction, *, pause_us: int) -> bool:
    """Whether the caller is the one to ask for leases that ran out; nobody else is within the pause."""
    return await tx.one(Workers.take_turn, name=EXPIRY, pause_us=pause_us) is not None


async def expire(
    tx: Transaction, *, gone: Collection[int], limit: int, backoff_us: int, chance: random.Random, until: int = FOREVER
) -> list[Moved]:
    """Rescue jobs whose lease ran out by `until`, or whose worker is among `gone`; at most `limit` of them.

    A worker is gone once its row says so (`lose_workers`, `unregister`), which is final: it cannot beat any more. What
    a worker holds that the store has not given up is left to it, whoever is in `gone`.
    """
    listed = sorted(gone)
    if listed:
        living = {row.seq for row in await tx.many(Workers.living_workers, workers=listed)}
        listed = [worker for worker in listed if worker not in living]
    found = await tx.many(Leases.find_lapsed, gone=listed, until=until, limit=limit)
    if not found:
        return []
    locked = {row.seq for row in await tx.many(Leases.try_lock_jobs, seqs=lock_order(found))}
    seqs = [job.seq for job in found if job.seq in locked and (job.parent is None or job.parent in locked)]
    if not seqs:
        return []
    await tx.run(Leases.record_lost, seqs=seqs, gone=listed)
    moved = await tx.many(
        Leases.expire,
        seqs=seqs,
        gone=listed,
        backoff_us=backoff_us,
        jitter=chance.randrange(500),
        deadline_error=DEADLINE_ERROR,
        orphan_error=ORPHAN_ERROR,
        rescue_error=RESCUE_ERROR,
    )
    await settle(tx, moved)
    return moved
