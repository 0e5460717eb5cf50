"""Runs, turns and tool calls in the tally. See `kernel.tally`.

What a session used is read from its rows while it is there. So a session that is removed is counted first, as far as no
chore has done that, and so are its compactions, which no chore counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple

from holdfast.agents.statements import EndingsSql
from holdfast.kernel import tally, tally_again, tally_erasure
from holdfast.kernel.database import Transaction
from holdfast.kernel.failure_groups import delete_failures
from holdfast.kernel.queries import now
from holdfast.kernel.sql import Many, One
from holdfast.kernel.tally_again import SecondWalk
from holdfast.kernel.tally_rows import At, Finished, Tally
from holdfast.settings import Settings
from holdfast.workers.layer import Chore

RUNS, TURNS, CALLS, COMPACTIONS = "runs", "turns", "calls", "compactions"


class Walk(NamedTuple):
    """How to read what has ended of a subject: where a step ends, what is in it, in a session, and by hours."""

    upto: One[At]
    ended: Many[Finished]
    within: Many[Finished]
    again: Many[Tally]


WALKS: Mapping[str, Walk] = {
    RUNS: Walk(EndingsSql.runs_upto, EndingsSql.ended_runs, EndingsSql.runs_in, EndingsSql.runs_again),
    TURNS: Walk(EndingsSql.turns_upto, EndingsSql.ended_turns, EndingsSql.turns_in, EndingsSql.turns_again),
    CALLS: Walk(EndingsSql.calls_upto, EndingsSql.ended_calls, EndingsSql.calls_in, EndingsSql.calls_again),
}


async def count(tx: Transaction, settings: Settings) -> bool:
    """Count some of what has ended; True when there may be more."""
    more = await tally.tally_jobs(tx)
    for subject in sorted(WALKS):  # in the order in which `count_removed` holds the marks
        more = await _count(tx, subject) or more
    return more


async def _count(tx: Transaction, subject: str, look: int = tally.LOOK) -> bool:
    walk = WALKS[subject]
    moment = await now(tx)
    before = tally.settled(moment)
    seen = await tally.find_mark(tx, subject)
    if await tx.one(walk.upto, after=seen, before=before, skipped=0) is None:
        return False
    mark = await tally.hold_mark(tx, subject)
    last = await tx.one(walk.upto, after=mark, before=before, skipped=look - 1)
    upto = before - 1 if last is None else last.at
    await tally.add(tx, subject, await tx.many(walk.ended, after=mark, upto=upto), moment)
    await tally.move_mark(tx, subject, upto)
    return last is not None


async def count_removed(tx: Transaction, session: str, tenant: str) -> None:
    """Count what nobody has counted of a session, in the transaction that removes it."""
    moment = await now(tx)
    for subject, walk in sorted(WALKS.items()):
        mark = await tally.hold_mark(tx, subject)
        second = await tally.hold_mark(tx, tally.AGAIN + subject)
        await tally.add_removed(tx, subject, await tx.many(walk.within, session=session, after=second), {"": mark})
    made = await tx.many(EndingsSql.compactions_in, session=session, tenant=tenant)
    await tally.add(tx, COMPACTIONS, made, moment)


async def make_nameless(tx: Transaction, tenant: str) -> bool:
    """Leave no agent's name in what is counted of a tenant, and none of its failures; True when there is more."""
    await delete_failures(tx, tenant)
    for subject in WALKS:
        await tally_erasure.forget_again(tx, subject, tenant)
    return any([await tally_erasure.make_nameless(tx, subject, tenant) for subject in (*WALKS, COMPACTIONS)])


async def count_again(tx: Transaction, settings: Settings) -> bool:
    """Count some of the hours that are over again; True when there may be more."""
    if await tally_again.count_jobs_again(tx):
        return True
    for subject, walk in sorted(WALKS.items()):
        second = SecondWalk(subject, walk.upto, walk.again)
        if await tally_again.is_left(tx, second):
            return await tally_again.count_again(tx, second) is not None
    return False


async def forget(tx: Transaction, settings: Settings) -> bool:
    return await tally.forget_old(tx)


CHORES = (
    Chore(lambda settings: timedelta(minutes=1), count),
    Chore(lambda settings: timedelta(minutes=1), count_again),
    Chore(lambda settings: timedelta(minutes=10), forget),
)
