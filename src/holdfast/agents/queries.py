"""Queries: agents, sessions, runs, turns, messages and calls as they stand. Lists are paged, never unbounded."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from holdfast.agents.compaction.records import CompactionRow, CompactionsSql
from holdfast.agents.listing_rows import TenantName
from holdfast.agents.retention.records import DayTotal, TotalsSql
from holdfast.agents.rows import (
    AgentRow,
    CallRow,
    Cursor,
    EventRow,
    RunRow,
    SessionRow,
    TopicRow,
    UsageBelow,
    UsageRow,
    VersionRow,
)
from holdfast.agents.runs.create import AgentName, session_named
from holdfast.agents.statements import (
    AgentsSql,
    CallsSql,
    EndingsSql,
    EventsSql,
    IdsSql,
    RunsSql,
    RunTreesSql,
    SessionListsSql,
    SessionsSql,
)
from holdfast.agents.values import Turn, turn_of
from holdfast.errors import NotFound, UsageError
from holdfast.kernel import codec, retention, tally
from holdfast.kernel import workers as registered
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.failure_groups import delete_failures
from holdfast.kernel.queries import now
from holdfast.kernel.rows import AdjacentIds
from holdfast.kernel.sql import Many, One
from holdfast.kernel.states import WorkerState
from holdfast.kernel.tally import ERASED, SecondWalk
from holdfast.kernel.tally_rows import Finished, Tally, TimeRow
from holdfast.settings import Settings
from holdfast.validation import MOST
from holdfast.workers.layer import Chore

LAST = 2**62
AFTER_ALL = "\U0010ffff"
_BESIDE = {
    "agent": IdsSql.agents_beside,
    "session": IdsSql.sessions_beside,
    "run": IdsSql.runs_beside,
    "call": IdsSql.calls_beside,
    "inquiry": IdsSql.inquiries_beside,
    "batch": IdsSql.batches_beside,
    "budget": IdsSql.budgets_beside,
}


@reading
async def find_run(tx: Transaction, id: str) -> RunRow | None:
    return await tx.one(RunsSql.find_run, id=id)


@reading
async def known_run(tx: Transaction, id: str, tenant: str | None = None) -> None:
    """`NotFound` when there is no such run, or it is another tenant's."""
    found = await tx.many(RunTreesSql.run_states, ids=[id])
    if not found or tenant not in (None, found[0].tenant):
        raise NotFound(f"there is no run {id} in this database.")


@reading
async def runs_of_root(tx: Transaction, root: str, limit: int) -> list[RunRow]:
    return await tx.many(RunsSql.runs_of_root, root=root, limit=limit)


@reading
async def short_family(tx: Transaction, root: str, limit: int, *, most: int = 0, cut: str = "null") -> list[RunRow]:
    """The same, with `cut`, which is JSON, in place of each value that is longer than `most`."""
    return await tx.many(RunTreesSql.short_family, root=root, limit=limit, most=most, cut=cut)


@reading
async def run_weight(tx: Transaction, root: str, session: str) -> int:
    """About how many characters an export of a run has to read."""
    found = await tx.one(RunTreesSql.run_weight, root=root, session=session)
    return 0 if found is None else found.number


@reading
async def tree_usage(tx: Transaction, root: str) -> UsageRow | None:
    return await tx.one(RunsSql.tree_usage, root=root)


@reading
async def usage_below(tx: Transaction, run: str) -> UsageBelow | None:
    """What a run and all that it started have used."""
    found = await tx.many(RunTreesSql.usage_below, ids=[run])
    return found[0] if found else None


@reading
async def session_usage(tx: Transaction, session: str) -> UsageRow | None:
    """What the session's runs have used, and what its compactions have."""
    return await tx.one(RunsSql.session_usage, session=session)


@reading
async def wrong_totals(tx: Transaction, *, look: int = 200, most: int = 1_000) -> list[str]:
    """Sessions whose totals are not the sum of their rows, among the newest; those with so many runs are left out."""
    return [row.session for row in await tx.many(RunsSql.wrong_totals, look=look, most=most, limit=10)]


@reading
async def list_compactions(
    tx: Transaction, session: str, *, before: tuple[int, str] = (LAST, AFTER_ALL), limit: int = 100
) -> list[CompactionRow]:
    page = {"before_at": before[0], "before": before[1], "limit": limit}
    return await tx.many(CompactionsSql.list_compactions, session=session, **page)


@reading
async def list_turns(tx: Transaction, run: str, *, after: int = 0, limit: int = 1_000) -> list[Turn]:
    return [turn_of(row) for row in await tx.many(RunsSql.list_turns, run=run, after=after, limit=limit)]


@reading
async def list_calls(tx: Transaction, run: str, turn: int | None = None) -> list[CallRow]:
    return await tx.many(CallsSql.calls_of, run=run, turn=turn)


@reading
async def find_call(tx: Transaction, id: str) -> CallRow | None:
    return next(iter(await tx.many(CallsSql.find_calls, ids=[id])), None)


@reading
async def calls_after(tx: Transaction, run: str, after: tuple[int, int], limit: int) -> list[CallRow]:
    """Calls of a run behind one, which is named by its turn and its place there."""
    page = await tx.many(CallsSql.call_ids, run=run, turn=after[0], ordinal=after[1], limit=limit)
    return await tx.many(CallsSql.find_calls, ids=[row.id for row in page]) if page else []


@reading
async def stored_events(tx: Transaction, run: str, after: int = 0, limit: int = 1_000_000) -> list[EventRow]:
    return await tx.many(EventsSql.events_after, cursors=[Cursor(run, after)], limit=limit)


@reading
async def topics_after(tx: Transaction, after: tuple[int, int, int], limit: int) -> list[TopicRow]:
    """`after`: the epoch, the transaction and the place of what was read last."""
    epoch, number, pos = after
    return await tx.many(EventsSql.topics_after, epoch=epoch, tx=number, pos=pos, limit=limit)


@reading
async def last_topic(tx: Transaction) -> tuple[int, int, int]:
    """Where the list of topics ends now: the epoch, the transaction and the place of its last event."""
    found = await tx.one(EventsSql.last_topic)
    return (-1, 0, 0) if found is None else (found.epoch, found.tx, found.pos)


@reading
async def find_session(tx: Transaction, id: str, tenant: str | None = None) -> SessionRow:
    """By its id, or by the key that it has in its tenant."""
    row = await session_named(tx, id, tenant or "")
    if row is None or tenant not in (None, row.tenant):
        raise NotFound(f"there is no session {id} in this database.")
    return row


@reading
async def list_tenants(tx: Transaction, *, after: str = "", limit: int = 100) -> list[TenantName]:
    """The tenants that have sessions, by name."""
    return await tx.many(SessionListsSql.list_tenants, after=after, limit=limit)


@reading
async def runs_had(tx: Transaction, sessions: Sequence[str]) -> dict[str, int]:
    """How many runs each of these sessions has had; a session that is gone is left out."""
    return {row.id: row.runs for row in await tx.many(SessionsSql.runs_had, ids=list(sessions))}


@reading
async def metadata_of(tx: Transaction, sessions: Collection[str], tenant: str | None = None) -> dict[str, Any]:
    """The metadata of these sessions, by their ids; of one tenant, or of all."""
    rows = await tx.many(SessionsSql.metadata_of, ids=sorted(set(sessions))) if sessions else []
    return {row.id: codec.decode(row.metadata) for row in rows if tenant in (None, row.tenant)}


@reading
async def count_agents(
    tx: Transaction, *, tenant: str | None = None, name: str | None = None, metadata: str = "{}", cap: int | None = None
) -> int:
    """How many there are; with `cap`, it stops there."""
    most = LAST if cap is None else cap
    counted = await tx.one(AgentsSql.count_agents, tenant=tenant, name=name, metadata=metadata, look=most)
    return counted.n if counted else 0


async def update_session(tx: Transaction, id: str, metadata: str | None, during: str | None = None) -> SessionRow:
    row = await tx.one(SessionsSql.update_session, id=id, metadata=metadata, during=during)
    if row is None:
        raise NotFound(f"there is no session {id} in this database.")
    return row


async def delete_session(tx: Transaction, id: str) -> None:
    """Remove a session and all that is in it, unless a run of it is alive: its messages with what only they hold, its
    runs with their calls and finished jobs, and the keys that named them. What they cost stays counted."""
    found = await tx.one(SessionsSql.lock_session, id=id)
    if found is None:
        raise NotFound(f"there is no session {id} in this database.")
    if await tx.one(SessionsSql.delete_session, id=id) is None:
        raise UsageError(f"session {id} has an active run: cancel it or wait for its end, then delete.")
    await keep_used(tx, id, found.tenant)
    jobs = [row.seq for row in await tx.many(SessionsSql.jobs_of, id=id)]
    blobs = [row.hash for row in await tx.many(SessionsSql.lock_blobs, id=id)]
    await tx.run(SessionsSql.delete_blocks, id=id)
    if blobs:
        await tx.run(SessionsSql.delete_blobs, hashes=blobs)
    for statement in (
        SessionsSql.free_keys,
        SessionsSql.free_sources,
        SessionsSql.delete_messages,
        SessionsSql.delete_events,
        SessionsSql.delete_calls,
        SessionsSql.delete_turns,
        SessionsSql.delete_inquiries,
        SessionsSql.delete_steers,
        SessionsSql.delete_batched,
        SessionsSql.forget_batched,
        SessionsSql.delete_session_reservations,
        SessionsSql.delete_session_uses,
        SessionsSql.delete_session_budgets,
        SessionsSql.delete_runs,
        CompactionsSql.delete_compactions,
    ):
        await tx.run(statement, id=id)
    if jobs:
        await retention.remove(tx, jobs)


@reading
async def find_agent(tx: Transaction, id: str) -> AgentRow | None:
    return await tx.one(AgentsSql.find_agent, id=id)


@reading
async def find_named(tx: Transaction, name: AgentName) -> AgentRow | None:
    """The agent of exactly this name, tenant and metadata."""
    found = await tx.many(AgentsSql.agents_named, name=name.name, tenant=name.tenant)
    same = json.loads(name.metadata)
    return next((row for row in found if json.loads(row.metadata) == same), None)


@reading
async def list_agents(
    tx: Transaction,
    *,
    tenant: str | None = None,
    name: str | None = None,
    metadata: str = "{}",
    after: tuple[str, str] = ("", ""),
    limit: int = 100,
) -> list[AgentRow]:
    return await tx.many(
        AgentsSql.list_agents,
        tenant=tenant,
        name=name,
        metadata=metadata,
        after_name=after[0],
        after=after[1],
        limit=limit,
    )


@reading
async def find_version(tx: Transaction, agent: str, version: int) -> VersionRow | None:
    return await tx.one(AgentsSql.find_version, agent=agent, version=version)


@reading
async def list_versions(tx: Transaction, agent: str, *, before: int = MOST, limit: int = 1_000) -> list[VersionRow]:
    return await tx.many(AgentsSql.list_versions, agent=agent, before=before, limit=limit)


@reading
async def current_definitions(tx: Transaction, names: Sequence[str]) -> list[VersionRow]:
    return await tx.many(AgentsSql.current_definitions, names=names)


async def delete_agent(tx: Transaction, id: str) -> None:
    """Remove an agent that no run has used and no other agent calls."""
    if await tx.one(AgentsSql.find_agent, id=id) is None:
        raise NotFound(f"there is no agent {id} in this database.")
    if callers := await tx.many(AgentsSql.callers_of, id=id):
        raise UsageError(f"agent {id} is called by agent {callers[0].name!r}, whose versions are kept, so it stays.")
    await tx.run(AgentsSql.delete_versions, id=id)
    if await tx.one(AgentsSql.delete_agent, id=id) is None:
        raise UsageError(f"agent {id} has runs, which keep the version they started with, so it cannot be deleted.")


@reading
async def servers_of(tx: Transaction, capabilities: Collection[str], absent: Collection[int] = ()) -> list[str]:
    """Workers that are alive and say that they have all of these."""
    workers = await registered.list_workers(tx, all=False, limit=10_000, absent=absent)
    return [
        worker.id
        for worker in workers
        if worker.status == WorkerState.ACTIVE
        and not worker.silent
        and set(capabilities) <= set(json.loads(worker.capabilities))
    ]


@reading
async def ids_beside(tx: Transaction, noun: str, ids: Sequence[str]) -> list[AdjacentIds]:
    """The ids of that noun before and after each of these, in the order of ids."""
    return await tx.many(_BESIDE[noun], ids=ids)


# Runs, turns and tool calls in the tally. See `kernel.tally`.
#
# What a session used is read from its rows while it is there. So a session that is removed is counted first, as far
# as no
# chore has done that, and so are its compactions, which no chore counts.


RUNS, TURNS, CALLS, COMPACTIONS = "runs", "turns", "calls", "compactions"


class Walk(NamedTuple):
    """How to read what has ended of a subject: where a step ends, what is in it, in a session, and by hours."""

    upto: One[TimeRow]
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
        await tally.forget_again(tx, subject, tenant)
    return any([await tally.make_nameless(tx, subject, tenant) for subject in (*WALKS, COMPACTIONS)])


async def count_again(tx: Transaction, settings: Settings) -> bool:
    """Count some of the hours that are over again; True when there may be more."""
    if await tally.count_jobs_again(tx):
        return True
    for subject, walk in sorted(WALKS.items()):
        second = SecondWalk(subject, walk.upto, walk.again)
        if await tally.is_left(tx, second):
            return await tally.count_again(tx, second) is not None
    return False


async def forget(tx: Transaction, settings: Settings) -> bool:
    return await tally.forget_old(tx)


CHORES = (
    Chore(lambda settings: timedelta(minutes=1), count),
    Chore(lambda settings: timedelta(minutes=1), count_again),
    Chore(lambda settings: timedelta(minutes=10), forget),
)


# Totals: what was used and paid for by what is not there any more, so that sums stay what they were.


_PAGE = 500


async def keep_used(tx: Transaction, session: str, tenant: str) -> None:
    """Add what a session has used to the totals, in the transaction that removes it."""
    await tx.run(TotalsSql.keep_turns, session=session)
    await tx.run(TotalsSql.keep_compactions, session=session, tenant=tenant)
    await tx.run(TotalsSql.forget_trees_in, session=session)
    await count_removed(tx, session, tenant)


async def make_totals_nameless(tx: Transaction, tenant: str) -> bool:
    """Leave no name of an agent in the totals of a tenant; True when there are more."""
    found: list[DayTotal] = await tx.many(TotalsSql.totals_of, tenant=tenant, erased=ERASED, limit=_PAGE)
    for row in found:
        where = {"day": row.day, "tenant": tenant, "agent": row.agent, "model": row.model, "mode": row.mode}
        await tx.run(TotalsSql.delete_total, **where)
        await tx.run(TotalsSql.add_total, **{**row._asdict(), "agent": ERASED})
    more = await make_nameless(tx, tenant)
    return more or len(found) == _PAGE
