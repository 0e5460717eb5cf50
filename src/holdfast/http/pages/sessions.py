"""Sessions and chat as pages: what was said, how full the conversation is, and what is said next."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.agents.api.session import Session
from holdfast.agents.compaction.compactor import CompactionStats
from holdfast.agents.events.reader import ENDED
from holdfast.agents.people.inquiry import Inquiry
from holdfast.agents.values.runs import CallRecord, RunRecord
from holdfast.agents.values.sessions import CompactionRecord, SessionRecord
from holdfast.errors import HoldfastError, UsageError
from holdfast.http.api.agents import list_agents
from holdfast.http.api.paging import Paged, Paging
from holdfast.http.api.seen import Seen, Sight
from holdfast.http.api.sessions import (
    ForkingSession,
    NewSession,
    Sending,
    compact_session,
    create_session,
    delete_session,
    fork_session,
    list_sessions,
    restore_session,
    send_message,
)
from holdfast.http.pages.conversation import ConversationPart, parts_of
from holdfast.http.pages.filters import Chip, chips
from holdfast.http.pages.forms import Filled, Form
from holdfast.http.pages.pairs import pairs_of
from holdfast.http.pages.routes import Go, Pages
from holdfast.results import Usage
from holdfast.values import Page

pages = Pages()

_SAID = 60  # messages on one page
_RUNS = 20
_AGENTS = Paging(None, 200)
_PROMPT = 100_000


@dataclass(frozen=True, slots=True)
class SessionsView:
    sessions: Page[SessionRecord]
    filters: dict[str, str | None]
    narrowed: tuple[Chip, ...]
    agents: Sequence[str]


@dataclass(frozen=True, slots=True)
class ChatView:
    """`current` is the run under way, `after` where the stream continues, `seen_turns` what is on the page of it."""

    session: SessionRecord
    said: list[ConversationPart]
    earlier: str | None
    newest: bool
    runs: Sequence[RunRecord]
    names: dict[str, str]
    current: RunRecord | None
    inquiries: Sequence[Inquiry]
    stats: CompactionStats | None
    compactions: Page[CompactionRecord]
    usage: Usage
    agents: Sequence[str]
    agent: str
    after: str
    seen_turns: int
    archived: bool


@pages.page("/sessions", "sessions.html")
async def show_sessions(
    seen: Sight, page: Paged, key: str | None = None, value: str | None = None, tenant: str | None = None
) -> SessionsView:
    wanted = {key: _plain(value)} if key and value else {}
    found = await list_sessions(seen, page, metadata=json.dumps(wanted), tenant=tenant or None)
    filters = {"key": key or None, "value": value or None, "tenant": tenant or None}
    return SessionsView(found, filters, chips(filters), await _agents(seen))


def _plain(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


async def _agents(seen: Seen) -> list[str]:
    """Whom one can write to: this program's agents and those that are stored."""
    return sorted({each.name for each in await list_agents(seen, _AGENTS)})


@pages.page("/sessions/{id}", "session.html")
async def show_chat(seen: Sight, id: str, before: str | None = None, archived: bool = False) -> ChatView:
    session = await seen.session(id)
    record = await session.refresh()
    messages = await session.latest(before=before, limit=_SAID, archived=archived)
    runs = await session.runs(limit=_RUNS)
    tops = [each for each in runs if each.parent is None]
    current = next((each for each in reversed(tops) if each.state not in ENDED), None)
    calls = await _calls(seen, {each.run_id for each in messages})
    agents = await _agents(seen)
    return ChatView(
        session=record,
        said=parts_of(messages, calls),
        earlier=messages.next,
        newest=before is None,
        runs=tops,
        names={each.id: each.agent_name for each in runs},
        current=current,
        inquiries=[] if current is None else await seen.runs[current.id].inquiries(limit=_RUNS),
        stats=await _stats(session),
        compactions=await session.compactions(limit=_RUNS),
        usage=await session.usage(),
        agents=agents,
        agent=tops[0].agent_name if tops else (agents[0] if agents else ""),
        after=_place(tops, current),
        seen_turns=max((each.turn for each in messages if current and each.run_id == current.id), default=0),
        archived=archived,
    )


async def _calls(seen: Seen, runs: set[str]) -> list[CallRecord]:
    found: list[CallRecord] = []
    for id in sorted(runs)[-_RUNS:]:
        try:
            found += await seen.runs[id].calls(limit=_SAID)
        except HoldfastError:  # retention may have removed the run and kept what was said
            continue
    return found


async def _stats(session: Session) -> CompactionStats | None:
    try:
        return await session.compaction_stats()
    except HoldfastError:  # there is no run yet whose model has a window
        return None


def _place(tops: Sequence[RunRecord], current: RunRecord | None) -> str:
    """Where the stream of the session continues: behind what ended, or early in the run under way."""
    if current is not None:
        return f"{current.ordinal}.1"
    return f"{tops[0].ordinal}.{tops[0].events}" if tops else ""


@pages.action("/sessions")
async def begin_session(seen: Sight, form: Filled) -> Go:
    made = await create_session(seen, NewSession(key=form.text("key"), metadata=pairs_of(form, "metadata") or None))
    if form.text("prompt"):
        await _send(seen, made.id, form)
    return Go("/sessions", made.id)


@pages.action("/sessions/{id}/send")
async def send(seen: Sight, id: str, form: Filled) -> Go:
    await _send(seen, id, form)
    return Go("/sessions", id)


async def _send(seen: Seen, id: str, form: Form) -> None:
    prompt, agent = form.text("prompt"), form.text("agent")
    if prompt is None or agent is None:
        raise UsageError("write a message, and choose the agent that answers it.")
    await send_message(seen, id, Sending(agent=agent, prompt=prompt[:_PROMPT]))


@pages.action("/sessions/{id}/stop", like="POST /runs/{id}/interrupt")
async def stop(seen: Sight, id: str, form: Filled) -> Go:
    """End the run under way, and keep what it has written."""
    session = await seen.session(id)
    run = form.text("run") or ""
    if run not in {each.id for each in await session.runs(limit=_RUNS)}:
        raise UsageError("this run is not of this session, or it is too old to be stopped here.")
    await (await seen.run(run)).interrupt(seen.principal.name)
    return Go("/sessions", id)


@pages.action("/sessions/{id}/fork")
async def fork(seen: Sight, id: str, form: Filled) -> Go:
    return Go("/sessions", (await fork_session(seen, id, ForkingSession(key=form.text("key")))).id)


@pages.action("/sessions/{id}/compact")
async def compact(seen: Sight, id: str) -> Go:
    await compact_session(seen, id)
    return Go("/sessions", id)


@pages.action("/sessions/{id}/restore")
async def restore(seen: Sight, id: str) -> Go:
    await restore_session(seen, id)
    return Go("/sessions", id)


@pages.action("/sessions/{id}/delete", like="DELETE /sessions/{id}")
async def delete(seen: Sight, id: str) -> Go:
    await delete_session(seen, id)
    return Go("/sessions")
