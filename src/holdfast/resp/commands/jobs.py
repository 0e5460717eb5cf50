"""JOB.UPDATE, STATUS, GET, LIST and RETRY, JOBS.LIST and SEARCH."""

from __future__ import annotations

import json
from typing import Any

from holdfast.kernel.ids import new_id
from holdfast.resp import jobs, plans
from holdfast.resp.arguments import json_object, page, space_of
from holdfast.resp.call import CallRefused, Command, CommandCall
from holdfast.resp.replies import OK, Reply, Simple
from holdfast.resp.statuses import STATUSES

_LOOKED = 1_000  # jobs that a search looks at


async def update(call: CommandCall) -> Reply:
    body = json_object(call, 1, "Invalid job update")
    return await report(call, call.text(0, "a job id"), body)


async def report(call: CommandCall, id: str, body: dict[str, Any]) -> Reply:
    """Take a report about a job. The connection says whose it is, and the lease whether it counts."""
    client, pops = call.client, call.gateway.pops
    who = jobs.Reporter(client.worker_id, client.epoch, space_of(call))
    sent = pops.delivered.find(who.worker, id)
    write = jobs.completion(sent.lease, who, body) if sent is not None else None
    if write is not None and await call.gateway.end(client, sent, write, merges=True):
        return OK
    running = await call.gateway.transact(jobs.update, who, id, body)
    if running is not None:  # its worker knows it
        pops.deliver([running], client)
    else:
        pops.freed(who.worker)
    return OK


async def status(call: CommandCall) -> Reply:
    found = await call.gateway.transact(jobs.describe, call.text(0, "a job id"), space_of(call))
    return None if found is None else json.dumps(found)


async def get(call: CommandCall) -> Reply:
    id = call.text(0, "a job id")
    found = await call.gateway.transact(jobs.describe_whole, id, space_of(call))
    if found is None:
        raise CallRefused(f"Job not found: {id[:80]}")
    return json.dumps(found)


async def listed(call: CommandCall) -> Reply:
    wanted = call.text(1, "a status") if len(call.arguments) > 1 else None
    if wanted is not None and wanted not in STATUSES:
        raise CallRefused(f"status is one of {', '.join(STATUSES)}")
    found = await call.gateway.transact(plans.find_action, space_of(call), call.text(0, "an action id"))
    if found is None:
        return []
    return [job.id for job in found[1] if wanted in (None, job.status)]


async def retry(call: CommandCall) -> Reply:
    id = call.text(0, "a job id")
    known = await call.gateway.transact(jobs.find, id, space_of(call))
    if known is None:
        raise CallRefused(f"Job not found: {id[:80]}")
    if known.status not in ("failed", "dead"):
        raise CallRefused("Job not in failed status")
    if known.planned is None:
        raise CallRefused(f"JOB.RETRY takes jobs of actions; for this one: holdfast jobs retry {known.job.id}")
    await call.gateway.transact(plans.retry_job, space_of(call), id, new_id(call.gateway.core.ports))
    return Simple("OK job re-queued")


async def all_listed(call: CommandCall) -> Reply:
    skipped, limit = page(call, 0)
    rows = await call.gateway.transact(plans.recent_jobs, space_of(call), skipped=skipped, limit=limit)
    return [row.id for row in rows]


async def search(call: CommandCall) -> Reply:
    """Jobs of actions with this status, and if given of this plan, among the newest."""
    wanted = call.text(0, "a status")
    if wanted not in STATUSES:
        raise CallRefused(f"status is one of {', '.join(STATUSES)}")
    plan = call.text(1, "a plan id") if len(call.arguments) > 1 else None
    rows = await call.gateway.transact(plans.recent_states, space_of(call), look=_LOOKED)
    found = [row for row in rows if plan in (None, row.plan) and wanted == row.status]
    return [row.id for row in found[:100]]


COMMANDS = (
    Command("JOB.UPDATE", "id json", "Report about a job that this connection's worker holds.", update, writes=True),
    Command("JOB.STATUS", "id", "Show how a job stands; nil if there is none.", status, rate=6_000),
    Command("JOB.GET", "id", "Show a job with its plan and input.", get, rate=6_000),
    Command("JOB.LIST", "action [status]", "List the jobs of an action.", listed),
    Command("JOB.RETRY", "id", "Enqueue a failed job again, under the same id.", retry, writes=True),
    Command("JOBS.LIST", "[offset limit]", "List jobs of actions, the newest first.", all_listed),
    Command("JOBS.SEARCH", "status [plan]", "Find jobs by status and plan, among the newest 1,000 of actions.", search),
)
