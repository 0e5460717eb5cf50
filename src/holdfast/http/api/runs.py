"""Runs over HTTP: see them, start them, follow what they do, decide about them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response

from holdfast import durations, validation
from holdfast.agents.api.lists import newest_first
from holdfast.agents.api.options import RunOptions, moment_us
from holdfast.agents.api.waterfall import Span, below
from holdfast.agents.definition import Limits, Mode
from holdfast.agents.events.reader import ENDED
from holdfast.agents.overviews import RunMarks, mark_values, marked_page
from holdfast.agents.queries import run_weight, short_family
from holdfast.agents.runs.inbox import During
from holdfast.agents.states import RUN
from holdfast.agents.values import CallRecord, Inquiry, Message, RunRecord, Turn, run_of
from holdfast.app import core_of
from holdfast.errors import NotFound, NotUnderstood, ResultTimeout, UsageError
from holdfast.events import wire
from holdfast.http.api.answers import event_without_fleet, fitted, json_for, json_response
from holdfast.http.api.routes import API, Count, Paged, Paging, PartOfPage, Routes
from holdfast.http.api.seen import PrincipalScope, RequestScope
from holdfast.http.security.checks import too_large
from holdfast.kernel import codec
from holdfast.kernel.ids import is_id
from holdfast.values import Bulk, Page, as_json, cursor
from holdfast.values.jobs import ReasonRecord

# Runs by their metadata over HTTP: what `GET /runs?metadata=` lists, and the values that there are.


async def list_marked(
    seen: PrincipalScope, page: Paging, metadata: str, where: dict[str, Any], how: dict[str, Any]
) -> Page[RunRecord]:
    """A page of runs whose metadata contain these, the newest first."""
    validation.one_of(how["state"], "state", RUN.names)
    session = where["session"]
    marks = RunMarks(
        metadata=_object(metadata, seen.hf.settings.metadata_cap),
        tenant=where["tenant"],
        session=None if session is None else (await seen.find_session(session)).id,
        agent=where["agent"],
        parent=where["parent"],
        state=how["state"],
        mode=how["mode"],
        since=0 if how["since"] is None else moment_us(how["since"], "since"),
    )
    before = newest_first(page.after)
    if how["until"] is not None:
        before = min(before, (moment_us(how["until"], "until"), ""))
    found = await core_of(seen.hf).runtime().transact(marked_page, marks, before=before, limit=page.limit)
    further = None if found.place is None else cursor(*found.place)
    return Page(map(run_of, found.rows), next=further, looked=found.looked)


async def list_mark_values(seen: PrincipalScope, key: str, limit: int) -> list[tuple[Any, int]]:
    """The values that the newest runs have under a key of their metadata, and how many of them have each."""
    return await core_of(seen.hf).runtime().transact(mark_values, key, seen.tenant, limit)


def _object(text: str, cap: int) -> str:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UsageError("metadata is a JSON object.")
    return codec.encode(found, what="metadata", cap=cap)


routes = Routes("runs")

_LONGEST_WAIT = durations.microseconds("1m")
LARGEST_EXPORT = 64 * 1024 * 1024  # characters
_TREE = 1_000  # runs of one tree
_LONGEST_VALUE = 4_000  # characters of JSON of a value of a run in a tree
_MOST_FIELDS = 100  # of one body
Prompt = str | Annotated[list[str | dict[str, Any]], Field(max_length=2_000)]
T = TypeVar("T")


class Body(BaseModel):
    """What a request says. A field that is not known is refused, and so are more than any request has."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_count(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > _MOST_FIELDS:  # each would become an error of its own
            raise ValueError(f"a request has at most {_MOST_FIELDS} fields.")
        return given


class NewRunBody(Body):
    """A run to start: `agent` is a name or an id, `session` a key or an id."""

    agent: str
    prompt: Prompt
    session: str | None = None
    during: During | None = None
    variables: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    priority: int | None = None
    delay: str | None = None
    at: datetime | None = None
    limits: dict[str, Any] | None = None
    model: str | None = None
    mode: Mode | None = None
    answer_within: str | None = None
    require_worker: bool = False


class ReasonBody(Body):
    reason: Annotated[str, Field(max_length=2_000)] = "cancelled by its owner"


class PromptBody(Body):
    prompt: Prompt


class ForkBody(Body):
    at: int | None = None
    prompt: Prompt | None = None
    model: str | None = None
    mode: Mode = "streaming"


class ManyRuns(Body):
    """Which runs; `dry_run` only counts them. Continue with `next` as `after`.

    `error` and `message` are those of a group of `GET /system/failures`: only runs that failed so.
    """

    dry_run: bool = False
    agent: str | None = None
    session: str | None = None
    state: str | None = None
    error: str | None = None
    message: str | None = None
    after: str | None = None
    reason: Annotated[str, Field(max_length=2_000)] = ""

    @property
    def choice(self) -> dict[str, Any]:
        where = {"agent": self.agent, "session": self.session, "error": self.error, "message": self.message}
        return {**where, "after": self.after, **self.in_state}

    @property
    def in_state(self) -> dict[str, str]:
        return {} if self.state is None else {"state": self.state}


@routes.get("/runs")
async def list_runs(
    seen: RequestScope,
    page: Paged,
    agent: str | None = None,
    session: str | None = None,
    state: str | None = None,
    parent: str | None = None,
    tenant: str | None = None,
    mode: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    metadata: str | None = None,
    count: Count = False,
) -> Page[RunRecord]:
    """List runs, newest first. `agent` is a name or an id, `session` a key or an id.

    `metadata` is a JSON object that theirs contain, among the newest 10,000.
    """
    chosen = seen.chosen(tenant)
    where: dict[str, Any] = {"agent": agent, "session": session, "parent": parent, "tenant": chosen}
    how: dict[str, Any] = {"state": state, "mode": mode, "since": since, "until": until}
    if seen.pinned:
        await _check_named(seen, session, parent)
    if metadata:
        if count:
            raise UsageError("runs are not counted by their metadata: leave count out.")
        found = await list_marked(seen, page, metadata, where, how)
    else:
        found = await seen.runs.list(**where, **how, **page.place)
    if not seen.pinned:
        found.total = await seen.runs.count(**where, **how) if count else None
        return found
    return PartOfPage(await seen.shown(found, lambda run: run.session), found)


async def _check_named(seen: PrincipalScope, session: str | None, parent: str | None) -> None:
    """`NotFound` for what a filter names and is not there for this principal."""
    if session is not None:
        await seen.find_session(session)
    if parent is not None:
        await seen.run(parent)


def plainly(kind: type[T], given: Mapping[str, Any], what: str) -> T:
    """A value of a body, as Python has it. What does not fit is a mistake of the caller."""
    known = [each.name for each in fields(cast(Any, kind))]
    if unknown := sorted(set(given) - set(known)):
        raise UsageError(f"{what} has no {unknown[0][:80]!r}: it has {', '.join(known)}.")
    try:
        return codec.read(kind, given, what=what)
    except NotUnderstood as problem:
        raise UsageError(f"{what} does not fit: {problem.problem}.") from None


async def start(seen: PrincipalScope, agent: str, prompt: Prompt, session: Any, new: dict[str, Any]) -> RunRecord:
    """Start a run, as one noun or another asks for it; returns it as it stands."""
    limits = new.pop("limits", None)
    given = None if limits is None else plainly(Limits, limits, "limits")
    options: RunOptions = {**new, "limits": given, "session": session}  # type: ignore[typeddict-item]
    if seen.tenant is not None:
        options["tenant"] = seen.tenant
    named = await seen.agents.named(agent)
    if (model := new.get("model")) not in named.spec.models_for():
        await seen.check_models(model)
    run = await named.enqueue(prompt, **options)
    return await seen.runs.get(run.id)


@routes.post("/runs", creates=True)
async def create_run(seen: RequestScope, new: NewRunBody) -> RunRecord:
    """Start a run. With an Idempotency-Key the same request again is the same run."""
    session: Any = new.session
    if seen.pinned:
        session = await _pinned_session(seen, new.session)
    options = new.model_dump(exclude={"agent", "prompt", "session"}, exclude_none=True)
    return await start(seen, new.agent, new.prompt, session, options)


async def _pinned_session(seen: PrincipalScope, key: str | None) -> Any:
    """A session that has what is pinned: a new one, or one that has it already."""
    if key is not None and is_id(key):
        return await seen.session(key)
    made = await (seen.part or seen.hf).session(key, metadata=seen.with_pinned(None))
    if not await seen.shows(made.id):
        raise NotFound(f"there is no session {key} in this database.")
    return made


@routes.get("/runs/compare", whole="/runs/{id}/calls")
async def compare_runs(seen: RequestScope, a: str, b: str) -> dict[str, Any]:
    """Compare two runs: outcome, answers, tools, tokens, cost."""
    sides = [await seen.run(a), await seen.run(b)]
    comparison: dict[str, Any] = as_json(await seen.runs.compare(*sides))
    return comparison


@routes.post("/runs/retry")
async def retry_runs(seen: RequestScope, many: ManyRuns) -> Bulk:
    """Enqueue ended runs again, at most 1,000 a call, each once; failed ones unless `state` says otherwise."""
    await _check_bulk(seen, many)
    return await seen.runs.retry_some(dry_run=many.dry_run, **many.choice)


@routes.post("/runs/cancel")
async def cancel_runs(seen: RequestScope, many: ManyRuns) -> Bulk:
    """Cancel runs that have not ended, at most 1,000 a call."""
    await _check_bulk(seen, many)
    return await seen.runs.cancel_some(dry_run=many.dry_run, reason=many.reason, **many.choice)


async def _check_bulk(seen: PrincipalScope, many: ManyRuns) -> None:
    """Where sessions are pinned, a bulk call is about one of them."""
    if seen.pinned:
        await seen.find_session(many.session or "")


@routes.get("/runs/{id}")
async def show_run(seen: RequestScope, id: str) -> RunRecord:
    """Show one run."""
    return await (await seen.run(id)).refresh()


@routes.get("/runs/{id}/result")
async def show_result(seen: RequestScope, id: str, wait: str = "0s") -> Response:
    """Show how a run ended; `wait` for it up to a minute ("30s"). 202 while it has not ended."""
    run = await seen.run(id)
    span = min(durations.microseconds(wait), _LONGEST_WAIT)
    now = await run.refresh()
    if now.state in ENDED or span:
        try:
            result = await run.result(timeout=f"{span or _LONGEST_WAIT}us")
            ended = await asyncio.to_thread(json_for, seen, result)
            return json_response(fitted(ended, lambda _: f"see GET {API}/runs/{run.id}?whole=true"))
        except ResultTimeout:
            now = await run.refresh()
    return json_response({"id": run.id, "state": now.state}, 202)


@routes.get("/runs/{id}/tree", whole="/runs/{id}")
async def show_tree(seen: RequestScope, id: str) -> list[RunRecord]:
    """List the run and all runs below it, oldest first; at most 1,000. A value of more than 4,000 characters is cut."""
    top = await (await seen.run(id)).refresh()
    cut = json.dumps({"cut": f"see GET {API}/runs/{{id}}?whole=true"})
    family = await core_of(seen.hf).runtime().transact(short_family, top.root, _TREE, most=_LONGEST_VALUE, cut=cut)
    return below(top, [run_of(each) for each in family])


@routes.get("/runs/{id}/turns")
async def list_turns(seen: RequestScope, id: str, page: Paged) -> Page[Turn]:
    """List the turns of a run, in their order."""
    return await (await seen.run(id)).turns(**page.place)


@routes.get("/runs/{id}/calls")
async def list_calls(seen: RequestScope, id: str, page: Paged) -> Page[CallRecord]:
    """List the tool calls of a run, in the order in which they were asked for."""
    return await (await seen.run(id)).calls(**page.place)


@routes.get("/runs/{id}/children")
async def list_children(seen: RequestScope, id: str, page: Paged) -> Page[RunRecord]:
    """List the runs that its tool calls started, newest first."""
    return await (await seen.run(id)).children(**page.place)


@routes.get("/runs/{id}/inquiries")
async def list_asked(seen: RequestScope, id: str, page: Paged) -> Page[Inquiry]:
    """List what the run and the runs below it wait for a person to decide."""
    return await (await seen.run(id)).inquiries(**page.place)


@routes.get("/runs/{id}/messages")
async def list_run_messages(seen: RequestScope, id: str, page: Paged, archived: bool = False) -> Page[Message]:
    """List the messages of the run's session that belong to this run."""
    return await (await seen.run(id)).messages(**page.place, archived=archived)


@routes.get("/runs/{id}/events")
async def list_events(seen: RequestScope, id: str, page: Paged) -> Page[dict[str, Any]]:
    """List the events that are stored so far."""
    run = await seen.run(id)
    found = await run.events(page.after or 0, limit=page.limit)
    events = [{"type": kind, **data} for kind, data in map(wire, found)]
    return Page(events if seen.sees_fleet else map(event_without_fleet, events), next=found.next)


@routes.get("/runs/{id}/usage")
async def show_usage(seen: RequestScope, id: str) -> dict[str, Any]:
    """Show what the run and all runs below it have used."""
    return (await (await seen.run(id)).usage()).as_json()


@routes.get("/runs/{id}/why")
async def explain_run(seen: RequestScope, id: str) -> list[ReasonRecord]:
    """Explain why the run does not continue; empty when nothing holds it back."""
    return list(await seen.why((await seen.run(id)).id))


@routes.get("/runs/{id}/waterfall", whole="/runs/{id}/turns")
async def show_waterfall(seen: RequestScope, id: str) -> list[Span]:
    """List the turns, calls and runs below a run, with when each began and ended."""
    return list(await (await seen.run(id)).waterfall(workers=seen.sees_fleet))


@routes.get("/runs/{id}/export")
async def export_run(seen: RequestScope, id: str, partial: bool = False) -> Response:
    """Download a run as a capsule: one SQLite file, without secrets."""
    run = await seen.run(id)
    await _check_weight(seen, await run.refresh())
    folder = Path(mkdtemp(prefix="holdfast-"))
    file = folder / f"{run.id}.capsule"

    def remove() -> None:
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()

    try:
        await run.export(file, partial=partial, traces=seen.sees_fleet)
    except BaseException:
        remove()
        raise
    named = {"content-disposition": f'attachment; filename="{run.id}.db"', "cache-control": "no-store"}
    return FileResponse(file, headers=named, media_type="application/vnd.sqlite3", background=BackgroundTask(remove))


async def _check_weight(seen: PrincipalScope, run: RunRecord) -> None:
    """`Denied` for a run that would take too much memory to export while others are served."""
    weight = await core_of(seen.hf).runtime().transact(run_weight, run.root, run.session)
    if weight > LARGEST_EXPORT:
        raise too_large(
            f"run {run.id} has {weight:,} characters, and {LARGEST_EXPORT:,} are exported over HTTP at most.",
            f"Export it with `holdfast runs export {run.id}`.",
        )


@routes.post("/runs/{id}/cancel")
async def cancel_run(seen: RequestScope, id: str, why: ReasonBody | None = None) -> dict[str, str]:
    """Cancel the run, its tool calls and every run below it; answers its state now."""
    return {"id": id, "state": await (await seen.run(id)).cancel((why or ReasonBody()).reason)}


@routes.post("/runs/{id}/interrupt")
async def interrupt_run(seen: RequestScope, id: str) -> RunRecord:
    """End the run where it is, and keep what the model has written."""
    run = await seen.run(id)
    await run.interrupt(seen.principal.name)
    return await run.refresh()


@routes.post("/runs/{id}/steer", creates=True, made=200)
async def steer_run(seen: RequestScope, id: str, said: PromptBody) -> RunRecord:
    """Send a message to the active run: the model reads it with its next turn."""
    run = await seen.run(id)
    await run.steer(said.prompt)
    return await run.refresh()


@routes.post("/runs/{id}/fork", creates=True)
async def fork_run(seen: RequestScope, id: str, fork: ForkBody | None = None) -> RunRecord:
    """Continue from where a run was before turn `at`, in a new session."""
    wish, run = fork or ForkBody(), await seen.run(id)
    await seen.check_models(wish.model)
    forked = await run.fork(wish.at, prompt=wish.prompt, model=wish.model, mode=wish.mode)
    return await seen.runs.get(forked.id)


@routes.post("/runs/{id}/retry", creates=True)
async def retry_run(seen: RequestScope, id: str) -> RunRecord:
    """Enqueue an ended run again: same prompt, same options, same session."""
    again = await seen.runs.retry((await seen.run(id)).id)
    return await seen.runs.get(again.id)
