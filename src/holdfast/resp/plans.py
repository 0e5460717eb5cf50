"""Plans, actions and the public ids of their jobs, in the store.

A plan never changes, and an action is all of its jobs or none: both are one transaction. A job has its plan in its
payload, so what was accepted can be run whatever becomes of the plan.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.errors import StoreRefused
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.enqueue import enqueue, retry
from holdfast.kernel.ids import JobId
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import NewJob
from holdfast.resp.plan import UnixPlan, read_plan
from holdfast.resp.records import ActionJob, ActionRow, PlanJobRow, PlanRow, PlansSql, PlanUse, RecentJob, status_of

KIND = "agx.plan"
QUEUE = "ready"
MOST_INPUTS = 100
INPUT_CAP = 10 << 20
MAX_ATTEMPTS = 3
MOST_RETRIES = 10
JOB_TIMEOUT_US = 3_600_000_000
MOST_LOOKED = 1_000  # actions that are looked at for those with a status
_BATCH = 100
_JOB = "job_"


class NoPlan(StoreRefused):
    """There is no plan of this id."""


class IdTaken(StoreRefused):
    """The id belongs to something else."""


class NewAction(NamedTuple):
    """An action as it was asked for, with an id for each of its jobs."""

    id: str
    plan: str
    inputs: Sequence[object]
    jobs: Sequence[JobId]
    queue: str
    tags: tuple[str, ...] = ()
    priority: int = 100
    timeout_us: int = JOB_TIMEOUT_US
    max_attempts: int = MAX_ATTEMPTS


def tag_capabilities(tags: Mapping[str, object]) -> tuple[str, ...]:
    """Tags in one form, whether a worker has them or an action asks for them: a text as it is, any other value as its
    JSON. So `true` and "true" are the same."""
    return tuple(sorted(f"tag:{name}={_tag(value)}" for name, value in tags.items()))


def _tag(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))


def public_id(job: JobId) -> str:
    return f"{_JOB}{job.replace('-', '')}"


def kernel_id(public: str) -> JobId | None:
    """The job whose first id this is; None if it cannot be one."""
    digits = public.removeprefix(_JOB)
    if len(digits) != 32 or any(each not in "0123456789abcdef" for each in digits):
        return None
    return JobId(f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}")


async def submit_plan(tx: Transaction, tenant: str, plan: UnixPlan) -> bool:
    """Store a plan; False if a plan that runs the same is there already, `IdTaken` if another one has its id."""
    body = codec.encode(plan.as_submitted(), what="a plan", cap=INPUT_CAP)
    digest = codec.digest(codec.encode(plan.as_json(), what="a plan", cap=INPUT_CAP))
    if await tx.one(PlansSql.add_plan, tenant=tenant, id=plan.id, body=body, digest=digest) is not None:
        return True
    there = await tx.one(PlansSql.find_plan, tenant=tenant, id=plan.id)
    if there is not None and there.digest != digest:
        raise IdTaken(f"Plan already exists: {plan.id}")
    return False


@reading
async def find_plan(tx: Transaction, tenant: str, id: str) -> tuple[PlanRow, PlanUse] | None:
    row = await tx.one(PlansSql.find_plan, tenant=tenant, id=id)
    use = await tx.one(PlansSql.plan_use, tenant=tenant, plan=id)
    return None if row is None or use is None else (row, use)


@reading
async def list_plans(tx: Transaction, tenant: str, *, skipped: int, limit: int) -> list[PlanRow]:
    return await tx.many(PlansSql.list_plans, tenant=tenant, skipped=skipped, limit=limit)


@reading
async def plan_ids(tx: Transaction, tenant: str, *, limit: int) -> list[str]:
    """The ids of the newest plans."""
    return [row.id for row in await tx.many(PlansSql.plan_ids, tenant=tenant, limit=limit)]


async def delete_plan(tx: Transaction, tenant: str, id: str) -> bool:
    """Remove a plan; False if it is not there. Refused while one of its jobs has not ended."""
    if await tx.one(PlansSql.lock_plan, tenant=tenant, id=id) is None:
        return False
    use = await tx.one(PlansSql.plan_use, tenant=tenant, plan=id)
    if use is not None and use.active:
        raise StoreRefused("Cannot delete plan with active jobs")
    await tx.run(PlansSql.remove_plan, tenant=tenant, id=id)
    return True


async def submit_action(tx: Transaction, tenant: str, new: NewAction) -> ActionRow:
    """Enqueue a job for each input, all of them or none."""
    stored = await tx.one(PlansSql.lock_plan, tenant=tenant, id=new.plan)
    if stored is None:
        raise NoPlan(f"Plan not found: {new.plan}")
    row = await tx.one(PlansSql.add_action, tenant=tenant, id=new.id, plan=new.plan, inputs=len(new.inputs))
    if row is None:
        raise IdTaken(f"Action ID already exists: {new.id}")
    plan = read_plan(json.loads(stored.body))
    requires = [*(f"tool:{command}" for command in plan.commands), *new.tags]
    route = route_for(new.queue, KIND, requires)
    jobs = [_job(tenant, new, plan, place, route.id) for place in range(len(new.inputs))]
    await enqueue(tx, jobs, [route])
    for place, job in enumerate(new.jobs):
        named = {"id": public_id(job), "tenant": tenant, "action": new.id, "plan": new.plan}
        await tx.run(PlansSql.add_plan_job, **named, place=place, job=job)
    return row


def _job(tenant: str, new: NewAction, plan: UnixPlan, place: int, route: int) -> NewJob:
    payload = {"plan": plan.as_json(), "input": new.inputs[place], "input_index": place, "action_id": new.id}
    text = codec.encode(payload, what=f"input {place}", cap=INPUT_CAP)
    timing = {"priority": new.priority, "timeout_us": new.timeout_us, "max_attempts": new.max_attempts}
    return new_job(new.jobs[place], KIND, new.queue, route, tenant, text, **timing)


async def submit_verification(tx: Transaction, tenant: str, plan: UnixPlan, job: JobId, worker: str) -> None:
    """Enqueue one run of a plan that only this worker can take."""
    route = route_for(QUEUE, KIND, [worker])
    payload = {"plan": plan.as_json(), "input": None, "input_index": 0, "action_id": ""}
    text = codec.encode(payload, what="a challenge", cap=INPUT_CAP)
    await enqueue(tx, [new_job(job, KIND, QUEUE, route.id, tenant, text, max_attempts=1)], [route])


def new_job(  # noqa: PLR0913, PLR0917  what jobs of this layer differ in
    id: JobId,
    kind: str,
    queue: str,
    route: int,
    tenant: str,
    payload: str,
    *,
    priority: int = 100,
    timeout_us: int = JOB_TIMEOUT_US,
    max_attempts: int = MAX_ATTEMPTS,
) -> NewJob:
    """A job for workers behind connections. A lost lease counts as an attempt."""
    return NewJob(
        id=id,
        kind=kind,
        queue=queue,
        route=route,
        tenant=tenant,
        priority=priority,
        delay_us=None,
        due_at=None,
        timeout_us=timeout_us,
        deadline_us=None,
        deadline_at=None,
        max_attempts=max_attempts,
        max_rescues=max_attempts - 1,
        parent=None,
        retry_of=None,
        payload=payload,
        metadata="{}",
    )


@reading
async def find_action(tx: Transaction, tenant: str, id: str) -> tuple[ActionRow, list[ActionJob]] | None:
    row = await tx.one(PlansSql.find_action, tenant=tenant, id=id)
    if row is None:
        return None
    return row, await tx.many(PlansSql.action_jobs, tenant=tenant, action=id)


@reading
async def list_actions(
    tx: Transaction, tenant: str, *, skipped: int, limit: int, status: str | None = None
) -> list[tuple[ActionRow, Counter[str]]]:
    """Actions, the newest first; with a status those that have it, among so many of the newest."""
    if status is None:
        return await _counted_actions(tx, tenant, skipped, limit)
    found: list[tuple[ActionRow, Counter[str]]] = []
    for begin in range(0, MOST_LOOKED, _BATCH):
        some = await _counted_actions(tx, tenant, begin, _BATCH)
        found += [pair for pair in some if action_status(pair[1]) == status]
        if len(some) < _BATCH or len(found) >= skipped + limit:
            break
    return found[skipped : skipped + limit]


async def _counted_actions(
    tx: Transaction, tenant: str, skipped: int, limit: int
) -> list[tuple[ActionRow, Counter[str]]]:
    rows = await tx.many(PlansSql.list_actions, tenant=tenant, skipped=skipped, limit=limit)
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for each in await tx.many(PlansSql.count_action_jobs, tenant=tenant, actions=[row.id for row in rows]):
        counts[each.action][status_of(each.state, each.spent, 1)] += each.jobs
    return [(row, counts[row.id]) for row in rows]


def counted(jobs: Sequence[ActionJob]) -> Counter[str]:
    """How many jobs are in each status."""
    return Counter(job.status for job in jobs)


def action_status(counts: Counter[str]) -> str:
    if counts["running"]:
        return "running"
    if counts["pending"]:
        return "pending" if counts["pending"] == counts.total() else "running"
    return "failed" if counts["failed"] or counts["dead"] else "completed"


@reading
async def find_plan_job(tx: Transaction, public: str) -> PlanJobRow | None:
    return await tx.one(PlansSql.find_plan_job, id=public)


@reading
async def find_by_job(tx: Transaction, job: JobId) -> PlanJobRow | None:
    return await tx.one(PlansSql.find_by_job, job=job)


@reading
async def find_by_jobs(tx: Transaction, jobs: Sequence[JobId]) -> list[PlanJobRow]:
    return await tx.many(PlansSql.find_by_jobs, jobs=jobs) if jobs else []


@reading
async def names_of(tx: Transaction, jobs: Sequence[JobId]) -> dict[JobId, str]:
    """The public ids of those that are jobs of actions."""
    rows = await tx.many(PlansSql.names_of_jobs, jobs=jobs) if jobs else []
    return {row.job: row.id for row in rows}


@reading
async def recent_jobs(tx: Transaction, tenant: str, *, skipped: int, limit: int) -> list[PlanJobRow]:
    return await tx.many(PlansSql.recent_jobs, tenant=tenant, skipped=skipped, limit=limit, look=skipped + limit)


@reading
async def recent_states(tx: Transaction, tenant: str, *, look: int) -> list[RecentJob]:
    """The newest jobs of actions, and how they stand."""
    return await tx.many(PlansSql.recent_states, tenant=tenant, look=look)


async def retry_job(tx: Transaction, tenant: str, public: str, new: JobId) -> None:
    """Enqueue an ended job again, under the same public id."""
    row = await tx.one(PlansSql.lock_plan_job, id=public)
    if row is None or row.tenant != tenant:
        raise StoreRefused(f"Job not found: {public}")
    if row.retries >= MOST_RETRIES:
        raise StoreRefused("Max retries exceeded")
    await retry(tx, row.job, new)
    await tx.run(PlansSql.replace_job, id=public, job=new)


async def prune_actions(tx: Transaction, after: tuple[str, str], *, look: int) -> tuple[str, str] | None:
    """Look at the next actions, and remove those whose jobs retention has removed; None at the end.

    An action goes as a whole, so that it never seems to have had fewer inputs than it had.
    """
    found = await tx.many(PlansSql.actions_after, tenant=after[0], id=after[1], limit=look)
    for each in found:
        which = {"tenant": each.tenant, "action": each.id}
        if not each.spent:
            continue
        await tx.many(PlansSql.lock_action_jobs, **which)
        kept = await tx.one(PlansSql.count_kept_jobs, **which)  # a statement later: one of them may have been retried
        if kept is not None and not kept.jobs:
            await tx.run(PlansSql.remove_action_jobs, **which)
            await tx.run(PlansSql.remove_action, **which)
    return (found[-1].tenant, found[-1].id) if len(found) == look else None


async def erase(tx: Transaction, tenant: str, *, limit: int) -> int:
    """Remove some of a tenant's plans, actions and the public ids of their jobs; how many rows."""
    for statement in (PlansSql.erase_jobs, PlansSql.erase_actions, PlansSql.erase_plans):
        if gone := await tx.many(statement, tenant=tenant, limit=limit):
            return len(gone)
    return 0


def stored_plan(row: PlanRow) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(row.body)
    return body
