"""The system over HTTP: what serves this, whether it is well, how it is set, who changed what."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Query

from holdfast.access.audit import AuditRecord
from holdfast.access.tokens import TokenRecord
from holdfast.agents.doctor import examine_app
from holdfast.agents.overviews import ids_from, search_agents
from holdfast.app import core_of
from holdfast.client import handles
from holdfast.client.handles import Part, StatOptions, Step, Subject
from holdfast.errors import VERSION
from holdfast.http.api.routes import Paged, Routes
from holdfast.http.api.runs import Body
from holdfast.http.api.seen import RequestScope
from holdfast.kernel.drivers import describe_url
from holdfast.kernel.queries import search_jobs
from holdfast.kernel.retention import KeepRule, Pruner
from holdfast.values import Page
from holdfast.values.jobs import FailureRecord, StatRecord
from holdfast.values.queues import shown_setting

routes = Routes("system")

_TOGETHER = 1_000
_MOST_STEPS = 10_000  # records of one answer


class PruneBody(Body):
    """Finished jobs that are old enough, as queues and settings say; `dry_run` only counts them."""

    queue: str | None = None
    dry_run: bool = False


@routes.get("/system")
async def show_system(seen: RequestScope) -> dict[str, Any]:
    """Show which release answers, and who you are."""
    you = {"name": seen.principal.name, "role": seen.principal.role, "tenant": seen.tenant}
    where = {"database": describe_url(seen.hf.settings.url)} if seen.sees_fleet else {}
    return {"version": VERSION, "you": you, **where}


@routes.get("/system/doctor")
async def show_findings(seen: RequestScope) -> list[dict[str, Any]]:
    """Check the database and the work in it for problems."""
    return [finding._asdict() for finding in await examine_app(core_of(seen.hf))]


@routes.get("/system/stats")
async def show_stats(
    seen: RequestScope,
    of: Subject = "jobs",
    by: Annotated[list[Part] | None, Query()] = None,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    step: Step | None = None,
    source: str | None = None,
    kind: str | None = None,
    state: str | None = None,
    tenant: str | None = None,
) -> list[StatRecord]:
    """Count what ended in each step of time, of jobs, runs, turns or calls: how many, how long, at what cost.

    `since` and `until` are times, or how long ago ("24h"). The last three minutes are not counted yet.
    At most 10,000 records, the newest first.
    """
    options: StatOptions = {
        "since": since,
        "until": until,
        "step": step,
        "source": source,
        "kind": kind,
        "state": state,
        "limit": _MOST_STEPS,
    }
    whose = seen.chosen(tenant)
    parts = by or []
    if of == "jobs":
        return list(await seen.hf.jobs.stats(*parts, tenant=whose, **options))
    return list(await seen.hf.runs.stats(*parts, of=of, tenant=whose, **options))


@routes.get("/system/failures")
async def list_failures(
    seen: RequestScope,
    of: Literal["jobs", "runs", "calls"] | None = None,
    kind: str | None = None,
    since: datetime | str | None = None,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 50,
    tenant: str | None = None,
) -> list[FailureRecord]:
    """List failures, those that differ only in numbers and ids as one; what failed last comes first."""
    whose = seen.chosen(tenant)
    core = core_of(seen.hf)
    database, now_us = await core.opened(), core.ports.clock.wall_us()
    wanted = {"subject": of, "kind": kind, "tenant": whose}
    return list(await handles.failures(database.transact, now_us, **wanted, since=since, limit=limit))


@routes.get("/system/search")
async def search(
    seen: RequestScope,
    q: Annotated[str, Query(min_length=2, max_length=255)],
    limit: Annotated[int, Query(ge=1, le=50)] = 10,
) -> list[dict[str, str]]:
    """Find by how an id, a session's key, or the name of an agent, a queue or a worker begins; `limit` of each noun."""
    database = await core_of(seen.hf).opened()
    found = await database.transact(search_agents, q, seen.tenant, limit)
    jobs = await database.transact(search_jobs, ids_from(q), q, seen.tenant, limit)
    return [{"noun": noun, "id": row.id, "name": row.name} for noun, row in [*found, *jobs]]


@routes.get("/system/settings")
async def list_settings(seen: RequestScope) -> list[dict[str, Any]]:
    """List every setting, its value and what it means."""
    settings = seen.hf.settings
    return [
        {
            "name": each.name,
            "value": shown_setting(each.name, getattr(settings, each.name)),
            "doc": each.metadata["doc"],
        }
        for each in fields(settings)
    ]


@routes.get("/system/audit")
async def list_audit(seen: RequestScope, page: Paged) -> Page[AuditRecord]:
    """List what was changed, and by whom, newest first."""
    return await seen.hf.access.audit.list(**page.place)


@routes.get("/system/tokens")
async def list_tokens(seen: RequestScope, page: Paged) -> Page[TokenRecord]:
    """List tokens, without what is secret of them."""
    return await seen.hf.access.tokens.list(**page.place)


@routes.post("/system/prune")
async def prune_jobs(seen: RequestScope, which: PruneBody | None = None) -> dict[str, Any]:
    """Remove finished jobs that are no longer kept, about 1,000 a call; `more`: call again."""
    wish = which or PruneBody()
    core = core_of(seen.hf)
    settings = seen.hf.settings
    keep = KeepRule(round(settings.retention.total_seconds() * 1e6), settings.retention_jobs)
    pruner = Pruner(await core.opened(), keep)
    if wish.dry_run:
        return {"prunable": await pruner.prunable(cap=10_000, queue=wish.queue)}
    removed = 0
    async for gone in pruner.thoroughly(queue=wish.queue):
        removed += gone
        if removed >= _TOGETHER:
            return {"removed": removed, "more": True}
    return {"removed": removed, "more": False}
