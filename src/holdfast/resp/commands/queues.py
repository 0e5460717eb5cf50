"""QUEUE.STATS and PEEK, METRICS."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from typing import Any

from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.queues import CAP, list_queues
from holdfast.kernel.workers import list_routes
from holdfast.resp import queued, workers
from holdfast.resp.arguments import QUEUE, integer, queue_of, space_of
from holdfast.resp.call import CallRefused, Command, CommandCall
from holdfast.resp.replies import Reply
from holdfast.resp.statements import HoldersSql


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


COMMANDS = (
    Command(
        "QUEUE.STATS", "[queue]", "Count what waits, runs, and what no worker can do, of the tenant's jobs.", stats
    ),
    Command("QUEUE.PEEK", "queue [count]", "Show the jobs that come next.", peek),
    Command("METRICS", "", "Show queues, workers and counters of this server.", metrics),
)
