"""WORKER.REGISTER, HEARTBEAT, UNREGISTER and VERIFY, WORKERS.LIST, CAPABILITY.SEARCH."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from holdfast.kernel.broker_rows import WorkerRow
from holdfast.kernel.ids import new_id
from holdfast.resp import plans, workers
from holdfast.resp.call import QUEUE, CallRefused, Command, CommandCall, json_object, queue_of, space_of, tags_of
from holdfast.resp.client import WORKER_ID
from holdfast.resp.frames import OK, Reply, Simple
from holdfast.resp.plan import BadPlan, read_plan
from holdfast.resp.pops import Identity
from holdfast.resp.records import Epoch
from holdfast.resp.views import tools_of
from holdfast.resp.workers import WorkerDescription

_MOST_TOOLS, _MOST_SLOTS = 1_000, 1_000
_INVALID = "Invalid worker registration"


async def register(call: CommandCall) -> Reply:
    who = read_worker(json_object(call, 0, _INVALID))
    release = False
    if len(call.arguments) > 1:
        if call.arguments[1].upper() != b"RELEASE":
            raise CallRefused("syntax error")
        release = True
    await begin_epoch(call, who, partial(workers.register, release=release))
    return Simple(
        f"OK worker_id={who.id} heartbeat_interval={max(1, int(call.gateway.options.heartbeat.total_seconds()))}"
    )


Begin = Callable[..., Awaitable[int]]


async def begin_epoch(call: CommandCall, who: WorkerDescription, begin: Begin) -> None:
    """Register the worker for this connection, if its key may. `begin` says what becomes of what the worker held."""
    principal, client = call.client.principal, call.client
    assert principal is not None
    if not principal.may_register(who.id):
        taken = await call.gateway.transact(workers.find_worker, who.id, principal.tenant)
        if taken is not None and workers.is_alive(taken):
            raise CallRefused("Worker ID already registered")
        raise CallRefused(
            f"{_INVALID}: this key may register {', '.join(principal.workers) or 'nothing: AUTH <id> <key>'}"
        )
    ttl_us, incarnation = call.gateway.dead_after_us, new_id(call.gateway.core.ports)
    number = await call.gateway.transact(begin, who, principal, incarnation, ttl_us=ttl_us)
    client.worker, client.epoch, client.published = who.id, Epoch(number, incarnation), False
    call.gateway.pops.introduce(who.id, Identity(client.epoch, frozenset(who.capabilities)))


def read_worker(body: dict[str, Any]) -> WorkerDescription:
    """A registration, checked; `Refused` says what is wrong with it."""
    id = body.get("worker_id")
    if not isinstance(id, str) or not WORKER_ID.fullmatch(id):
        raise CallRefused(f"{_INVALID}: worker_id has 1 to 64 letters, digits, hyphens and underscores")
    for name in ("hostname", "agw_version"):
        if not isinstance(body.get(name), str) or not 1 <= len(body[name]) <= 255:
            raise CallRefused(f"{_INVALID}: {name} is required")
    slots = body.get("max_concurrent_jobs", 1)
    if not isinstance(slots, int) or isinstance(slots, bool) or not 1 <= slots <= _MOST_SLOTS:
        raise CallRefused(f"{_INVALID}: max_concurrent_jobs is a whole number of 1 to {_MOST_SLOTS}")
    tags = tags_of(body.get("tags", {}), _INVALID)
    tools, units = _capabilities(body.get("capabilities"))
    return WorkerDescription(id, body["hostname"], body["agw_version"], tools, units, slots, tags, body)


def _capabilities(value: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tools and units: an object with lists, or a plain list of tools."""
    given = {"tools": value} if isinstance(value, list) else value
    if not isinstance(given, dict) or "tools" not in given:
        raise CallRefused("Invalid capabilities format")
    tools, units = _names(given["tools"]), _names(given.get("agentic_units", []))
    return tools, units


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > _MOST_TOOLS:
        raise CallRefused("Invalid capabilities format")
    for each in value:
        if not isinstance(each, str) or not 1 <= len(each) <= 256 or not each.isprintable() or "/" in each:
            raise CallRefused("Invalid capabilities format")
    return tuple(dict.fromkeys(value))


async def heartbeat(call: CommandCall) -> Reply:
    id = call.text(0, "a worker id")
    stats = json_object(call, 1, "Invalid stats") if len(call.arguments) > 1 else None
    if id != call.client.worker_id:
        raise CallRefused(f"Worker not registered: {id[:64]}")
    await beat(call, id, stats)
    return OK


async def beat(call: CommandCall, id: str, stats: dict[str, Any] | None = None) -> None:
    """Keep the connection's worker alive, and what went out to it."""
    pops, ttl_us = call.gateway.pops, call.gateway.dead_after_us
    held = pops.delivered.of([id])
    beats = await call.gateway.transact(
        workers.heartbeat, id, call.client.epoch, ttl_us=ttl_us, stats=stats, delivered=held
    )
    pops.note_heartbeat(held, beats)


async def unregister(call: CommandCall) -> Reply:
    id = call.text(0, "a worker id")
    if len(call.arguments) > 1 and call.arguments[1].upper() != b"FORCE":
        raise CallRefused("syntax error")
    if id != call.client.worker_id:
        raise CallRefused("Worker not registered")
    await call.gateway.transact(workers.leave, id, call.client.epoch, force=len(call.arguments) > 1)
    call.client.forget_worker()
    return OK


async def verify(call: CommandCall) -> Reply:
    """Let a worker show that it has what it says: a job that only this worker can take runs the command."""
    id, body = call.text(0, "a worker id"), json_object(call, 1, "Invalid challenge")
    queue_of(call, QUEUE + plans.QUEUE.encode())
    row = await call.gateway.transact(workers.find_worker, id, space_of(call))
    if row is None or not workers.is_alive(row):
        raise CallRefused(f"Worker not registered: {id[:64]}")
    job = new_id(call.gateway.core.ports)
    task = {"task_number": 1, "command": body.get("command"), "args": body.get("args", []), "timeout_secs": 60}
    try:
        plan = read_plan({"plan_id": f"verify-{job}"[:64], "tasks": [task]})
    except BadPlan as problem:
        raise CallRefused(f"Invalid challenge: {problem}") from None
    tenant = space_of(call)
    await call.gateway.transact(plans.submit_verification, tenant, plan, job, f"worker:{id}")
    return Simple(f"OK job_id={plans.public_id(job)}")


async def listed(call: CommandCall) -> Reply:
    if call.arguments and call.arguments[0].upper() != b"ALL":
        raise CallRefused("syntax error")
    rows = await call.gateway.transact(workers.all_workers, space_of(call))
    rows.sort(key=lambda row: -row.heartbeat_at)
    return [json.dumps(shown(row)) for row in rows if workers.is_alive(row) or call.arguments]


def shown(row: WorkerRow) -> dict[str, Any]:
    metadata = json.loads(row.metadata or "{}")
    said = metadata.get("registration", {})
    return {
        "worker_id": row.id,
        "status": "active" if workers.is_alive(row) else "dead",
        "last_seen": row.heartbeat_at // 1_000_000,
        "tools": tools_of(row),
        "active_jobs": row.leases,
        "max_concurrent_jobs": row.slots,
        "hostname": row.hostname,
        "tags": said.get("tags", {}),
        **({"flagged": metadata["flagged"]} if metadata.get("flagged") else {}),
    }


async def search(call: CommandCall) -> Reply:
    """Workers whose tools or cards have every one of these words, by how often they have them."""
    words = call.text(0, "the words").lower().split()
    found: list[tuple[int, dict[str, Any]]] = []
    for row in await call.gateway.transact(workers.all_workers, space_of(call)):
        said = json.loads(row.metadata or "{}").get("registration", {})
        text = json.dumps([said.get("capabilities"), said.get("descriptions")]).lower()
        if words and workers.is_alive(row) and all(word in text for word in words):
            found.append((sum(text.count(word) for word in words), shown(row)))
    found.sort(key=lambda pair: (-pair[0], pair[1]["worker_id"]))
    return [json.dumps(each) for _, each in found[:100]]


COMMANDS = (
    Command(
        "WORKER.REGISTER",
        "json [RELEASE]",
        "Begin to work; what the worker held passes on, or goes back.",
        register,
        writes=True,
    ),
    Command("WORKER.HEARTBEAT", "id [json]", "Stay alive, keep the leases, and report.", heartbeat, writes=True),
    Command("WORKER.UNREGISTER", "id [FORCE]", "Leave; FORCE hands active jobs back.", unregister, writes=True),
    Command("WORKER.VERIFY", "id json", "Enqueue a job for one worker that runs a command.", verify, writes=True),
    Command("WORKERS.LIST", "[ALL]", "List live workers; ALL: dead ones too.", listed),
    Command("CAPABILITY.SEARCH", "words", "Find workers by their tools and cards.", search),
)
