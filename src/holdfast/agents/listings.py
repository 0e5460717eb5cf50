"""Bounded looks: a list reads so many rows of an index for those that fit, and says where it stopped."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from holdfast.agents.listing_rows import CallPlace, FailedRun
from holdfast.agents.queries import AFTER_ALL, LAST, list_agents
from holdfast.agents.rows import CallRow, MessageRow, RowCount, RunRow, SessionRow, ValueCount
from holdfast.agents.statements import CallListsSql, CallsSql, MessagesSql, RunListsSql, SessionListsSql
from holdfast.agents.states import RUN, CallState, RunState
from holdfast.agents.values import Message, message_of
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.ids import is_id
from holdfast.kernel.sql import Many, One
from holdfast.values import Page, cursor

R = TypeVar("R", bound=tuple[Any, ...])
V = TypeVar("V")
LookPlace = tuple[int, str]

LOOK = 10_000


class IndexedFilter(NamedTuple, Generic[R]):
    """The statements of one filter that has an index: a page, where a look ends, and how many fit.

    Without an `end`, a page that is not full is the last.
    """

    page: Many[R]
    end: One[Any] | None
    total: One[RowCount]


class FoundRows(NamedTuple, Generic[R]):
    """A page. `place` is where the look ended, None when nothing is left behind it."""

    rows: list[R]
    place: LookPlace | None
    looked: int


async def find_page(
    tx: Transaction,
    lead: IndexedFilter[R],
    given: Mapping[str, Any],
    mark: Callable[[R], LookPlace],
    *,
    limit: int,
    look: int,
) -> FoundRows[R]:
    rows = await tx.many(lead.page, **given, look=look, limit=limit)
    if len(rows) >= limit:
        return FoundRows(rows, mark(rows[-1]), len(rows))
    end = None if lead.end is None else await tx.one(lead.end, **given, skipped=look - 1)
    return FoundRows(rows, None if end is None else (end[0], end[1]), len(rows) if end is None else look)


async def count_rows(tx: Transaction, lead: IndexedFilter[R], given: Mapping[str, Any], *, look: int) -> int:
    """How many there are, among those that one look sees."""
    counted = await tx.one(lead.total, **given, look=look)
    return 0 if counted is None else counted.n


def shown_page(found: FoundRows[R], value: Callable[[R], V]) -> Page[V]:
    """What a look has found, as callers see it."""
    further = None if found.place is None else cursor(*found.place)
    return Page(map(value, found.rows), next=further, looked=found.looked)


# Pages of runs: each filter that has an index is read by it, and every other looks at a bounded number of rows.


LEADS: Mapping[str, IndexedFilter[RunRow]] = {
    "all": IndexedFilter(RunListsSql.runs_all, RunListsSql.end_of_runs_all, RunListsSql.count_runs_all),
    "of_session": IndexedFilter(
        RunListsSql.runs_of_session, RunListsSql.end_of_runs_of_session, RunListsSql.count_runs_of_session
    ),
    "of_parent": IndexedFilter(
        RunListsSql.runs_of_parent, RunListsSql.end_of_runs_of_parent, RunListsSql.count_runs_of_parent
    ),
    "of_agent": IndexedFilter(
        RunListsSql.runs_of_agent, RunListsSql.end_of_runs_of_agent, RunListsSql.count_runs_of_agent
    ),
    "of_tenant": IndexedFilter(
        RunListsSql.runs_of_tenant, RunListsSql.end_of_runs_of_tenant, RunListsSql.count_runs_of_tenant
    ),
    "open": IndexedFilter(RunListsSql.runs_open, RunListsSql.end_of_runs_open, RunListsSql.count_runs_open),
    "open_of_tenant": IndexedFilter(
        RunListsSql.runs_open_of_tenant,
        RunListsSql.end_of_runs_open_of_tenant,
        RunListsSql.count_runs_open_of_tenant,
    ),
    "unanswered": IndexedFilter(
        RunListsSql.runs_unanswered, RunListsSql.end_of_runs_unanswered, RunListsSql.count_runs_unanswered
    ),
    "unanswered_of_tenant": IndexedFilter(
        RunListsSql.runs_unanswered_of_tenant,
        RunListsSql.end_of_runs_unanswered_of_tenant,
        RunListsSql.count_runs_unanswered_of_tenant,
    ),
}


class RunFilters(NamedTuple):
    """What a list of runs is asked for; None is any. Times are microseconds."""

    tenant: str | None = None
    session: str | None = None
    agent: str | None = None  # an id or a name
    state: str | None = None
    parent: str | None = None
    mode: str | None = None
    since: int = 0
    until: int = LAST


@reading
async def list_runs(
    tx: Transaction,
    *,
    session: str | None = None,
    parent: str | None = None,
    before: tuple[int, str] = (LAST, AFTER_ALL),
    limit: int = 100,
) -> list[RunRow]:
    """Runs of a session or below a run, or all of them, newest first."""
    filters = RunFilters(session=session, parent=parent)
    return (await run_page(tx, filters, before=before, limit=limit, look=max(limit, LOOK))).rows


@reading
async def run_page(
    tx: Transaction,
    filters: RunFilters,
    *,
    before: tuple[int, str] = (LAST, AFTER_ALL),
    limit: int = 100,
    look: int = LOOK,
) -> FoundRows[RunRow]:
    if filters.until <= before[0]:
        before = (filters.until, "")
    lead, filters = await _lead(tx, filters)
    given: dict[str, Any] = {**filters._asdict(), "before_at": before[0], "before": before[1]}
    del given["until"]
    return await find_page(tx, LEADS[lead], given, _run_place, limit=limit, look=look)


@reading
async def count_runs(tx: Transaction, filters: RunFilters, *, look: int = LOOK) -> int:
    """How many there are, among the newest that one look sees."""
    before = (LAST, AFTER_ALL) if filters.until == LAST else (filters.until, "")
    lead, filters = await _lead(tx, filters)
    given: dict[str, Any] = {**filters._asdict(), "before_at": before[0], "before": before[1]}
    del given["until"]
    return await count_rows(tx, LEADS[lead], given, look=look)


class FailedRuns(NamedTuple):
    """Failed runs of an agent, the newest first. `reach` is how far the look went back, None when it saw all."""

    rows: list[FailedRun]
    reach: int | None


@reading
async def list_failed(tx: Transaction, agent: str, tenant: str | None, *, limit: int, look: int = LOOK) -> FailedRuns:
    """Only what a group of failures shows of each."""
    place: dict[str, Any] = {"before_at": LAST, "before": AFTER_ALL, "since": 0}
    wanted = {"state": RunState.FAILED.value, "agent": agent, "limit": limit, "look": look}
    if tenant is None:
        rows = await tx.many(RunListsSql.failed_runs, **place, **wanted)
        end = await tx.one(RunListsSql.end_of_runs_unanswered, **place, skipped=look - 1)
    else:
        place["tenant"] = tenant
        rows = await tx.many(RunListsSql.failed_runs_of_tenant, **place, **wanted)
        end = await tx.one(RunListsSql.end_of_runs_unanswered_of_tenant, **place, skipped=look - 1)
    return FailedRuns(rows, rows[-1].at if len(rows) == limit else end and end.created_at)


def _run_place(row: RunRow) -> LookPlace:
    return row.created_at, row.id


async def _lead(tx: Transaction, filters: RunFilters) -> tuple[str, RunFilters]:
    """The filter that reads the fewest rows by an index, and the filters with the agent's id if it has just one."""
    for name in ("session", "parent"):
        if getattr(filters, name) is not None:
            return f"of_{name}", filters
    if filters.state is not None and filters.state != RunState.COMPLETED:
        lead = "unanswered" if filters.state in RUN.final else "open"
        return lead if filters.tenant is None else f"{lead}_of_tenant", filters
    if filters.agent is not None:
        ids = [filters.agent] if is_id(filters.agent) else await _ids_of(tx, filters)
        if len(ids) == 1:
            return "of_agent", filters._replace(agent=ids[0])
    return "all" if filters.tenant is None else "of_tenant", filters


async def _ids_of(tx: Transaction, filters: RunFilters) -> list[str]:
    """The agents of a name: two are as many as need to be known."""
    return [row.id for row in await list_agents(tx, name=filters.agent, limit=2)]


# Pages of tool calls, the last first: by an index each, and every other filter looks at a bounded number of rows.


_LISTED = IndexedFilter(CallListsSql.calls_listed, CallListsSql.end_of_calls_listed, CallListsSql.count_calls_listed)
_FAILED = IndexedFilter(CallListsSql.calls_failed, CallListsSql.end_of_calls_failed, CallListsSql.count_calls_failed)
_OPEN = (CallState.PENDING, CallState.RUNNING)


class CallFilters(NamedTuple):
    """What a list of calls is asked for; None is any. `name` is that of a tool."""

    name: str | None = None
    state: str | None = None
    tenant: str | None = None
    since: int = 0

    @property
    def lead(self) -> IndexedFilter[CallPlace]:
        """By which index calls that have ended are read."""
        return _FAILED if self.name is not None and self.state == CallState.FAILED else _LISTED


@reading
async def call_page(
    tx: Transaction,
    filters: CallFilters,
    *,
    before: LookPlace = (LAST, AFTER_ALL),
    limit: int = 100,
    look: int = LOOK,
) -> FoundRows[CallRow]:
    """Calls that have ended, or with a state of open ones those, which have their place by when they began."""
    given = _call_parameters(filters, before)
    if filters.state in _OPEN:
        found = await tx.many(CallListsSql.calls_open, **{**given, "state": None}, limit=limit, look=look)
        rows = [row for row in await _read(tx, found) if row.state == filters.state]
        return FoundRows(rows, _call_place(found[-1]) if len(found) == limit else None, len(found))
    page = await find_page(tx, filters.lead, given, _call_place, limit=limit, look=look)
    return FoundRows(await _read(tx, page.rows), page.place, page.looked)


@reading
async def count_calls(tx: Transaction, filters: CallFilters, *, look: int = LOOK) -> int:
    """How many there are, among the last that one look sees; of open calls, those of any state."""
    given = _call_parameters(filters, (LAST, AFTER_ALL))
    if filters.state not in _OPEN:
        return await count_rows(tx, filters.lead, given, look=look)
    counted = await tx.one(CallListsSql.count_calls_open, **{**given, "state": None}, look=look)
    return 0 if counted is None else counted.n


def _call_parameters(filters: CallFilters, before: LookPlace) -> dict[str, Any]:
    return {**filters._asdict(), "before_at": before[0], "before": before[1]}


def _call_place(found: CallPlace) -> LookPlace:
    return found.at, found.id


async def _read(tx: Transaction, found: list[CallPlace]) -> list[CallRow]:
    ids = [each.id for each in found]
    rows = {row.id: row for row in await tx.many(CallsSql.find_calls, ids=ids)} if ids else {}
    return [rows[id] for id in ids if id in rows]


# Pages of sessions: each filter that has an index is read by it, and every other looks at a bounded number of rows.


SESSION_LEADS: Mapping[str, IndexedFilter[SessionRow]] = {
    "all": IndexedFilter(
        SessionListsSql.sessions_all, SessionListsSql.end_of_sessions_all, SessionListsSql.count_sessions_all
    ),
    "of_tenant": IndexedFilter(
        SessionListsSql.sessions_of_tenant,
        SessionListsSql.end_of_sessions_of_tenant,
        SessionListsSql.count_sessions_of_tenant,
    ),
    "of_parent": IndexedFilter(
        SessionListsSql.sessions_of_parent,
        SessionListsSql.end_of_sessions_of_parent,
        SessionListsSql.count_sessions_of_parent,
    ),
}


class SessionFilters(NamedTuple):
    """What a list of sessions is asked for; None is any. `metadata` is JSON that theirs contain."""

    tenant: str | None = None
    parent: str | None = None
    metadata: str = "{}"

    @property
    def lead(self) -> IndexedFilter[SessionRow]:
        """The filter that reads the fewest rows by an index."""
        if self.parent is not None:
            return SESSION_LEADS["of_parent"]
        return SESSION_LEADS["all" if self.tenant is None else "of_tenant"]


@reading
async def session_page(
    tx: Transaction,
    filters: SessionFilters,
    *,
    before: LookPlace = (LAST, AFTER_ALL),
    limit: int = 100,
    look: int = LOOK,
) -> FoundRows[SessionRow]:
    given = _session_parameters(filters, before)
    return await find_page(tx, filters.lead, given, lambda row: (row.created_at, row.id), limit=limit, look=look)


@reading
async def list_sessions(tx: Transaction, *, tenant: str | None = None, limit: int = 100) -> list[SessionRow]:
    """The newest sessions, of everybody or of one tenant."""
    return (await session_page(tx, SessionFilters(tenant), limit=limit, look=max(limit, LOOK))).rows


@reading
async def count_sessions(tx: Transaction, filters: SessionFilters, look: int | None = None) -> int:
    """How many there are, among the newest that it looks at."""
    given = _session_parameters(filters, (LAST, AFTER_ALL))
    return await count_rows(tx, filters.lead, given, look=LAST if look is None else look)


@reading
async def metadata_values(
    tx: Transaction,
    key: str,
    tenant: str | None = None,
    *,
    after: LookPlace = (LAST, ""),
    limit: int = 1_000,
    look: int | None = None,
) -> list[ValueCount]:
    """The values under a key, among the newest sessions that it looks at."""
    page = {"before": after[0], "after": after[1], "limit": limit, "look": LAST if look is None else look}
    if tenant is None:
        return await tx.many(SessionListsSql.metadata_values, key=key, **page)
    return await tx.many(SessionListsSql.metadata_values_of, key=key, tenant=tenant, **page)


def _session_parameters(filters: SessionFilters, before: LookPlace) -> dict[str, Any]:
    return {**filters._asdict(), "before_at": before[0], "before": before[1]}


# Pages of messages: of a branch forwards or backwards, of which some are left out, and of a run.


_LAST = 2**62
_LOOK = 10_000


class MessagePage(NamedTuple):
    """In their order. `place` is the number of the message from which on to continue, None when there is no more."""

    messages: list[Message]
    place: int | None


@reading
async def message_page(
    tx: Transaction, session: str, *, branch: str = "", after: int = 0, limit: int = 1_000, archived: bool = False
) -> MessagePage:
    """Messages of a branch from a place on. It looks at 10,000, of which a compaction may have taken out most."""
    look = max(limit, _LOOK)
    where = {"session": session, "branch": branch, "after": after}
    rows = await tx.many(MessagesSql.list_messages, **where, archived=int(archived), look=look, limit=limit)
    if len(rows) == limit:
        return MessagePage(await with_blocks(tx, rows), rows[-1].ordinal)
    end = await tx.one(MessagesSql.end_of_messages, **where, skipped=look - 1)
    return MessagePage(await with_blocks(tx, rows), None if end is None else end.number)


@reading
async def latest_messages(
    tx: Transaction, session: str, *, before: int = _LAST, limit: int = 100, archived: bool = False
) -> MessagePage:
    """The last messages of a conversation before a place."""
    look = max(limit, _LOOK)
    where = {"session": session, "branch": "", "before": before}
    rows = await tx.many(MessagesSql.latest_messages, **where, archived=int(archived), look=look, limit=limit)
    if len(rows) == limit:
        return MessagePage(await with_blocks(tx, rows[::-1]), rows[-1].ordinal)
    end = await tx.one(MessagesSql.begin_of_messages, **where, skipped=look - 1)
    return MessagePage(await with_blocks(tx, rows[::-1]), None if end is None else end.number)


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
) -> list[Message]:
    """Messages of a run, of a branch, or without either of a whole session, for who copies it."""
    page: dict[str, Any] = {"session": session, "after": after, "archived": int(archived), "limit": limit}
    if run is not None:
        rows = await tx.many(MessagesSql.messages_of_run, run=run, **page)
    elif branch is not None:
        rows = await tx.many(MessagesSql.list_messages, branch=branch, look=_LAST, **page)
    else:
        rows = await tx.many(MessagesSql.messages_of_session, **page)
    return await with_blocks(tx, rows)


async def with_blocks(
    tx: Transaction, rows: Sequence[MessageRow], *, longest: int | None = None, cut: str = ""
) -> list[Message]:
    """The messages with what was said in them; `cut` stands for each part that is longer than `longest` characters."""
    ids = [row.id for row in rows]
    if not rows:
        return []
    if longest is None:
        blocks = await tx.many(MessagesSql.blocks_of, messages=ids)
    else:
        note = json.dumps({"type": "text", "text": cut})
        blocks = await tx.many(MessagesSql.short_blocks_of, messages=ids, most=longest, cut=note)
    bodies: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for block in blocks:
        bodies[block.message].append(codec.decode(block.body))
    return [message_of(row, bodies[row.id]) for row in rows]
