"""Sessions as pages: which there are, and what can be said and done in one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.agents.values import SessionRecord
from holdfast.errors import UsageError
from holdfast.http.api.routes import Paged, Paging
from holdfast.http.api.seen import PrincipalScope, RequestScope
from holdfast.http.api.sessions import (
    NewSession,
    SessionForkBody,
    SessionMessageBody,
    compact_session,
    create_session,
    delete_session,
    fork_session,
    list_sessions,
    list_values,
    restore_session,
    send_message,
)
from holdfast.http.pages.chat import RUNS, agents_to_ask
from holdfast.http.pages.filters import MOST_VALUES, Chip, DropDown, ShownMetadata, chips, value_of
from holdfast.http.pages.forms import Filled, Form, pairs_of
from holdfast.http.pages.routes import Pages, Redirect
from holdfast.values import Page

pages = Pages()

_PROMPT = 100_000


@dataclass(frozen=True, slots=True)
class SessionsView:
    sessions: Page[SessionRecord]
    filters: dict[str, str | None]
    narrowed: tuple[Chip, ...]
    agents: Sequence[str]
    columns: tuple[str, ...]
    filter_keys: tuple[str, ...]
    drop_downs: Sequence[DropDown]


@pages.page("/sessions", "sessions.html")
async def show_sessions(
    seen: RequestScope,
    page: Paged,
    metadata: ShownMetadata,
    key: str | None = None,
    value: str | None = None,
    tenant: str | None = None,
) -> SessionsView:
    wanted = {**({key: value_of(value)} if key and value else {}), **metadata.wanted}
    found = await list_sessions(seen, page, metadata=json.dumps(wanted), tenant=tenant or None)
    filters = {"key": key or None, "value": value or None, "tenant": tenant or None}
    return SessionsView(
        sessions=found,
        filters={**filters, **metadata.asked},
        narrowed=(*(each.beside(metadata.asked) for each in chips(filters)), *metadata.chips(filters)),
        agents=await agents_to_ask(seen),
        columns=metadata.columns,
        filter_keys=metadata.filters,
        drop_downs=[] if seen.pinned else await metadata.drop_downs(partial(_values, seen)),
    )


async def _values(seen: PrincipalScope, key: str) -> Sequence[tuple[Any, int]]:
    found = await list_values(seen, key, Paging(None, MOST_VALUES))
    return [(each["value"], each["count"]) for each in found]


@pages.action("/sessions")
async def begin_session(seen: RequestScope, form: Filled) -> Redirect:
    made = await create_session(seen, NewSession(key=form.text("key"), metadata=pairs_of(form, "metadata") or None))
    if form.text("prompt"):
        await _send(seen, made.id, form)
    return Redirect("/sessions", made.id)


@pages.action("/sessions/{id}/send")
async def send(seen: RequestScope, id: str, form: Filled) -> Redirect:
    await _send(seen, id, form)
    return Redirect("/sessions", id)


async def _send(seen: PrincipalScope, id: str, form: Form) -> None:
    prompt, agent = form.text("prompt"), form.text("agent")
    if prompt is None or agent is None:
        raise UsageError("write a message, and choose the agent that answers it.")
    await send_message(seen, id, SessionMessageBody(agent=agent, prompt=prompt[:_PROMPT]))


@pages.action("/sessions/{id}/stop", like="POST /runs/{id}/interrupt")
async def stop(seen: RequestScope, id: str, form: Filled) -> Redirect:
    """End the run under way, and keep what it has written."""
    session = await seen.session(id)
    run = form.text("run") or ""
    if run not in {each.id for each in await session.runs(limit=RUNS)}:
        raise UsageError("this run is not of this session, or it is too old to be stopped here.")
    await (await seen.run(run)).interrupt(seen.principal.name)
    return Redirect("/sessions", id)


@pages.action("/sessions/{id}/fork")
async def fork(seen: RequestScope, id: str, form: Filled) -> Redirect:
    return Redirect("/sessions", (await fork_session(seen, id, SessionForkBody(key=form.text("key")))).id)


@pages.action("/sessions/{id}/compact")
async def compact(seen: RequestScope, id: str) -> Redirect:
    await compact_session(seen, id)
    return Redirect("/sessions", id)


@pages.action("/sessions/{id}/restore")
async def restore(seen: RequestScope, id: str) -> Redirect:
    await restore_session(seen, id)
    return Redirect("/sessions", id)


@pages.action("/sessions/{id}/delete", like="DELETE /sessions/{id}")
async def delete(seen: RequestScope, id: str) -> Redirect:
    await delete_session(seen, id)
    return Redirect("/sessions")
