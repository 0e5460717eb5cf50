"""QUEUE.STATS and PEEK, METRICS."""

from __future__ import annotations

import json
import math
from typing import Any

from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.queues import queue_stats
from holdfast.kernel.workers import list_routes
from holdfast.resp import queued, workers
from holdfast.resp.arguments import QUEUE, integer, queue_of
from holdfast.resp.call import CallRefused, Command, CommandCall
from holdfast.resp.replies import Reply


async def stats(call: CommandCall) -> Reply:
    wanted = queue_of(call, QUEUE + call.arguments[0].removeprefix(QUEUE)) if call.arguments else None
    found = await call.gateway.transact(standing)
    if wanted is not None:
        return json.dumps(found.get(wanted, _empty(wanted)))
    assert call.client.principal is not None
    return json.dumps({name: each for name, each in found.items() if call.client.principal.may_use(name)})


def _empty(queue: str) -> dict[str, Any]:
    counts = dict.fromkeys(("pending_jobs", "scheduled_jobs", "running_jobs", "unroutable_jobs", "desired_workers"), 0)
    return {"queue": queue, **counts}


@reading
async def standing(tx: Transaction) -> dict[str, dict[str, Any]]:
    """Every queue: what waits, what runs, what nobody can do, and how many workers would be right."""
    routes = await list_routes(tx, since=0)
    lost = await workers.unroutable(tx, routes)
    slots = [row.slots for row in await workers.all_workers(tx) if workers.is_alive(row)]
    each = math.ceil(sum(slots) / len(slots)) if slots else 1
    found: dict[str, dict[str, Any]] = {}
    for row in await queue_stats(tx):
        name = row.queue.name
        unroutable = sum(lost.get(route.id, 0) for route in routes if route.queue == name)
        busy = row.pending + row.running
        counts = {"pending_jobs": row.pending, "scheduled_jobs": row.later, "running_jobs": row.running}
        desired = {"unroutable_jobs": unroutable, "desired_workers": math.ceil(busy / each)}
        found[name] = {"queue": name, **counts, **desired, "paused": row.queue.paused_at is not None}
    return found


async def peek(call: CommandCall) -> Reply:
    count = integer(call.arguments[1]) if len(call.arguments) > 1 else 10
    if not 1 <= count <= 100:
        raise CallRefused("PEEK shows 1 to 100 jobs")
    return await queued.peek(call, queue_of(call, QUEUE + call.arguments[0].removeprefix(QUEUE)), count)


async def metrics(call: CommandCall) -> Reply:
    assert call.client.principal is not None
    may_use, found = call.client.principal.may_use, await call.gateway.transact(standing)
    rows = await call.gateway.transact(workers.all_workers)
    alive = [row for row in rows if workers.is_alive(row)]
    return json.dumps(
        {
            "queues": {name: each for name, each in found.items() if may_use(name)},
            "workers": {"active": len(alive), "dead": len(rows) - len(alive), "slots": sum(row.slots for row in alive)},
            "server": {name.replace(" ", "_"): count for name, count in sorted(call.gateway.counts.items())},
        }
    )


COMMANDS = (
    Command("QUEUE.STATS", "[queue]", "Count what waits, runs, and what no worker can do.", stats),
    Command("QUEUE.PEEK", "queue [count]", "Show the jobs that come next.", peek),
    Command("METRICS", "", "Show queues, workers and counters of this server.", metrics),
)
