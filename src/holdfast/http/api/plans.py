"""Plans of Unix tools and actions over HTTP: what the Redis-protocol gateway has, in pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from pydantic import Field
from starlette.responses import Response

from holdfast.app import core_of
from holdfast.errors import NotFound
from holdfast.http.api.routes import Paged, Paging, Routes
from holdfast.http.api.runs import Body
from holdfast.http.api.seen import PrincipalScope, RequestScope
from holdfast.kernel.database import Database
from holdfast.kernel.ids import new_id
from holdfast.resp import jobs as plan_jobs
from holdfast.resp import plans as stored
from holdfast.resp.plan import PLAN_ID, read_plan
from holdfast.resp.plans import MAX_ATTEMPTS, MOST_INPUTS, NewAction
from holdfast.resp.records import ActionRow, PlanRow
from holdfast.values import Page, cursor, moment, place

plans = Routes("plans")
actions = Routes("actions")

_MOST_ACTIONS = 100  # on a page: the jobs of each are counted
_Id = Annotated[str, Field(pattern=f"^{PLAN_ID.pattern}$")]


class NewActionBody(Body):
    """A plan applied to inputs, a job for each: all of them or none."""

    plan: _Id
    inputs: Annotated[list[Any], Field(min_length=1, max_length=MOST_INPUTS)]
    id: _Id | None = None
    queue: Annotated[str, Field(min_length=1, max_length=200)] = stored.QUEUE
    tags: dict[str, Any] = Field(default_factory=dict)
    priority: Annotated[int, Field(ge=0, le=1_000)] = 100
    timeout_secs: Annotated[int, Field(ge=1, le=86_400)] = 3_600
    max_attempts: Annotated[int, Field(ge=1, le=100)] = MAX_ATTEMPTS


async def _database(seen: PrincipalScope) -> Database:
    return await core_of(seen.hf).opened()


async def _paged(
    paging: Paging, most: int, read: Callable[[int, int], Awaitable[list[Any]]], shown: Callable[[Any], dict[str, Any]]
) -> Page[dict[str, Any]]:
    (skipped,) = (0,) if paging.after is None else place(paging.after, int)
    limit = min(paging.limit, most)
    rows = await read(max(0, skipped), limit + 1)
    further = cursor(max(0, skipped) + limit) if len(rows) > limit else None
    return Page([shown(row) for row in rows[:limit]], next=further)


@plans.get("/plans")
async def list_plans(seen: RequestScope, page: Paged, tenant: str | None = None) -> Page[dict[str, Any]]:
    """List plans, newest first."""
    database, whose = await _database(seen), seen.chosen(tenant) or ""

    async def read(skipped: int, limit: int) -> list[PlanRow]:
        return await database.transact(stored.list_plans, whose, skipped=skipped, limit=limit)

    return await _paged(page, page.limit, read, _plan)


def _plan(row: PlanRow) -> dict[str, Any]:
    return {**stored.stored_plan(row), "created_at": moment(row.created_at)}


@plans.post("/plans", creates=True)
async def submit_plan(seen: RequestScope, plan: dict[str, Any]) -> dict[str, Any]:
    """Store a plan: `plan_id`, `plan_description` and `tasks`. A plan never changes; another one of its id is 409."""
    read = read_plan(plan)
    await (await _database(seen)).transact(stored.submit_plan, seen.tenant or "", read)
    return await show_plan(seen, read.id)


@plans.get("/plans/{id}")
async def show_plan(seen: RequestScope, id: str, tenant: str | None = None) -> dict[str, Any]:
    """Show a plan, and how much it is used."""
    found = await (await _database(seen)).transact(stored.find_plan, seen.chosen(tenant) or "", id)
    if found is None:
        raise _no_plan(id)
    row, use = found
    return {**_plan(row), "actions": use.actions, "jobs": use.jobs, "active_jobs": use.active}


@plans.delete("/plans/{id}")
async def delete_plan(seen: RequestScope, id: str, tenant: str | None = None) -> Response:
    """Remove a plan. Refused while one of its jobs has not ended."""
    if not await (await _database(seen)).transact(stored.delete_plan, seen.chosen(tenant) or "", id):
        raise _no_plan(id)
    return Response(status_code=204)


def _no_plan(id: str) -> NotFound:
    return NotFound(f"there is no plan {id[:80]} in this database.")


@actions.get("/actions")
async def list_actions(seen: RequestScope, page: Paged, tenant: str | None = None) -> Page[dict[str, Any]]:
    """List actions, newest first, with how many of their jobs are in each status; at most 100 on a page."""
    database, whose = await _database(seen), seen.chosen(tenant) or ""

    async def read(skipped: int, limit: int) -> list[tuple[ActionRow, Counter[str]]]:
        return await database.transact(stored.list_actions, whose, skipped=skipped, limit=limit)

    return await _paged(page, _MOST_ACTIONS, read, lambda pair: _action(*pair))


def _action(row: ActionRow, counts: Counter[str]) -> dict[str, Any]:
    return {
        "id": row.id,
        "plan": row.plan,
        "status": stored.action_status(counts),
        "jobs": row.inputs,
        "counts": dict(sorted(counts.items())),
        "created_at": moment(row.created_at),
    }


@actions.post("/actions", creates=True)
async def submit_action(seen: RequestScope, new: NewActionBody) -> dict[str, Any]:
    """Apply a plan to inputs: a job for each, all of them or none."""
    ports, whose = core_of(seen.hf).ports, seen.tenant or ""
    action = NewAction(
        id=new.id or f"action-{new_id(ports)}",
        plan=new.plan,
        inputs=new.inputs,
        jobs=[new_id(ports) for _ in new.inputs],
        queue=new.queue,
        tags=stored.tag_capabilities(new.tags),
        priority=new.priority,
        timeout_us=new.timeout_secs * 1_000_000,
        max_attempts=new.max_attempts,
    )
    await (await _database(seen)).transact(stored.submit_action, whose, action)
    return await show_action(seen, action.id)


@actions.get("/actions/{id}", whole="/jobs/{id}")
async def show_action(seen: RequestScope, id: str, tenant: str | None = None) -> dict[str, Any]:
    """Show an action with its jobs, and what each wrote."""
    database, whose = await _database(seen), seen.chosen(tenant) or ""
    found = await database.transact(stored.find_action, whose, id)
    if found is None:
        raise NotFound(f"there is no action {id[:80]} in this database.")
    row, jobs = found
    described = [each for job in jobs if (each := await database.transact(plan_jobs.describe, job.id, whose))]
    return {**_action(row, stored.counted(jobs)), "results": described}
