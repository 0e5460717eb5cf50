"""Jobs as AGX sees them: what a worker reports about a job that it holds, and what everybody may read.

Who reports is decided by the connection. The lease decides whether it may: a late or foreign report changes nothing.
"""

from __future__ import annotations

import base64
import contextlib
import json
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from holdfast.errors import LeaseLost, NotFound, StoreRefused
from holdfast.kernel import codec, queries
from holdfast.kernel.brokers import find_lease
from holdfast.kernel.complete import complete_and_settle, ending
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.ids import JobId
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.rows import Ending, JobRow, Lease
from holdfast.kernel.waiting import report_progress
from holdfast.kernel.workers import list_workers
from holdfast.outcomes import Cancel, Discard, Done, Fail, Snooze, TryAgain
from holdfast.resp import workers
from holdfast.resp.endings import PoppedJob, Write
from holdfast.resp.plans import KIND, find_by_job, find_by_jobs, find_plan_job, kernel_id, public_id
from holdfast.resp.records import ENDED, MOVES, Epoch, PlanJobRow, WorkerEpoch, shown_time, status_of

RAW = "resp.data"
RESULT_CAP = 12 << 20
ERROR_CAP = 16_384
_SHOWN = 1_000  # characters of what a worker wrote to stderr, where it names no error
_AT_ONCE = timedelta(0)
_REPORTED = {"completed": ("succeeded",), "failed": ("retried", "failed")}
_CHANCE = random.Random(0)  # retries have no delay, so nothing is rolled
_POLICY = RetryPolicy()

Outcome = Done | TryAgain | Fail | Cancel | Discard | Snooze


class FoundJob(NamedTuple):
    """A job, and its public id with what it was made from, if it is one of an action."""

    job: JobRow
    public: str
    planned: PlanJobRow | None

    @property
    def status(self) -> str:
        return status_of(self.job.state, self.job.attempts + self.job.rescues, self.job.max_attempts)


@reading
async def find(tx: Transaction, public: str, tenant: str) -> FoundJob | None:
    """The job that a public id stands for now; None if this tenant has none of that id."""
    planned = await find_plan_job(tx, public)
    id = planned.job if planned is not None else kernel_id(public)
    if id is None:
        return None
    try:
        job = await queries.find_job(tx, id)
    except NotFound:
        return None
    return FoundJob(job, public, planned) if job.tenant == tenant else None


async def public_name(tx: Transaction, job: JobId) -> str:
    """The public id of a job: that of the first it was, if it was retried."""
    planned = await find_by_job(tx, job)
    return planned.id if planned is not None else public_id(job)


class Reporter(NamedTuple):
    """Who reports, by its connection."""

    worker: str
    epoch: Epoch | None
    tenant: str


async def update(tx: Transaction, who: Reporter, public: str, body: dict[str, Any]) -> PoppedJob | None:
    """Take a worker's report. The job as it is held, if it still runs."""
    row = await workers.current(tx, who.worker, who.epoch)
    known = await find(tx, public, who.tenant)
    if known is None:
        raise StoreRefused(f"Job not found: {public}")
    owned = await find_lease(tx, known.job.id, who.worker)
    status = body.get("status", "running")
    if not isinstance(status, str):
        raise StoreRefused("Invalid status: it is text, as running, completed or failed")
    claimed = body.get("worker_id")
    if claimed is not None and claimed != who.worker:
        holder = await _holder(tx, known.job)
        raise StoreRefused(f"Worker {str(claimed)[:64]} cannot update job claimed by {holder or who.worker}")
    if owned is None or owned.worker != row.seq or owned.lease_until <= row.now:
        await _judge_without_lease(tx, row, who, known, status)
        return None
    lease = owned.lease
    if body.get("attempt") not in (None, workers.attempt_of(lease.attempts, lease.rescues)):
        await _judge_without_lease(tx, row, who, known, status)
        return None
    if status not in MOVES["running"]:
        raise StoreRefused(f"Invalid status transition: running -> {str(status)[:32]}")
    merged = _merged(lease, known.job.progress, body)
    if status == "running":
        await report_progress(tx, lease, codec.encode(merged, what="a report", cap=RESULT_CAP))
        return PoppedJob(lease, public, row.incarnation)
    await _end(tx, lease, status, {**merged, "worker_id": who.worker})
    return None


def completion(lease: Lease, who: Reporter, body: dict[str, Any]) -> Write | None:
    """How a report ends the attempt that it is about, if it says that the job is done and nothing is wrong with it."""
    claimed, attempt = body.get("worker_id"), workers.attempt_of(lease.attempts, lease.rescues)
    if (
        body.get("status") != "completed"
        or claimed not in (None, who.worker)
        or body.get("attempt") not in (None, attempt)
    ):
        return None
    return lambda before: ending_of(lease, Done({**_merged(lease, before, body), "worker_id": who.worker}))


def _merged(lease: Lease, before: str | None, body: dict[str, Any]) -> dict[str, Any]:
    """What is known of an attempt with this report: a field that it does not name stays as it was."""
    told = json.loads(before or "{}")
    attempt = workers.attempt_of(lease.attempts, lease.rescues)
    fields = {name: value for name, value in body.items() if name not in ("worker_id", "attempt")}
    return {**(told if told.get("attempt") == attempt else {}), **fields, "attempt": attempt}


async def _end(tx: Transaction, lease: Lease, status: str, said: dict[str, Any]) -> None:
    if status == "completed":
        await end(tx, lease, Done(said))
        return
    await report_progress(tx, lease, codec.encode(said, what="a report", cap=RESULT_CAP))
    message = str(said.get("error") or _end_of(said.get("stderr")) or "the worker says that it failed")
    await end(tx, lease, TryAgain(_AT_ONCE, message, "agx_failed", ""))


def _end_of(text: object) -> str:
    return text.strip()[-_SHOWN:] if isinstance(text, str) else ""


async def end(tx: Transaction, lease: Lease, outcome: Outcome) -> None:
    """End an attempt. `LeaseLost` if the lease is not current any more."""
    parents = [lease.parent] if lease.parent is not None else []
    if not await complete_and_settle(tx, [ending_of(lease, outcome)], parents):
        raise LeaseLost(lease.id, lease.fence)


async def give_up(tx: Transaction, lease: Lease, why: str) -> None:
    """End an attempt of which no result will come; nothing if its lease was lost already."""
    with contextlib.suppress(LeaseLost):
        await end(tx, lease, TryAgain(_AT_ONCE, why, "agx_lost", ""))


def ending_of(lease: Lease, outcome: Outcome) -> Ending:
    """How an attempt ends; lost leases count as attempts."""
    counted = lease._replace(attempts=lease.attempts + lease.rescues)
    return ending(counted, outcome, _POLICY, _CHANCE, RESULT_CAP, ERROR_CAP)


async def _judge_without_lease(
    tx: Transaction, row: WorkerEpoch, who: Reporter, known: FoundJob, status: object
) -> None:
    """The same report again is fine; anything else is refused, and says why."""
    attempts = await queries.list_attempts(tx, known.job.seq)
    mine = [each.outcome for each in attempts if each.worker == row.seq]
    if status in _REPORTED and mine and mine[-1] in _REPORTED[str(status)]:
        return
    holder = await _holder(tx, known.job)
    if holder is not None:
        raise StoreRefused(f"Worker {who.worker} cannot update job claimed by {holder}")
    if known.status in ENDED or not mine:
        raise StoreRefused(f"Invalid status transition: {known.status} -> {str(status)[:32]}")
    raise StoreRefused(f"Worker {who.worker} cannot update a job that it lost: it is {known.status} again")


async def _holder(tx: Transaction, job: JobRow) -> str | None:
    if job.worker is None:
        return None
    rows = await list_workers(tx, all=True, before=job.worker + 1, limit=1)
    return rows[0].id if rows and rows[0].seq == job.worker else None


@reading
async def describe(tx: Transaction, public: str, tenant: str) -> dict[str, Any] | None:
    """A job's status, as JOB.STATUS shows it; None if this tenant has no such job."""
    known = await find(tx, public, tenant)
    return None if known is None else _described(known, await _holder(tx, known.job))


@reading
async def describe_whole(tx: Transaction, public: str, tenant: str) -> dict[str, Any] | None:
    """As `describe`, and what is to be run: JOB.GET, and the key job:<id>."""
    known = await find(tx, public, tenant)
    if known is None:
        return None
    described = _described(known, await _holder(tx, known.job))
    if known.job.kind != KIND:
        return described
    payload = json.loads(known.job.payload)
    made = {"plan_id": payload["plan"]["plan_id"], "input": payload["input"], "plan": payload["plan"]}
    return {**described, **made}


@reading
async def find_output(tx: Transaction, public: str, tenant: str, stream: str) -> str | None:
    """What a job wrote to stdout or stderr, as its worker has said it: of each task, one after the other."""
    known = await find(tx, public, tenant)
    if known is None:
        return None
    said = json.loads(known.job.result or known.job.progress or "null")
    tasks = said.get("task_results") if isinstance(said, dict) else None
    if isinstance(tasks, list):
        return "".join(str(each.get(stream) or "") for each in tasks if isinstance(each, dict))
    text = said.get(stream) if isinstance(said, dict) else None
    return text if isinstance(text, str) else None


@reading
async def describe_all(tx: Transaction, seqs: Sequence[int]) -> dict[int, dict[str, Any]]:
    """The statuses of jobs that nobody holds, by their numbers."""
    rows = await queries.jobs_by_seq(tx, seqs)
    planned = {row.job: row for row in await find_by_jobs(tx, [job.id for job in rows if job.kind == KIND])}
    known = [
        FoundJob(job, planned[job.id].id if job.id in planned else public_id(job.id), planned.get(job.id))
        for job in rows
    ]
    return {each.job.seq: _described(each, None) for each in known}


def _described(known: FoundJob, holder: str | None) -> dict[str, Any]:
    job, planned = known.job, known.planned
    progress = json.loads(job.progress or "{}")
    result = json.loads(job.result or "null")
    ended = known.status in ENDED
    running = job.worker is not None
    attempts = job.attempts + job.rescues
    said = result if isinstance(result, dict) else progress
    shown: dict[str, Any] = {
        "job_id": known.public,
        "status": known.status,
        "queue": job.queue,
        "plan_id": planned.plan if planned is not None else None,
        "action_id": planned.action if planned is not None else None,
        "input_index": planned.place if planned is not None else None,
        "worker_id": holder if running else said.get("worker_id"),
        "attempt": attempts + 1 if running else max(attempts, 0),
        "max_attempts": job.max_attempts,
        "retries": planned.retries if planned is not None else 0,
        "created_at": shown_time(job.created_at),
        "started_at": shown_time(job.claimed_at),
        "completed_at": shown_time(job.finished_at) if ended else None,
        "current_task": said.get("current_task"),
        "progress_percent": 100 if known.status == "completed" else said.get("progress_percent"),
        "task_results": said.get("task_results"),
        "error": json.loads(job.error)["message"] if job.error else None,
    }
    if result is not None and not (isinstance(result, dict) and "task_results" in result):
        shown["result"] = result
    return {name: value for name, value in shown.items() if value is not None}


def popped(lease: Lease, public: str) -> bytes:
    """What a pop of this job replies. Of raw data, the bytes that were pushed."""
    payload = json.loads(lease.payload)
    if lease.kind == RAW:
        return raw_bytes(payload)
    attempt = workers.attempt_of(lease.attempts, lease.rescues)
    token = f"{lease.epoch}.{lease.token}"
    if lease.kind != KIND:
        said = {"job_id": public, "kind": lease.kind, "queue": lease.queue, "payload": payload}
        return json.dumps({**said, "attempt": attempt, "token": token}, ensure_ascii=False).encode()
    said = {
        "job_id": public,
        "plan_id": payload["plan"]["plan_id"],
        "plan": payload["plan"],
        "input": payload["input"],
        "inputs": [payload["input"]],
        "input_index": payload["input_index"],
        "attempt": attempt,
        "token": token,
    }
    return json.dumps(said, ensure_ascii=False).encode()


def raw_payload(data: bytes) -> dict[str, str]:
    """Bytes as a job's payload: text where they are text that both databases store."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    return {"base64": base64.b64encode(data).decode()} if "\0" in text else {"text": text}


def raw_bytes(payload: dict[str, str]) -> bytes:
    return base64.b64decode(payload["base64"]) if "base64" in payload else payload["text"].encode()
