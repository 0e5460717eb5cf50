"""Complete: end attempts, whatever their outcome, each under its own token.

What is not among the returned rows was lost, for that job alone, unless this very ending is already recorded:
then an earlier call succeeded and only its answer was lost.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from operator import attrgetter
from typing import assert_never

from holdfast import durations
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, hint, reading, single
from holdfast.kernel.families import lock_anchors, settle
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.rows import EndedLease, Ending, Lease, UnnamedLease
from holdfast.kernel.sql import UniformRecords
from holdfast.kernel.statements import JobsSql
from holdfast.kernel.states import TERMINAL, State
from holdfast.outcomes import Cancel, Discard, Done, Fail, Snooze, TryAgain

RELEASED = "released"
_AGE = attrgetter("seq", "epoch", "token")


@single
async def complete(tx: Transaction, endings: Sequence[Ending]) -> list[EndedLease]:
    """End attempts of jobs without parents and lanes: one statement for all."""
    ended = await _complete(tx, endings)
    await hint(tx, [job.route for job in ended if job.state == State.PENDING])
    return ended


async def complete_and_settle(tx: Transaction, endings: Sequence[Ending], parents: Sequence[int]) -> list[EndedLease]:
    """End attempts of which some have parents or lanes, which hear of it in the same transaction."""
    if parents:
        await lock_anchors(tx, parents)
    if len(endings) > 1:  # one after the other, as everybody locks them
        await tx.many(JobsSql.lock_leases, seqs=sorted(e.seq for e in endings))
    ended = await _complete(tx, endings)
    await settle(tx, ended)
    return ended


async def _complete(tx: Transaction, endings: Sequence[Ending]) -> list[EndedLease]:
    # Of several for one job the last one is read: the newest token, which alone can still be its lease.
    ordered = UniformRecords(sorted(endings, key=_AGE))
    final = all(e.state in TERMINAL for e in ordered)
    return await tx.many(JobsSql.finish if final else JobsSql.complete, endings=ordered, seqs=[e.seq for e in ordered])


@reading
async def repeated(tx: Transaction, endings: Sequence[Ending]) -> set[int]:
    """Those that an earlier call, whose answer was lost, has already recorded."""
    rows = await tx.many(JobsSql.ended_attempts, seqs=[e.seq for e in endings])
    recorded = {(row.job, row.epoch, row.token, row.outcome) for row in rows}
    return {e.seq for e in endings if (e.seq, e.epoch, e.token, e.outcome) in recorded}


def ending(  # noqa: PLR0917  called for every job, from one place
    lease: Lease,
    outcome: Done | TryAgain | Fail | Cancel | Discard | Snooze,
    policy: RetryPolicy,
    chance: random.Random,
    result_cap: int,
    error_cap: int,
) -> Ending:
    """What `outcome` means for this job: its next state, what it costs, what is stored. Pure."""
    if isinstance(outcome, Done):  # most are: they need nothing of what follows
        text = codec.encode(outcome.result, what=f"the result of {lease.kind}", cap=result_cap)
        return Ending(lease.seq, lease.worker, lease.epoch, lease.token, "succeeded", State.SUCCEEDED, 0, 1, text, None)

    def end(
        name: str,
        state: State,
        *,
        delay_us: int = 0,
        counted: int = 1,
        result: str | None = None,
        error: str | None = None,
    ) -> Ending:
        return Ending(*lease.held, name, state, delay_us, counted, result, error)

    def trouble(type: str, message: str, trace: str = "") -> str:
        return error_json(type, message, trace, cap=error_cap)

    match outcome:
        case TryAgain(after, message, type, trace):
            if lease.attempts + 1 >= lease.max_attempts:
                return end("failed", State.FAILED, error=trouble(type, message, trace))
            number = lease.attempts + 1
            delay = policy.delay_us(number, chance) if after is None else durations.microseconds(after)
            return end("retried", _later(delay), delay_us=delay, error=trouble(type, message, trace))
        case Fail(message, type, trace):
            return end("failed", State.FAILED, error=trouble(type, message, trace))
        case Discard():
            return end("failed", State.FAILED, error=trouble("discarded", outcome.reason, outcome.trace))
        case Cancel():
            return end("cancelled", State.CANCELLED, error=trouble("cancelled", outcome.reason))
        case Snooze():
            why = trouble(outcome.error_type, outcome.reason) if outcome.reason else None
            return end("snoozed", _later(outcome.delay_us), delay_us=outcome.delay_us, counted=0, error=why)
        case _:
            assert_never(outcome)


def release(lease: Lease | UnnamedLease) -> Ending:
    """Hand the job back as if it had not been claimed."""
    return Ending(*lease.held, RELEASED, State.PENDING, 0, 0, None, None)


def error_json(type: str, message: str, trace: str = "", *, cap: int = 16_384) -> str:
    """An error as it is stored: a closed `type` to match on, a message for people, and where it came from.

    Takes whatever a handler passed as its reason, an exception for example: an error must always be storable.
    """
    error = {"type": codec.clip(str(type), 200), "message": codec.clip(str(message), cap)}
    if trace:
        error["trace"] = codec.clip_middle(trace, cap)
    return codec.encode(error, what="an error", cap=cap * 16)


def _later(delay_us: int) -> State:
    return State.SCHEDULED if delay_us > 0 else State.PENDING
