"""Jobs: what is in the store, why one is not run, what is retried most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import Query

from holdfast.errors import HoldfastError, NotFound
from holdfast.http.api.jobs import (
    ManyJobs,
    cancel_job,
    cancel_jobs,
    explain_job,
    list_attempts,
    list_jobs,
    retry_job,
    retry_jobs,
    show_job,
)
from holdfast.http.api.routes import Paged
from holdfast.http.api.runs import ReasonBody
from holdfast.http.api.seen import PrincipalScope, RequestScope
from holdfast.http.pages.charts import trends
from holdfast.http.pages.filters import Chip, Tab, chips, from_when
from holdfast.http.pages.forms import BulkView, Filled, Form, over_pages
from holdfast.http.pages.routes import Pages, Redirect
from holdfast.kernel.states import TERMINAL, State
from holdfast.values import Bulk, Page
from holdfast.values.jobs import AttemptRecord, FailureRecord, JobRecord, ReasonRecord, RetriedRecord

pages = Pages()

TABS = (
    Tab("", "All"),
    Tab(State.PENDING, "Waiting"),
    Tab(State.SCHEDULED, "Scheduled"),
    Tab(State.RUNNING, "Running"),
    Tab(State.WAITING, "Parked"),
    Tab(State.FAILED, "Failed"),
    Tab(State.SUCCEEDED, "Succeeded"),
    Tab(State.CANCELLED, "Cancelled"),
)
_SHOWN = 100
_CHOICE = ("state", "queue", "kind", "after")
Ticked = Annotated[list[str], Query(default_factory=list)]


@dataclass(frozen=True, slots=True)
class JobsView:
    """`groups` are failures of the last day that are alike, `trends` how often each kind failed in each hour.

    `retried` are the kinds of the last day that were tried again most.
    `bulk_fits`: all jobs that fit can be changed at once, because nothing else narrows the list.
    """

    jobs: Page[JobRecord]
    states: tuple[Tab, ...]
    state: str
    narrowed: tuple[Chip, ...]
    filters: dict[str, str | None]
    groups: Sequence[FailureRecord]
    trends: Mapping[str, str]
    retried: Sequence[RetriedRecord]
    bulk_fits: bool


@dataclass(frozen=True, slots=True)
class JobView:
    job: JobRecord
    ended: bool
    reasons: Sequence[ReasonRecord]
    attempts: list[AttemptRecord]
    children: Sequence[Any]
    is_run: bool


@dataclass(frozen=True, slots=True)
class WhyView:
    wanted: str
    kind: str
    reasons: Sequence[ReasonRecord]


@pages.page("/jobs", "jobs.html")
async def show_jobs(
    seen: RequestScope,
    page: Paged,
    state: str | None = None,
    queue: str | None = None,
    kind: str | None = None,
    tenant: str | None = None,
    since: str | None = None,
    key: str | None = None,
    system: str | None = None,
) -> JobsView:
    wanted: dict[str, Any] = {"queue": queue or None, "kind": kind or None, "tenant": tenant or None}
    others: dict[str, Any] = {"key": key or None, "system": bool(system)}
    found = await list_jobs(seen, page, state=state or None, since=from_when(seen, since), **wanted, **others)
    filters = {**wanted, "since": since or None, "key": key or None, "system": "1" if system else None}
    groups = await _groups(seen, wanted) if state == State.FAILED and not page.after else []
    return JobsView(
        jobs=found,
        states=TABS,
        state=state or "",
        narrowed=chips(filters),
        filters=filters,
        groups=groups,
        trends=await _trends(seen, groups, wanted),
        retried=[] if page.after else await _retried(seen, state, wanted),
        bulk_fits=not (tenant or since or key or system or "*" in (kind or "")),
    )


async def _groups(seen: PrincipalScope, wanted: Mapping[str, str | None]) -> Sequence[FailureRecord]:
    """Those of a queue are not kept apart."""
    if wanted["queue"]:
        return []
    whose = seen.chosen(wanted["tenant"])
    return await seen.hf.jobs.failures(kind=wanted["kind"], tenant=whose, since="24h", limit=8)


async def _retried(
    seen: PrincipalScope, state: str | None, wanted: Mapping[str, str | None]
) -> Sequence[RetriedRecord]:
    """Beside jobs of all states and beside those that wait for their next try; those of a queue are not kept apart."""
    if wanted["queue"] or state not in (None, "", State.SCHEDULED):
        return []
    whose = seen.chosen(wanted["tenant"])
    return await seen.hf.jobs.retried_most(kind=wanted["kind"], tenant=whose, limit=8)


async def _trends(
    seen: PrincipalScope, groups: Sequence[FailureRecord], wanted: Mapping[str, str | None]
) -> Mapping[str, str]:
    if not groups:
        return {}
    whose = seen.chosen(wanted["tenant"])
    return trends(
        seen, await seen.hf.jobs.stats("kind", tenant=whose, since="24h", step="hour", state="failed"), "kind"
    )


@pages.page("/jobs/retry", "bulk.html", like="POST /jobs/retry")
async def ask_retry(
    seen: RequestScope,
    id: Ticked,
    state: str | None = None,
    queue: str | None = None,
    kind: str | None = None,
    error: str | None = None,
    message: str | None = None,
) -> BulkView:
    """`error` and `message` are those of a group of failures."""
    if id:
        return await _asked_for(seen, "retry", id)
    choice = {"state": state, "queue": queue, "kind": kind, "error": error, "message": message}
    return await _bulk(seen, "retry", choice, dry_run=True)


@pages.page("/jobs/cancel", "bulk.html", like="POST /jobs/cancel")
async def ask_cancel(
    seen: RequestScope, id: Ticked, state: str | None = None, queue: str | None = None, kind: str | None = None
) -> BulkView:
    if id:
        return await _asked_for(seen, "cancel", id)
    return await _bulk(seen, "cancel", {"state": state, "queue": queue, "kind": kind}, dry_run=True)


@pages.action("/jobs/retry", template="bulk.html")
async def retry_many(seen: RequestScope, form: Filled) -> BulkView:
    if form.all("id"):
        return await _selected(seen, "retry", form)
    choice = {name: form.text(name) for name in (*_CHOICE, "error", "message")}
    return await _bulk(seen, "retry", choice, reason=form.text("reason"))


@pages.action("/jobs/cancel", template="bulk.html")
async def cancel_many(seen: RequestScope, form: Filled) -> BulkView:
    if form.all("id"):
        return await _selected(seen, "cancel", form)
    choice = {name: form.text(name) for name in _CHOICE}
    return await _bulk(seen, "cancel", choice, reason=form.text("reason"))


async def _asked_for(seen: PrincipalScope, verb: str, ids: Sequence[str]) -> BulkView:
    """What will happen to those that were ticked."""
    known = [(await show_job(seen, each)).id for each in ids[:_SHOWN]]
    found = Bulk(matched=len(known), changed=0, refused={}, next=None, dry_run=True)
    return BulkView("job", verb, found, {}, done=False, ids=tuple(known))


async def _selected(seen: PrincipalScope, verb: str, form: Form) -> BulkView:
    """Those that were ticked; one that cannot be changed does not stop the others."""
    ids = form.all("id")[:_SHOWN]
    why = ReasonBody(reason=form.text("reason") or f"cancelled by {seen.principal.name}")
    refused: dict[str, str] = {}
    for id in ids:
        try:
            await (retry_job(seen, id) if verb == "retry" else cancel_job(seen, id, why))
        except HoldfastError as problem:
            refused[id] = str(problem)
    changed = len(ids) - len(refused)
    return BulkView(
        "job", verb, Bulk(matched=len(ids), changed=changed, refused=refused, next=None, dry_run=False), {}, done=True
    )


async def _bulk(
    seen: PrincipalScope, verb: str, choice: dict[str, str | None], *, dry_run: bool = False, reason: str | None = None
) -> BulkView:
    chosen: dict[str, Any] = {name: value or None for name, value in choice.items()}
    given: dict[str, Any] = {} if reason is None else {"reason": reason}
    many = ManyJobs(dry_run=dry_run, **chosen, **given)
    found = await (over_pages(partial(retry_jobs, seen), many) if verb == "retry" else cancel_jobs(seen, many))
    return BulkView("job", verb, found, chosen, not dry_run, reason or "")


@pages.page("/jobs/{id}", "job.html")
async def show(seen: RequestScope, id: str) -> JobView:
    job = await show_job(seen, id)
    return JobView(
        job=job,
        ended=job.state in TERMINAL,
        reasons=await explain_job(seen, job.id),
        attempts=await list_attempts(seen, job.id),
        children=(await seen.hf.jobs.children(job.id))[:_SHOWN],
        is_run=await _is_run(seen, job.id),
    )


async def _is_run(seen: PrincipalScope, id: str) -> bool:
    try:
        await seen.run(id)
    except NotFound:
        return False
    return True


@pages.page("/why", "why.html", like="GET /runs/{id}/why")
async def explain(seen: RequestScope, id: str = "") -> WhyView:
    """Why a run or a job, whichever has this id, does not continue."""
    wanted = id.strip()
    if not wanted:
        return WhyView("", "", [])
    try:
        return WhyView(wanted, "run", await seen.why((await seen.run(wanted)).id))
    except NotFound:
        if seen.pinned:
            raise
        return WhyView(wanted, "job", await explain_job(seen, wanted))


@pages.action("/jobs/{id}/retry")
async def retry(seen: RequestScope, id: str) -> Redirect:
    return Redirect("/jobs", (await retry_job(seen, id)).id)


@pages.action("/jobs/{id}/cancel")
async def cancel(seen: RequestScope, id: str, form: Filled) -> Redirect:
    await cancel_job(seen, id, ReasonBody(reason=form.text("reason") or f"cancelled by {seen.principal.name}"))
    return Redirect("/jobs", id)
