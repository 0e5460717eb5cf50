"""PLAN.SUBMIT, GET, LIST and DELETE. A plan that was acknowledged is stored, and stays as it is."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from holdfast.kernel.ids import new_id
from holdfast.resp import plans
from holdfast.resp.call import CallRefused, Command, CommandCall, json_object, page, queue_of, space_of, tags_of
from holdfast.resp.frames import Reply, Simple
from holdfast.resp.plan import PLAN_ID, BadPlan, read_plan
from holdfast.resp.plans import MOST_INPUTS, NewAction
from holdfast.resp.records import STATUSES, ActionRow, shown_time


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


# ACTION.SUBMIT, STATUS, GET and LIST: a plan applied to many inputs, all of them or none.


_OF_AGX = re.compile(r"action_[0-9a-f]{32}")  # how the published agx names its actions: it reads JSON
_FIELDS = {"action_id", "plan_id", "inputs", "queue", "tags", "priority", "timeout_secs", "max_attempts"}


async def submit_action(call: CommandCall) -> Reply:
    body = json_object(call, 0, "Invalid action")
    if unknown := sorted(set(body) - _FIELDS):
        raise CallRefused(f"Invalid action: unknown field {unknown[0][:40]!r}")
    for name in ("action_id", "plan_id"):
        if not isinstance(body.get(name), str) or not PLAN_ID.fullmatch(body[name]):
            raise CallRefused(f"Invalid action: {name} has 1 to 64 letters, digits, dots, hyphens and underscores")
    inputs = body.get("inputs")
    if not isinstance(inputs, list) or not 1 <= len(inputs) <= MOST_INPUTS:
        raise CallRefused(f"inputs array must have 1 to {MOST_INPUTS} items")
    new = NewAction(
        id=body["action_id"],
        plan=body["plan_id"],
        inputs=inputs,
        jobs=[new_id(call.gateway.core.ports) for _ in inputs],
        queue=queue_of(call, f"queue:{body.get('queue', plans.QUEUE)}".encode()),
        tags=tags_of(body.get("tags", {}), "Invalid action"),
        priority=_whole(body, "priority", 100, 0, 1_000),
        timeout_us=_whole(body, "timeout_secs", 3_600, 1, 86_400) * 1_000_000,
        max_attempts=_whole(body, "max_attempts", plans.MAX_ATTEMPTS, 1, 100),
    )
    row = await call.gateway.transact(plans.submit_action, space_of(call), new)
    if _OF_AGX.fullmatch(row.id):
        made = [plans.public_id(job) for job in new.jobs]
        named = {"action_id": row.id, "plan_id": row.plan}
        return json.dumps({**named, "jobs_created": row.inputs, "job_ids": made})
    return Simple(f"OK action_id={row.id} jobs_created={row.inputs}")


def _whole(body: dict[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = body.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise CallRefused(f"Invalid action: {name} is a whole number of {least} to {most}")
    return value


async def status(call: CommandCall) -> Reply:
    found = await call.gateway.transact(plans.find_action, space_of(call), call.text(0, "an action id"))
    if found is None:
        return None
    row, jobs = found
    return json.dumps(_shown(row, plans.counted(jobs)))


async def get_action(call: CommandCall) -> Reply:
    skipped, limit = page(call, 1)
    found = await call.gateway.transact(plans.find_action, space_of(call), call.text(0, "an action id"))
    if found is None:
        return None
    row, jobs = found
    listed = [
        {
            "job_id": job.id,
            "input_index": job.place,
            "status": job.status,
        }
        for job in jobs[skipped : skipped + limit]
    ]
    return json.dumps({**_shown(row, plans.counted(jobs)), "jobs": listed})


async def list_actions(call: CommandCall) -> Reply:
    arguments = call.arguments
    wanted = arguments[0].decode(errors="replace") if arguments and not arguments[0].isdigit() else None
    if wanted is not None and wanted not in STATUSES:
        raise CallRefused(f"status is one of {', '.join(STATUSES)}")
    skipped, limit = page(call, 1 if wanted else 0)
    tenant = space_of(call)
    rows = await call.gateway.transact(plans.list_actions, tenant, skipped=skipped, limit=limit, status=wanted)
    return [json.dumps(_shown(row, counts)) for row, counts in rows]


def _shown(row: ActionRow, counts: Counter[str]) -> dict[str, Any]:
    named = {"action_id": row.id, "plan_id": row.plan, "created_at": shown_time(row.created_at)}
    totals = {f"{each}_jobs": counts[each] for each in STATUSES}
    return {**named, "status": plans.action_status(counts), "total_jobs": row.inputs, **totals}


ACTION_COMMANDS = (
    Command("ACTION.SUBMIT", "json", "Enqueue a job for each input of a plan.", submit_action, writes=True, rate=100),
    Command("ACTION.STATUS", "id", "Count the jobs of an action by status.", status),
    Command("ACTION.GET", "id [offset limit]", "List the jobs of an action.", get_action),
    Command("ACTION.LIST", "[status] [offset limit]", "List actions, the newest first.", list_actions),
)
