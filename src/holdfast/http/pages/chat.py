"""One session as a chat: what was said, what is under way, how full the conversation is. A few reads, however long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.agents.compaction.compactor import CompactionStats
from holdfast.agents.compaction.window_use import WindowUse, window_use
from holdfast.agents.events.reader import ENDED
from holdfast.agents.glances import calls_said_in, said_in_runs
from holdfast.agents.people.inquiry import Inquiry
from holdfast.agents.values.runs import RunRecord
from holdfast.agents.values.sessions import CompactionRecord, SessionRecord
from holdfast.app import core_of
from holdfast.errors import HoldfastError
from holdfast.http.api.agents import list_agents
from holdfast.http.api.paging import Paging
from holdfast.http.api.seen import Seen, Sight
from holdfast.http.pages.conversation import ConversationPart, flattened, parts_of
from holdfast.http.pages.filters import Tab
from holdfast.http.pages.routes import Pages
from holdfast.results import Usage
from holdfast.values import Page

pages = Pages()

_SAID = 60  # messages on one page
RUNS = 20
_AGENTS = Paging(None, 200)
VIEWS = (Tab("", "Nested"), Tab("flat", "Flat"))


@dataclass(frozen=True, slots=True)
class ChatView:
    """`current` is the run under way, `after` where the stream continues, `seen_turns` what is on the page of it.

    `view` says where runs that calls started are shown: folded under the call, or between what was said.
    """

    session: SessionRecord
    said: list[ConversationPart]
    earlier: str | None
    newest: bool
    runs: Sequence[RunRecord]
    names: Mapping[str, str]
    current: RunRecord | None
    inquiries: Sequence[Inquiry]
    window: WindowUse | None
    compactions: Page[CompactionRecord]
    usage: Usage
    agents: Sequence[str]
    agent: str
    after: str
    seen_turns: int
    archived: bool
    view: str
    views: tuple[Tab, ...] = VIEWS


@dataclass(frozen=True, slots=True)
class WindowView:
    stats: CompactionStats | None


@pages.page("/sessions/{id}", "session.html")
async def show_chat(
    seen: Sight,
    id: str,
    before: str | None = None,
    archived: bool = False,
    view: Literal["", "flat"] = "",
) -> ChatView:
    session = await seen.session(id)
    record = await session.refresh()
    messages = await session.latest(before=before, limit=_SAID, archived=archived)
    runs = await session.runs(limit=RUNS)
    tops = [each for each in runs if each.parent is None]
    current = next((each for each in reversed(tops) if each.state not in ENDED), None)
    transact = core_of(seen.hf).runtime().transact
    said = parts_of(messages, await transact(calls_said_in, messages))
    names = {each.id: each.agent_name for each in runs}
    if view == "flat":
        said, names = await _flat(seen, said, names)
    agents = await agents_to_ask(seen)
    return ChatView(
        session=record,
        said=said,
        earlier=messages.next,
        newest=before is None,
        runs=tops,
        names=names,
        current=current,
        inquiries=[] if current is None else await seen.runs[current.id].inquiries(limit=RUNS),
        window=await transact(window_use, record.id),
        compactions=await session.compactions(limit=RUNS),
        usage=await session.usage(),
        agents=agents,
        agent=tops[0].agent_name if tops else (agents[0] if agents else ""),
        after=_place(tops, current),
        seen_turns=max((each.turn for each in messages if current and each.run_id == current.id), default=0),
        archived=archived,
        view=view,
    )


async def _flat(
    seen: Seen, said: list[ConversationPart], names: dict[str, str]
) -> tuple[list[ConversationPart], dict[str, str]]:
    """With what the runs said that calls on this page started."""
    children = [part.call.child for part in said if part.call is not None and part.call.child is not None]
    transact = core_of(seen.hf).runtime().transact
    below = await transact(said_in_runs, children[-RUNS:], _SAID)
    messages = [message for each in below.words.values() for message in each]
    calls = await transact(calls_said_in, messages)
    parts = {run: parts_of(each, calls) for run, each in below.words.items()}
    return flattened(said, parts), {**names, **{id: run.agent_name for id, run in below.runs.items()}}


async def agents_to_ask(seen: Seen) -> list[str]:
    """Whom one can write to: this program's agents and those that are stored."""
    return sorted({each.name for each in await list_agents(seen, _AGENTS)})


def _place(tops: Sequence[RunRecord], current: RunRecord | None) -> str:
    """Where the stream of the session continues: behind what ended, or early in the run under way."""
    if current is not None:
        return f"{current.ordinal}.1"
    return f"{tops[0].ordinal}.{tops[0].events}" if tops else ""


@pages.page("/sessions/{id}/window", "window.html", like="GET /sessions/{id}/stats")
async def show_window(seen: Sight, id: str) -> WindowView:
    """What of the window could be compacted, as a part of the page: it reads all that is sent."""
    session = await seen.session(id)
    try:
        return WindowView(await session.compaction_stats())
    except HoldfastError:  # there is no run yet whose model has a window
        return WindowView(None)
