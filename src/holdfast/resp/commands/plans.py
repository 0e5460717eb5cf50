"""PLAN.SUBMIT, GET, LIST and DELETE. A plan that was acknowledged is stored, and stays as it is."""

from __future__ import annotations

import json

from holdfast.resp import plans
from holdfast.resp.arguments import json_object, page, space_of
from holdfast.resp.call import CallRefused, Command, CommandCall
from holdfast.resp.plan import BadPlan, read_plan
from holdfast.resp.replies import Reply, Simple
from holdfast.resp.times import shown_time


async def submit(call: CommandCall) -> Reply:
    body = json_object(call, 0, "Invalid plan schema")
    try:
        plan = read_plan(body)
    except BadPlan as problem:
        raise CallRefused(f"Invalid plan schema: {problem}") from None
    await call.gateway.transact(plans.submit_plan, space_of(call), plan)
    if "job_id" in body:  # the envelope that the published agx sends; it takes the whole reply for an id
        return plan.id
    return Simple(f"OK plan_id={plan.id}")


async def get(call: CommandCall) -> Reply:
    found = await call.gateway.transact(plans.find_plan, space_of(call), call.text(0, "a plan id"))
    if found is None:
        return None
    row, use = found
    metadata = {
        "created_at": shown_time(row.created_at),
        "total_actions": use.actions,
        "total_jobs": use.jobs,
        "last_used": shown_time(use.last_used_at),
    }
    return json.dumps({**plans.stored_plan(row), "metadata": metadata})


async def listed(call: CommandCall) -> Reply:
    skipped, limit = page(call, 0)
    rows = await call.gateway.transact(plans.list_plans, space_of(call), skipped=skipped, limit=limit)
    shown = []
    for row in rows:
        body = plans.stored_plan(row)
        text, tasks = body["plan_description"], len(body["tasks"])
        described = {"plan_id": row.id, "plan_description": text, "description": text, "tasks": tasks}
        shown.append(json.dumps({**described, "task_count": tasks, "created_at": shown_time(row.created_at)}))
    return shown


async def delete(call: CommandCall) -> Reply:
    return int(await call.gateway.transact(plans.delete_plan, space_of(call), call.text(0, "a plan id")))


COMMANDS = (
    Command("PLAN.SUBMIT", "json", "Store a plan.", submit, writes=True, rate=1_000),
    Command("PLAN.GET", "id", "Read a plan, and how much it is used.", get),
    Command("PLAN.LIST", "[offset limit]", "List plans, the newest first.", listed),
    Command("PLAN.DELETE", "id", "Remove a plan without active jobs.", delete, writes=True),
)
