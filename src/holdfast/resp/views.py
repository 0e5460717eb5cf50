"""Live views: the documented keys of workers and jobs, read from the kernel's own tables at that moment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta

from holdfast.kernel.broker_rows import WorkerRow
from holdfast.kernel.queries import now as store_time
from holdfast.kernel.states import State
from holdfast.resp import jobs, plans, queued, workers
from holdfast.resp.call import QUEUE, VIEWS, CommandCall, space_of
from holdfast.resp.frames import Members, Pairs, Reply
from holdfast.resp.keyspace import WrongKind
from holdfast.resp.options import STATS_KEPT

_MICROSECOND = timedelta(microseconds=1)
_NEWEST = 1_000  # jobs of actions, and plans, that are listed as keys


@dataclass(frozen=True, slots=True)
class KeyView:
    """A value as it is now. `value` is None if there is none; text is a string, a dict a hash, a set a set,
    and an empty tuple a list, whose elements LRANGE shows."""

    value: str | dict[str, str] | frozenset[str] | tuple[()] | None = None
    expires_us: int = -1  # microseconds from now; -1: it does not

    @property
    def kind(self) -> str | None:
        match self.value:
            case None:
                return None
            case str():
                return "string"
            case dict():
                return "hash"
            case tuple():
                return "list"
            case _:
                return "set"

    @property
    def left_us(self) -> int:
        return -2 if self.value is None else self.expires_us

    def as_string(self) -> Reply:
        if self.value is None or isinstance(self.value, str):
            return self.value
        raise WrongKind("Operation against a key holding the wrong kind of value")

    def as_hash(self) -> Reply:
        if self.value is None or isinstance(self.value, dict):
            return Pairs({name.encode(): text.encode() for name, text in (self.value or {}).items()})
        raise WrongKind("Operation against a key holding the wrong kind of value")

    def as_set(self) -> Reply:
        if self.value is None or isinstance(self.value, frozenset):
            return Members([each.encode() for each in sorted(self.value or ())])
        raise WrongKind("Operation against a key holding the wrong kind of value")


def is_view(key: bytes) -> bool:
    return key.startswith(VIEWS)


async def find(call: CommandCall, key: bytes) -> KeyView:
    """What a documented key reads as now."""
    parts = key.decode(errors="replace").split(":")
    match parts:
        case ["worker", id, ("metadata" | "alive" | "stats" | "tools") as part]:
            row = await call.gateway.transact(workers.find_worker, id, space_of(call))
            return KeyView() if row is None else _of_worker(row, part)
        case ["capability", tool, "workers"]:
            return KeyView(_able(await call.gateway.transact(workers.all_workers, space_of(call)), tool))
        case ["job", id, ("worker" | "status") as part]:
            return await _of_job(call, id, part)
        case ["job", id]:
            whole = await call.gateway.transact(jobs.describe_whole, id, space_of(call))
            return KeyView() if whole is None else KeyView(_text(whole))
        case ["job", id, ("stdout" | "stderr") as part]:
            return KeyView(await call.gateway.transact(jobs.find_output, id, space_of(call), part))
        case ["plan", id]:
            plan = await call.gateway.transact(plans.find_plan, space_of(call), id)
            return KeyView() if plan is None else KeyView(plan[0].body)
        case ["queue", _, *_]:
            return KeyView(()) if await _waits(call, key) else KeyView()
        case _:
            return KeyView()


async def _waits(call: CommandCall, key: bytes) -> bool:
    try:
        return await queued.length(call, key) > 0
    except workers.NotRegistered:  # nobody without a worker holds something
        return False


async def names(call: CommandCall, begin: bytes = b"") -> list[bytes]:
    """The keys that are there now and may begin so. Of jobs and plans the newest; JOBS.LIST and PLAN.LIST have all."""
    families = {
        ("worker:", "capability:"): _names_of_workers,
        ("job:",): _names_of_jobs,
        ("plan:",): _names_of_plans,
        ("queue:",): _names_of_queues,
    }
    found: set[str] = set()
    for prefixes, listed in families.items():
        if any(begin.startswith(each.encode()) or each.encode().startswith(begin) for each in prefixes):
            found |= await listed(call)
    return sorted(name.encode() for name in found)


async def _names_of_workers(call: CommandCall) -> set[str]:
    found: set[str] = set()
    for row in await call.gateway.transact(workers.all_workers, space_of(call)):
        parts = [part for part in ("metadata", "alive", "stats", "tools") if _of_worker(row, part).value is not None]
        found |= {f"worker:{row.id}:{part}" for part in parts}
        if workers.is_alive(row):
            found |= {f"capability:{tool}:workers" for tool in tools_of(row)}
    return found


async def _names_of_jobs(call: CommandCall) -> set[str]:
    rows = await call.gateway.transact(plans.recent_states, space_of(call), look=_NEWEST)
    held = {f"job:{row.id}:worker" for row in rows if row.state == State.RUNNING}
    return {f"job:{row.id}:status" for row in rows} | held


async def _names_of_plans(call: CommandCall) -> set[str]:
    return {f"plan:{id}" for id in await call.gateway.transact(plans.plan_ids, space_of(call), limit=_NEWEST)}


async def _names_of_queues(call: CommandCall) -> set[str]:
    assert call.client.principal is not None
    found = await call.gateway.transact(queued.queues_of, space_of(call))
    return {f"queue:{name}" for name in found if call.client.principal.may_use(name)}


def kind_of(key: bytes) -> str:
    """The kind of a key that `names` has listed."""
    if key.startswith(QUEUE):
        return "list"
    return "set" if key.startswith(b"capability:") else "string"


def tools_of(row: WorkerRow) -> list[str]:
    return [each.removeprefix("tool:") for each in json.loads(row.capabilities) if each.startswith("tool:")]


def _of_worker(row: WorkerRow, part: str) -> KeyView:
    metadata = json.loads(row.metadata or "{}")
    if part == "metadata":
        return KeyView(_text(metadata.get("registration", {})))
    if part == "tools":
        return KeyView(",".join(tools_of(row))) if workers.is_alive(row) else KeyView()
    if part == "alive":
        left = row.heartbeat_at + row.ttl_us - row.now
        return KeyView(str(row.heartbeat_at // 1_000_000), left) if workers.is_alive(row) else KeyView()
    left = metadata.get("stats_at", 0) + STATS_KEPT // _MICROSECOND - row.now
    return KeyView(_text(metadata["stats"]), left) if "stats" in metadata and left > 0 else KeyView()


def _able(rows: list[WorkerRow], tool: str) -> frozenset[str] | None:
    """Who has a tool and lives; a set without members is not there."""
    return frozenset(row.id for row in rows if workers.is_alive(row) and tool in tools_of(row)) or None


async def _of_job(call: CommandCall, id: str, part: str) -> KeyView:
    described = await call.gateway.transact(jobs.describe, id, space_of(call))
    if described is None:
        return KeyView()
    if part == "status":
        return KeyView(str(described["status"]))
    known = await call.gateway.transact(jobs.find, id, space_of(call))
    if described["status"] != "running" or known is None or known.job.claimed_at is None:
        return KeyView()
    now = await call.gateway.transact(store_time)
    left = known.job.claimed_at + (known.job.timeout_us or workers.NEVER_US) - now
    return KeyView(str(described.get("worker_id", "")), max(left, 0))


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
