"""JOB.UPDATE, STATUS, GET, LIST and RETRY, JOBS.LIST and SEARCH."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from typing import Any

from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.ids import new_id
from holdfast.kernel.queues import CAP, list_queues
from holdfast.kernel.workers import list_routes
from holdfast.resp import jobs, plans, queued, workers
from holdfast.resp.call import QUEUE, CallRefused, Command, CommandCall, integer, json_object, page, queue_of, space_of
from holdfast.resp.frames import OK, Reply, Simple
from holdfast.resp.records import STATUSES, HoldersSql

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


# QUEUE.STATS and PEEK, METRICS.


async def stats(call: CommandCall) -> Reply:
    wanted = queue_of(call, QUEUE + call.arguments[0].removeprefix(QUEUE)) if call.arguments else None
    found = await call.gateway.transact(standing, space_of(call))
    if wanted is not None:
        return json.dumps(found.get(wanted, _empty(wanted)))
    assert call.client.principal is not None
    return json.dumps({name: each for name, each in found.items() if call.client.principal.may_use(name)})


def _empty(queue: str) -> dict[str, Any]:
    counts = dict.fromkeys(("pending_jobs", "scheduled_jobs", "running_jobs", "unroutable_jobs", "desired_workers"), 0)
    return {"queue": queue, **counts}


@reading
async def standing(tx: Transaction, tenant: str) -> dict[str, dict[str, Any]]:
    """The queues in which a tenant has jobs: what waits, what runs, what nobody can do, and how many workers would be
    right. Each count stops at `CAP` for each set of capabilities."""
    unserved = await workers.unserved(tx, await list_routes(tx, since=0), tenant)
    slots = [row.slots for row in await workers.all_workers(tx, tenant) if workers.is_alive(row)]
    each = math.ceil(sum(slots) / len(slots)) if slots else 1
    paused = {row.name for row in await list_queues(tx) if row.paused_at is not None}
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in await tx.many(HoldersSql.pending_of, tenant=tenant, cap=CAP):
        counts[row.queue]["pending_jobs"] += row.jobs
        counts[row.queue]["unroutable_jobs"] += row.jobs if row.route in unserved else 0
    for row in await tx.many(HoldersSql.later_of, tenant=tenant, cap=CAP):
        counts[row.queue]["scheduled_jobs"] += row.jobs
    for running in await tx.many(HoldersSql.running_of, tenant=tenant):
        counts[running.queue]["running_jobs"] += running.jobs
    found: dict[str, dict[str, Any]] = {}
    for name, counted in sorted(counts.items()):
        counted["desired_workers"] = math.ceil((counted["pending_jobs"] + counted["running_jobs"]) / each)
        if counted.total():
            found[name] = {**_empty(name), **counted, "paused": name in paused}
    return found


async def peek(call: CommandCall) -> Reply:
    count = integer(call.arguments[1]) if len(call.arguments) > 1 else 10
    if not 1 <= count <= 100:
        raise CallRefused("PEEK shows 1 to 100 jobs")
    return await queued.peek(call, queue_of(call, QUEUE + call.arguments[0].removeprefix(QUEUE)), count)


async def metrics(call: CommandCall) -> Reply:
    assert call.client.principal is not None
    may_use, found = call.client.principal.may_use, await call.gateway.transact(standing, space_of(call))
    rows = await call.gateway.transact(workers.all_workers, space_of(call))
    alive = [row for row in rows if workers.is_alive(row)]
    return json.dumps(
        {
            "queues": {name: each for name, each in found.items() if may_use(name)},
            "workers": {"active": len(alive), "dead": len(rows) - len(alive), "slots": sum(row.slots for row in alive)},
            "server": {name.replace(" ", "_"): count for name, count in sorted(call.gateway.counts.items())},
        }
    )


QUEUE_COMMANDS = (
    Command(
        "QUEUE.STATS", "[queue]", "Count what waits, runs, and what no worker can do, of the tenant's jobs.", stats
    ),
    Command("QUEUE.PEEK", "queue [count]", "Show the jobs that come next.", peek),
    Command("METRICS", "", "Show queues, workers and counters of this server.", metrics),
)
