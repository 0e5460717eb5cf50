"""Reading: agents, sessions, runs, turns, messages and calls as they stand. Lists are paged, never unbounded."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.agents.compaction.records import CompactionRow
from holdfast.agents.creating import AgentName, session_named
from holdfast.agents.records import (
    AgentRow,
    CallRow,
    Cursor,
    EventRow,
    LaneRow,
    MessageRow,
    RunRow,
    SessionRow,
    TopicRow,
    TurnRow,
    UsageBelow,
    UsageRow,
    ValueCount,
    VersionRow,
)
from holdfast.agents.statements import Agents, Calls, Compactions, Events, Looking, Messages, Providers, Runs, Sessions
from holdfast.errors import NotFound, UsageError
from holdfast.kernel import encoding, retention
from holdfast.kernel import workers as registered
from holdfast.kernel.database import Transaction, reading
from holdfast.results import Usage

LAST = 2**62
AFTER_ALL = "\U0010ffff"


class Turn(NamedTuple):
    """One model call of a run and how it went."""

    number: int
    model: str
    state: str
    attempts: int
    unknown: int
    request_id: str | None
    stop_reason: str | None
    usage: Usage
    error: Any
    started_at: int
    ended_at: int | None


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message as people read it; `blocks` are the provider's own."""

    id: str
    ordinal: int
    role: str
    kind: str
    run_id: str
    turn: int
    live: bool
    preserved: bool
    branch: str
    created_at: int
    blocks: tuple[dict[str, Any], ...]

    @property
    def text(self) -> str:
        return "".join(str(block.get("text", "")) for block in self.blocks if block.get("type") == "text")


@reading
async def find_run(tx: Transaction, id: str) -> RunRow | None:
    return await tx.one(Runs.find_run, id=id)


@reading
async def known_run(tx: Transaction, id: str, tenant: str | None = None) -> None:
    """`NotFound` when there is no such run, or it is another tenant's."""
    found = await tx.many(Looking.run_states, ids=[id])
    if not found or tenant not in (None, found[0].tenant):
        raise NotFound(f"there is no run {id} in this database.")


@reading
async def list_runs(  # noqa: PLR0913  filters
    tx: Transaction,
    *,
    tenant: str | None = None,
    session: str | None = None,
    agent: str | None = None,
    state: str | None = None,
    parent: str | None = None,
    before: tuple[int, str] = (LAST, AFTER_ALL),
    limit: int = 100,
) -> list[RunRow]:
    chosen = {"tenant": tenant, "session": session, "agent": agent, "state": state, "parent": parent}
    page = {"before_at": before[0], "before": before[1], "limit": limit}
    if state is None or state == "completed":  # most are: no index would help
        return await tx.many(Runs.list_runs, **chosen, **page)
    ended = state in ("failed", "cancelled")
    statement = Looking.ended_runs_in_state if ended else Looking.open_runs_in_state
    return await tx.many(statement, **chosen, **page)


@reading
async def tree_usage(tx: Transaction, root: str) -> UsageRow | None:
    return await tx.one(Runs.tree_usage, root=root)


@reading
async def usage_below(tx: Transaction, run: str) -> UsageBelow | None:
    """What a run and all that it started have used."""
    found = await tx.many(Looking.usage_below, ids=[run])
    return found[0] if found else None


@reading
async def session_usage(tx: Transaction, session: str) -> UsageRow | None:
    """What the session's runs have used, and what its compactions have."""
    runs = await tx.one(Runs.session_usage, session=session)
    more = await tx.one(Compactions.compaction_use, session=session)
    if runs is None or more is None:
        return runs
    return UsageRow(runs.runs, runs.turns, *(mine + further for mine, further in zip(runs[2:], more, strict=True)))


@reading
async def list_compactions(tx: Transaction, session: str, *, limit: int = 100) -> list[CompactionRow]:
    return await tx.many(Compactions.list_compactions, session=session, limit=limit)


@reading
async def list_turns(tx: Transaction, run: str, *, after: int = 0, limit: int = 1_000) -> list[Turn]:
    return [_turn(row) for row in await tx.many(Runs.list_turns, run=run, after=after, limit=limit)]


def _turn(row: TurnRow) -> Turn:
    usage = Usage(row.input_tokens, row.output_tokens, row.cache_write_tokens, row.cache_read_tokens, row.cost_nano, 1)
    return Turn(
        row.number,
        row.model,
        row.state,
        row.attempts,
        row.unknown,
        row.request_id,
        row.stop_reason,
        usage,
        encoding.decode(row.error),
        row.started_at,
        row.ended_at,
    )


@reading
async def list_calls(tx: Transaction, run: str, turn: int | None = None) -> list[CallRow]:
    return await tx.many(Calls.calls_of, run=run, turn=turn)


@reading
async def find_call(tx: Transaction, id: str) -> CallRow | None:
    return await tx.one(Calls.find_call, id=id)


@reading
async def stored_events(tx: Transaction, run: str, after: int = 0, limit: int = 1_000_000) -> list[EventRow]:
    return await tx.many(Events.events_after, cursors=[Cursor(run, after)], limit=limit)


@reading
async def topics_after(tx: Transaction, after: tuple[int, int, int], limit: int) -> list[TopicRow]:
    """`after`: the epoch, the transaction and the place of what was read last."""
    epoch, number, pos = after
    return await tx.many(Events.topics_after, epoch=epoch, tx=number, pos=pos, limit=limit)


@reading
async def list_messages(
    tx: Transaction,
    session: str,
    *,
    branch: str | None = "",
    run: str | None = None,
    after: int = 0,
    limit: int = 1_000,
    archived: bool = False,
) -> list[MessageView]:
    chosen = {"session": session, "branch": branch, "run": run, "archived": int(archived)}
    rows = await tx.many(Messages.list_messages, **chosen, after=after, limit=limit)
    blocks = await tx.many(Messages.blocks_of, messages=[row.id for row in rows]) if rows else []
    bodies: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for block in blocks:
        bodies[block.message].append(encoding.decode(block.body))
    return [_message(row, bodies[row.id]) for row in rows]


def _message(row: MessageRow, blocks: Sequence[dict[str, Any]]) -> MessageView:
    return MessageView(
        id=row.id,
        ordinal=row.ordinal,
        role=row.role,
        kind=row.kind,
        run_id=row.run,
        turn=row.turn,
        live=bool(row.live),
        preserved=bool(row.preserved),
        branch=row.branch,
        created_at=row.created_at,
        blocks=tuple(blocks),
    )


@reading
async def find_session(tx: Transaction, id: str, tenant: str | None = None) -> SessionRow:
    """By its id, or by the key that it has in its tenant."""
    row = await session_named(tx, id, tenant or "")
    if row is None or tenant not in (None, row.tenant):
        raise NotFound(f"there is no session {id} in this database.")
    return row


@reading
async def list_sessions(
    tx: Transaction,
    *,
    tenant: str | None = None,
    parent: str | None = None,
    metadata: str = "{}",
    before: tuple[int, str] = (LAST, AFTER_ALL),
    limit: int = 100,
) -> list[SessionRow]:
    return await tx.many(
        Sessions.list_sessions,
        tenant=tenant,
        parent=parent,
        metadata=metadata,
        before_at=before[0],
        before=before[1],
        limit=limit,
    )


@reading
async def count_sessions(
    tx: Transaction, *, tenant: str | None = None, parent: str | None = None, metadata: str = "{}"
) -> int:
    counted = await tx.one(Sessions.count_sessions, tenant=tenant, parent=parent, metadata=metadata)
    return counted.n if counted else 0


@reading
async def metadata_values(tx: Transaction, key: str, tenant: str | None = None) -> list[ValueCount]:
    return await tx.many(Sessions.metadata_values, key=key, tenant=tenant)


async def update_session(tx: Transaction, id: str, metadata: str | None, during: str | None = None) -> SessionRow:
    row = await tx.one(Sessions.update_session, id=id, metadata=metadata, during=during)
    if row is None:
        raise NotFound(f"there is no session {id} in this database.")
    return row


async def delete_session(tx: Transaction, id: str) -> None:
    """Remove a session and all that is in it, unless a run of it is alive: its messages with what only they hold, its
    runs with their calls and finished jobs, and the keys that named them."""
    found = await tx.one(Sessions.lock_session, id=id)
    if found is None:
        raise NotFound(f"there is no session {id} in this database.")
    if await tx.one(Sessions.delete_session, id=id) is None:
        raise UsageError(f"session {id} has a run under way: cancel it or wait for its end, then delete.")
    jobs = [row.seq for row in await tx.many(Sessions.jobs_of, id=id)]
    blobs = [row.hash for row in await tx.many(Sessions.lock_blobs, id=id)]
    await tx.run(Sessions.delete_blocks, id=id)
    if blobs:
        await tx.run(Sessions.delete_blobs, hashes=blobs)
    for statement in (
        Sessions.free_keys,
        Sessions.delete_messages,
        Sessions.delete_events,
        Sessions.delete_calls,
        Sessions.delete_turns,
        Sessions.delete_inquiries,
        Sessions.delete_steers,
        Sessions.delete_batched,
        Sessions.forget_batched,
        Sessions.delete_session_reservations,
        Sessions.delete_session_uses,
        Sessions.delete_session_budgets,
        Sessions.delete_runs,
        Compactions.delete_compactions,
    ):
        await tx.run(statement, id=id)
    if jobs:
        await retention.remove(tx, jobs)


@reading
async def find_agent(tx: Transaction, id: str) -> AgentRow | None:
    return await tx.one(Agents.find_agent, id=id)


@reading
async def find_named(tx: Transaction, name: AgentName) -> AgentRow | None:
    """The agent of exactly this name, tenant and metadata."""
    found = await tx.many(Agents.agents_named, name=name.name, tenant=name.tenant)
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
        Agents.list_agents,
        tenant=tenant,
        name=name,
        metadata=metadata,
        after_name=after[0],
        after=after[1],
        limit=limit,
    )


@reading
async def find_version(tx: Transaction, agent: str, version: int) -> VersionRow | None:
    return await tx.one(Agents.find_version, agent=agent, version=version)


@reading
async def list_versions(tx: Transaction, agent: str) -> list[VersionRow]:
    return await tx.many(Agents.list_versions, agent=agent)


@reading
async def current_definitions(tx: Transaction, names: Sequence[str]) -> list[VersionRow]:
    return await tx.many(Agents.current_definitions, names=names)


async def delete_agent(tx: Transaction, id: str) -> None:
    """Remove an agent that no run has used and no other agent calls."""
    if await tx.one(Agents.find_agent, id=id) is None:
        raise NotFound(f"there is no agent {id} in this database.")
    if callers := await tx.many(Agents.callers_of, id=id):
        raise UsageError(f"agent {id} is called by agent {callers[0].name!r}, whose versions are kept; it stays.")
    await tx.run(Agents.delete_versions, id=id)
    if await tx.one(Agents.delete_agent, id=id) is None:
        raise UsageError(f"agent {id} has runs, which keep the version they started with; it stays.")


@reading
async def servers_of(tx: Transaction, capability: str) -> list[str]:
    """Workers that are alive and say that they serve this."""
    workers = await registered.list_workers(tx, all=False, limit=10_000)
    return [
        worker.id
        for worker in workers
        if worker.status == "active"
        and worker.now - worker.heartbeat_at <= worker.ttl_us
        and capability in json.loads(worker.capabilities)
    ]


@reading
async def list_lanes(tx: Transaction) -> list[LaneRow]:
    return await tx.many(Providers.closed_lanes)


async def open_lane(tx: Transaction, name: str) -> None:
    await tx.run(Providers.open_lane, name=name)
