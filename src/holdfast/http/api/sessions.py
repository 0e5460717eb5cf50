"""Sessions over HTTP: conversations, what was said in them, and what is said next."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from holdfast.agents.compaction.compactor import CompactionStats
from holdfast.agents.compaction.config import Compaction
from holdfast.agents.runs.inbox import During
from holdfast.agents.values import CompactionRecord, Message, RunRecord, SessionRecord
from holdfast.errors import UsageError
from holdfast.http.api.routes import MOST_COUNTED, Count, Paged, Routes
from holdfast.http.api.runs import Body, NewRunBody, plainly, start
from holdfast.http.api.seen import RequestScope
from holdfast.values import Page

routes = Routes("sessions")

_END = "end"


class NewSession(Body):
    """A session to make, or to find by its key."""

    key: str | None = None
    parent: str | None = None
    metadata: dict[str, Any] | None = None
    during: During | None = None


class ChangedSession(Body):
    metadata: dict[str, Any] | None = None
    during: During | None = None


class SessionMessageBody(NewRunBody):
    """A message to an agent in this session."""

    session: None = None


class CompactionBody(Body):
    """How to compact; what is left out is as the session's agent says."""

    config: dict[str, Any] | None = None


class SessionForkBody(Body):
    at: int | None = None
    key: str | None = None


class PreserveBody(Body):
    message: str
    preserved: bool = True


@routes.get("/sessions")
async def list_sessions(
    seen: RequestScope,
    page: Paged,
    metadata: str | None = None,
    parent: str | None = None,
    tenant: str | None = None,
    count: Count = False,
) -> Page[SessionRecord]:
    """List sessions, newest first. `metadata` is a JSON object that theirs contain."""
    wanted = seen.with_pinned(_object(metadata, "metadata"))
    chosen = seen.chosen(tenant)
    if seen.pinned and parent is not None:
        await seen.find_session(parent)
    found = await seen.sessions.list(metadata=wanted, parent=parent, tenant=chosen, **page.place)
    if count:
        found.total = await seen.sessions.count(metadata=wanted, parent=parent, tenant=chosen, cap=MOST_COUNTED)
    return found


def _object(text: str | None, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"{what} is a JSON object.")
    return found


@routes.post("/sessions", creates=True)
async def create_session(seen: RequestScope, new: NewSession) -> SessionRecord:
    """Make a session. With a `key`, the session that has it, if there is one."""
    parent = None if new.parent is None else (await seen.find_session(new.parent)).id
    options: dict[str, Any] = {"metadata": seen.with_pinned(new.metadata), "parent": parent, "during": new.during}
    made = await (seen.part or seen.hf).session(new.key, **options)
    return await seen.find_session(made.id)


@routes.get("/sessions/values")
async def list_values(seen: RequestScope, key: str, page: Paged) -> Page[dict[str, Any]]:
    """List the values under a key of the metadata of the newest 10,000 sessions, each with how many have it."""
    if seen.pinned:
        raise UsageError("metadata are pinned here: the values of other sessions are not shown.")
    found = await seen.sessions.values(key, **page.place, cap=MOST_COUNTED)
    return Page([{"value": value, "count": count} for value, count in found], next=found.next)


@routes.get("/sessions/{id}")
async def show_session(seen: RequestScope, id: str) -> SessionRecord:
    """Show one session, by its id or its key."""
    return await seen.find_session(id)


@routes.patch("/sessions/{id}")
async def update_session(seen: RequestScope, id: str, change: ChangedSession) -> SessionRecord:
    """Change the metadata, or what becomes of messages that come while a run is under way."""
    session = await seen.session(id)
    metadata = None if change.metadata is None else seen.with_pinned(change.metadata)
    return await session.update(metadata=metadata, during=change.during)


@routes.delete("/sessions/{id}")
async def delete_session(seen: RequestScope, id: str) -> Response:
    """Remove a session with its messages and runs."""
    await (await seen.session(id)).delete()
    return Response(status_code=204)


@routes.get("/sessions/{id}/messages")
async def list_messages(
    seen: RequestScope, id: str, page: Paged, archived: bool = False, before: str | None = None
) -> Page[Message]:
    """List what was said, in its order. `archived`: also what a compaction took out.

    With `before` it is listed backwards, the last message first: from the end ("end"), or from a `next` on.
    """
    session = await seen.session(id)
    if before is None:
        return await session.messages(**page.place, archived=archived)
    place = page.after or (None if before == _END else before)
    found = await session.latest(before=place, limit=page.limit, archived=archived)
    return Page(found[::-1], next=found.next)


@routes.get("/sessions/{id}/runs")
async def list_session_runs(seen: RequestScope, id: str, page: Paged) -> Page[RunRecord]:
    """List the runs of the session, newest first."""
    return await (await seen.session(id)).runs(**page.place)


@routes.get("/sessions/{id}/usage")
async def show_session_usage(seen: RequestScope, id: str) -> dict[str, Any]:
    """Show what the session's runs and compactions have used."""
    return (await (await seen.session(id)).usage()).as_json()


@routes.get("/sessions/{id}/compactions")
async def list_compactions(seen: RequestScope, id: str, page: Paged) -> Page[CompactionRecord]:
    """List the compactions of the session, newest first."""
    return await (await seen.session(id)).compactions(**page.place)


@routes.get("/sessions/{id}/stats")
async def show_session_stats(seen: RequestScope, id: str) -> CompactionStats:
    """Show how full the session is, and how much of it could be compacted."""
    return await (await seen.session(id)).compaction_stats()


@routes.post("/sessions/{id}/send", creates=True)
async def send_message(seen: RequestScope, id: str, message: SessionMessageBody) -> RunRecord:
    """Send a message to an agent in this session; answers the run that will answer it."""
    session = await seen.session(id)
    options = message.model_dump(exclude={"agent", "prompt", "session"}, exclude_none=True)
    return await start(seen, message.agent, message.prompt, session, options)


@routes.post("/sessions/{id}/compact", creates=True, made=200)
async def compact_session(seen: RequestScope, id: str, how: CompactionBody | None = None) -> CompactionRecord:
    """Compact the history that is sent to models; the originals are kept."""
    given = None if how is None or how.config is None else plainly(Compaction, how.config, "config")
    await seen.check_models(None if given is None else given.summarizer)
    return await (await seen.session(id)).compact(given)


@routes.post("/sessions/{id}/restore")
async def restore_session(seen: RequestScope, id: str) -> CompactionRecord:
    """Undo the latest compaction."""
    return await (await seen.session(id)).restore()


@routes.post("/sessions/{id}/fork", creates=True)
async def fork_session(seen: RequestScope, id: str, fork: SessionForkBody | None = None) -> SessionRecord:
    """Make a session with a copy of this conversation, up to a message or all of it."""
    wish = fork or SessionForkBody()
    made = await (await seen.session(id)).fork(wish.at, key=wish.key)
    return await seen.find_session(made.id)


@routes.post("/sessions/{id}/preserve")
async def preserve_message(seen: RequestScope, id: str, which: PreserveBody) -> SessionRecord:
    """Mark a message so that no compaction touches it, or remove the mark."""
    session = await seen.session(id)
    await session.preserve(which.message, which.preserved)
    return await session.refresh()
