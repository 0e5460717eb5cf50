"""Runs as a list: which fail, and what they have in common; and many of them changed at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from holdfast.agents.states import RunState
from holdfast.agents.values.runs import RunRecord
from holdfast.errors import HoldfastError
from holdfast.http.api.paging import Paged
from holdfast.http.api.runs import ManyRuns, cancel_runs, list_runs, retry_runs
from holdfast.http.api.seen import Seen, Sight
from holdfast.http.pages.bulk import BulkView
from holdfast.http.pages.filters import Chip, Tab, chips, from_when
from holdfast.http.pages.forms import Filled, Form
from holdfast.http.pages.routes import Pages
from holdfast.values import Page
from holdfast.values.bulk import Bulk

pages = Pages()

Verb = Literal["retry", "cancel"]
_MOST_SELECTED = 200

TABS = (
    Tab("", "All"),
    Tab(RunState.PENDING, "Waiting"),
    Tab(RunState.STREAMING, "Running"),
    Tab(RunState.PENDING_TOOLS, "In tools"),
    Tab(RunState.AWAITING_INPUT, "Needs you"),
    Tab(RunState.FAILED, "Failed"),
    Tab(RunState.COMPLETED, "Completed"),
    Tab(RunState.CANCELLED, "Cancelled"),
)


@dataclass(frozen=True, slots=True)
class RunsView:
    runs: Page[RunRecord]
    states: tuple[Tab, ...]
    state: str
    narrowed: tuple[Chip, ...]
    filters: dict[str, str | None]


@pages.page("/runs", "runs.html")
async def show_runs(
    seen: Sight,
    page: Paged,
    agent: str | None = None,
    session: str | None = None,
    state: str | None = None,
    tenant: str | None = None,
    mode: str | None = None,
    since: str | None = None,
) -> RunsView:
    wanted: dict[str, Any] = {
        "agent": agent or None,
        "session": session or None,
        "tenant": tenant or None,
        "mode": mode or None,
    }
    found = await list_runs(seen, page, state=state or None, since=from_when(seen, since), **wanted)
    filters = {**wanted, "since": since or None}
    return RunsView(found, TABS, state or "", chips(filters), filters)


@pages.page("/runs/retry", "bulk.html", like="POST /runs/retry")
async def ask_retry(
    seen: Sight, agent: str | None = None, session: str | None = None, state: str | None = None
) -> BulkView:
    return await _bulk(seen, "retry", {"agent": agent, "session": session, "state": state}, dry_run=True)


@pages.page("/runs/cancel", "bulk.html", like="POST /runs/cancel")
async def ask_cancel(
    seen: Sight, agent: str | None = None, session: str | None = None, state: str | None = None
) -> BulkView:
    return await _bulk(seen, "cancel", {"agent": agent, "session": session, "state": state}, dry_run=True)


@pages.action("/runs/retry", template="bulk.html")
async def retry_many(seen: Sight, form: Filled) -> BulkView:
    return await _selected(seen, "retry", form) if form.all("id") else await _bulk(seen, "retry", _choice(form))


@pages.action("/runs/cancel", template="bulk.html")
async def cancel_many(seen: Sight, form: Filled) -> BulkView:
    if form.all("id"):
        return await _selected(seen, "cancel", form)
    return await _bulk(seen, "cancel", _choice(form), reason=form.text("reason") or "")


def _choice(form: Form) -> dict[str, str | None]:
    return {name: form.text(name) for name in ("agent", "session", "state", "after")}


async def _bulk(
    seen: Seen, verb: Verb, choice: dict[str, str | None], *, dry_run: bool = False, reason: str = ""
) -> BulkView:
    chosen = {name: value or None for name, value in choice.items()}
    many = ManyRuns(dry_run=dry_run, reason=reason, **chosen)
    found = await (retry_runs if verb == "retry" else cancel_runs)(seen, many)
    return BulkView("run", verb, found, chosen, not dry_run, reason)


async def _selected(seen: Seen, verb: Verb, form: Form) -> BulkView:
    """Those that were ticked; one that cannot be changed does not stop the others."""
    ids = form.all("id")[:_MOST_SELECTED]
    refused: dict[str, str] = {}
    for id in ids:
        try:
            run = await seen.run(id)
            if verb == "retry":
                await seen.runs.retry(run.id)
            else:
                await run.cancel(form.text("reason") or f"cancelled by {seen.principal.name}")
        except HoldfastError as problem:
            refused[id] = str(problem)
    changed = len(ids) - len(refused)
    found = Bulk(matched=len(ids), changed=changed, refused=refused, next=None, dry_run=False)
    return BulkView("run", verb, found, {}, True)
