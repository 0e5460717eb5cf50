"""Pages of runs: each filter that has an index is read by it, and every other looks at a bounded number of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.agents.listing_rows import FailedRun
from holdfast.agents.looks import LOOK, FoundRows, Lead, LookPlace, count_rows, find_page
from holdfast.agents.queries import AFTER_ALL, LAST, list_agents
from holdfast.agents.rows import RunRow
from holdfast.agents.statements import RunListsSql
from holdfast.agents.states import RUN, RunState
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.ids import is_id

LEADS: Mapping[str, Lead[RunRow]] = {
    "all": Lead(RunListsSql.runs_all, RunListsSql.end_of_runs_all, RunListsSql.count_runs_all),
    "of_session": Lead(
        RunListsSql.runs_of_session, RunListsSql.end_of_runs_of_session, RunListsSql.count_runs_of_session
    ),
    "of_parent": Lead(RunListsSql.runs_of_parent, RunListsSql.end_of_runs_of_parent, RunListsSql.count_runs_of_parent),
    "of_agent": Lead(RunListsSql.runs_of_agent, RunListsSql.end_of_runs_of_agent, RunListsSql.count_runs_of_agent),
    "of_tenant": Lead(RunListsSql.runs_of_tenant, RunListsSql.end_of_runs_of_tenant, RunListsSql.count_runs_of_tenant),
    "open": Lead(RunListsSql.runs_open, RunListsSql.end_of_runs_open, RunListsSql.count_runs_open),
    "open_of_tenant": Lead(
        RunListsSql.runs_open_of_tenant,
        RunListsSql.end_of_runs_open_of_tenant,
        RunListsSql.count_runs_open_of_tenant,
    ),
    "unanswered": Lead(
        RunListsSql.runs_unanswered, RunListsSql.end_of_runs_unanswered, RunListsSql.count_runs_unanswered
    ),
    "unanswered_of_tenant": Lead(
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
    return await find_page(tx, LEADS[lead], given, _place, limit=limit, look=look)


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


def _place(row: RunRow) -> LookPlace:
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
