"""One session as a chat: what was said, what is under way, how full the conversation is. A few reads, however long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from holdfast.agents.compaction.compactor import CompactionStats
from holdfast.agents.compaction.measure import WindowUse, window_use
from holdfast.agents.events.reader import ENDED
from holdfast.agents.overviews import calls_of_messages, last_texts_of_runs
from holdfast.agents.values import CallRecord, CompactionRecord, Inquiry, Message, RunRecord, SessionRecord
from holdfast.app import core_of
from holdfast.client.results import Usage
from holdfast.errors import HoldfastError
from holdfast.http.api.agents import list_agents
from holdfast.http.api.routes import Paging
from holdfast.http.api.seen import PrincipalScope, RequestScope
from holdfast.http.pages.filters import Tab
from holdfast.http.pages.routes import Pages
from holdfast.values import Page

# Conversations: messages of the provider's making as what people read, each tool call with what came of it. Pure.


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationPart:
    """One thing that was said or done. `data` is what was said; a tool has `input` and `output`, and its `call`."""

    kind: Literal["user", "assistant", "thinking", "tool", "other"]
    message: str
    run: str
    turn: int
    at: datetime
    data: Any = ""
    name: str = ""
    input: Any = None
    output: Any = None
    answered: bool = False
    is_error: bool = False
    call: CallRecord | None = None
    live: bool = True
    preserved: bool = False
    retired: bool = False
    depth: int = 0


def parts_of(messages: Sequence[Message], calls: Iterable[CallRecord] = ()) -> list[ConversationPart]:
    """What was said, in its order. Results of tools stand with their calls."""
    records = {call.tool_use_id: call for call in calls}
    results = {
        str(block.get("tool_use_id")): block
        for message in messages
        for block in message.blocks
        if block.get("type") == "tool_result"
    }
    return [part for message in messages for part in _parts(message, records, results)]


def flattened(
    parts: Iterable[ConversationPart], below: Mapping[str, Sequence[ConversationPart]]
) -> list[ConversationPart]:
    """With what was said in the runs that calls started, each behind its call."""
    found: list[ConversationPart] = []
    for part in parts:
        child = None if part.call is None else part.call.child
        found += [part, *(replace(each, depth=part.depth + 1) for each in below.get(child or "", ()))]
    return found


def _parts(message: Message, records: dict[str, CallRecord], results: dict[str, Any]) -> Iterator[ConversationPart]:
    for block in message.blocks:
        match block.get("type"):
            case "text":
                if str(block.get("text", "")).strip():
                    yield _part(message, "assistant" if message.role == "assistant" else "user", data=block["text"])
            case "thinking":
                yield _part(message, "thinking", data=block.get("thinking", ""))
            case "tool_use":
                yield _tool(message, block, records, results)
            case "tool_result":
                continue  # it stands with its call
            case _:
                yield _part(message, "other", data=block)


def _tool(message: Message, block: Any, records: dict[str, CallRecord], results: dict[str, Any]) -> ConversationPart:
    id = str(block.get("id"))
    result, call = results.get(id), records.get(id)
    output = None if result is None else result_text(result.get("content"))
    if output is None and call is not None:
        output = call.output
    return _part(
        message,
        "tool",
        name=str(block.get("name", "")),
        input=block.get("input"),
        output=output,
        answered=output is not None,
        is_error=bool(result and result.get("is_error")) or bool(call and call.is_error),
        call=call,
    )


def result_text(content: Any) -> Any:
    """What a tool returned: text where it is text."""
    if isinstance(content, list) and all(isinstance(each, dict) and each.get("type") == "text" for each in content):
        return "\n".join(str(each.get("text", "")) for each in content)
    return content


def _part(message: Message, kind: Any, **fields: Any) -> ConversationPart:
    return ConversationPart(
        kind=kind,
        message=message.id,
        run=message.run_id,
        turn=message.turn,
        at=message.created_at,
        live=message.live,
        preserved=message.preserved,
        retired=message.retired,
        **fields,
    )


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
    seen: RequestScope,
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
    said = parts_of(messages, await transact(calls_of_messages, messages))
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
    seen: PrincipalScope, said: list[ConversationPart], names: dict[str, str]
) -> tuple[list[ConversationPart], dict[str, str]]:
    """With what the runs said that calls on this page started."""
    children = [part.call.child for part in said if part.call is not None and part.call.child is not None]
    transact = core_of(seen.hf).runtime().transact
    below = await transact(last_texts_of_runs, children[-RUNS:], _SAID)
    messages = [message for each in below.words.values() for message in each]
    calls = await transact(calls_of_messages, messages)
    parts = {run: parts_of(each, calls) for run, each in below.words.items()}
    return flattened(said, parts), {**names, **{id: run.agent_name for id, run in below.runs.items()}}


async def agents_to_ask(seen: PrincipalScope) -> list[str]:
    """Whom one can write to: this program's agents and those that are stored."""
    return sorted({each.name for each in await list_agents(seen, _AGENTS)})


def _place(tops: Sequence[RunRecord], current: RunRecord | None) -> str:
    """Where the stream of the session continues: behind what ended, or early in the run under way."""
    if current is not None:
        return f"{current.ordinal}.1"
    return f"{tops[0].ordinal}.{tops[0].events}" if tops else ""


@pages.page("/sessions/{id}/window", "window.html", like="GET /sessions/{id}/stats")
async def show_window(seen: RequestScope, id: str) -> WindowView:
    """What of the window could be compacted, as a part of the page: it reads all that is sent."""
    session = await seen.session(id)
    try:
        return WindowView(await session.compaction_stats())
    except HoldfastError:  # there is no run yet whose model has a window
        return WindowView(None)
