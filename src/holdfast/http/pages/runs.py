"""Runs as a list: which fail, and what they have in common; and many of them changed at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Query

from holdfast.agents.overviews import open_below
from holdfast.agents.states import RunState
from holdfast.agents.values import RunRecord
from holdfast.app import core_of
from holdfast.errors import HoldfastError
from holdfast.http.api.routes import Paged
from holdfast.http.api.runs import ManyRuns, cancel_runs, list_mark_values, list_runs, retry_runs
from holdfast.http.api.seen import PrincipalScope, RequestScope
from holdfast.http.pages.filters import MOST_VALUES, Chip, DropDown, ShownMetadata, Tab, chips, from_when
from holdfast.http.pages.forms import BulkView, Filled, Form, over_pages
from holdfast.http.pages.routes import Pages
from holdfast.values import Bulk, Page

pages = Pages()

Verb = Literal["retry", "cancel"]
Ticked = Annotated[list[str], Query(default_factory=list)]
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
    """`bulk_fits`: all runs that fit can be changed at once, because nothing else narrows the list."""

    runs: Page[RunRecord]
    states: tuple[Tab, ...]
    state: str
    narrowed: tuple[Chip, ...]
    filters: dict[str, str | None]
    columns: tuple[str, ...]
    drop_downs: Sequence[DropDown]
    bulk_fits: bool


@pages.page("/runs", "runs.html")
async def show_runs(
    seen: RequestScope,
    page: Paged,
    metadata: ShownMetadata,
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
    marks = json.dumps(metadata.wanted) if metadata.chosen else None
    found = await list_runs(seen, page, state=state or None, since=from_when(seen, since), metadata=marks, **wanted)
    filters = {**wanted, "since": since or None}
    narrowed = (*(each.beside(metadata.asked) for each in chips(filters)), *metadata.chips(filters))
    return RunsView(
        runs=found,
        states=TABS,
        state=state or "",
        narrowed=narrowed,
        filters={**filters, **metadata.asked},
        columns=metadata.columns,
        drop_downs=[] if seen.pinned else await metadata.drop_downs(partial(_values, seen)),
        bulk_fits=not (tenant or mode or since or metadata.chosen),
    )


async def _values(seen: PrincipalScope, key: str) -> Sequence[tuple[Any, int]]:
    return await list_mark_values(seen, key, MOST_VALUES)


@pages.page("/runs/retry", "bulk.html", like="POST /runs/retry")
async def ask_retry(
    seen: RequestScope,
    id: Ticked,
    agent: str | None = None,
    session: str | None = None,
    state: str | None = None,
    error: str | None = None,
    message: str | None = None,
) -> BulkView:
    """`error` and `message` are those of a group of failures."""
    if id:
        return await _asked_for(seen, "retry", id)
    choice = {"agent": agent, "session": session, "state": state, "error": error, "message": message}
    return await _bulk(seen, "retry", choice, dry_run=True)


@pages.page("/runs/cancel", "bulk.html", like="POST /runs/cancel")
async def ask_cancel(
    seen: RequestScope, id: Ticked, agent: str | None = None, session: str | None = None, state: str | None = None
) -> BulkView:
    if id:
        return await _asked_for(seen, "cancel", id)
    return await _bulk(seen, "cancel", {"agent": agent, "session": session, "state": state}, dry_run=True)


@pages.action("/runs/retry", template="bulk.html")
async def retry_many(seen: RequestScope, form: Filled) -> BulkView:
    if form.all("id"):
        return await _selected(seen, "retry", form)
    return await _bulk(seen, "retry", _choice(form), reason=form.text("reason") or "")


@pages.action("/runs/cancel", template="bulk.html")
async def cancel_many(seen: RequestScope, form: Filled) -> BulkView:
    if form.all("id"):
        return await _selected(seen, "cancel", form)
    return await _bulk(seen, "cancel", _choice(form), reason=form.text("reason") or "")


async def _asked_for(seen: PrincipalScope, verb: Verb, ids: Sequence[str]) -> BulkView:
    """What will happen to those that were ticked."""
    known = [(await seen.run(each)).id for each in ids[:_MOST_SELECTED]]
    found = Bulk(matched=len(known), changed=0, refused={}, next=None, dry_run=True)
    ends = verb == "cancel"
    below = await core_of(seen.hf).runtime().transact(open_below, known) if ends else None
    return BulkView("run", verb, found, {}, done=False, ids=tuple(known), below=below)


def _choice(form: Form) -> dict[str, str | None]:
    return {name: form.text(name) for name in ("agent", "session", "state", "error", "message", "after")}


async def _bulk(
    seen: PrincipalScope, verb: Verb, choice: dict[str, str | None], *, dry_run: bool = False, reason: str = ""
) -> BulkView:
    chosen = {name: value or None for name, value in choice.items()}
    many = ManyRuns(dry_run=dry_run, reason=reason, **chosen)
    found = await over_pages(partial(retry_runs if verb == "retry" else cancel_runs, seen), many)
    return BulkView("run", verb, found, chosen, not dry_run, reason)


async def _selected(seen: PrincipalScope, verb: Verb, form: Form) -> BulkView:
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
