"""One run: why it stands, where time and money went, what was said, and what one can do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.agents.api.run import Run
from holdfast.agents.events.reader import ENDED
from holdfast.agents.listing_rows import OpenCounts
from holdfast.agents.overviews import calls_of_messages, open_below
from holdfast.agents.values import Inquiry, RunRecord, Turn
from holdfast.app import core_of
from holdfast.client.results import Usage
from holdfast.events import TurnEnded, TurnRestarted, TurnStarted
from holdfast.http.api.routes import Paged
from holdfast.http.api.runs import ForkBody, ReasonBody, cancel_run, fork_run, list_events, retry_run
from holdfast.http.api.seen import PrincipalScope, RequestScope
from holdfast.http.pages.chat import ConversationPart, parts_of
from holdfast.http.pages.filters import now_of
from holdfast.http.pages.forms import Filled
from holdfast.http.pages.routes import Pages, Redirect
from holdfast.http.pages.waterfall import Waterfall, draw, lay_out
from holdfast.values import Page
from holdfast.values.jobs import Why

pages = Pages()

_SHOWN = 200  # messages and turns on one page
_LOOK_BACK = 1_000  # events


@dataclass(frozen=True, slots=True)
class RunView:
    run: RunRecord
    ended: bool
    reasons: Why
    said: list[ConversationPart]
    more_said: str | None
    turns: Page[Turn]
    calls: int
    inquiries: Page[Inquiry]
    family: Sequence[RunRecord]
    waterfall: Waterfall
    drawing: str
    usage: Usage
    origin: tuple[str, int] | None
    open_runs: int
    open_calls: int
    written_after: int


@dataclass(frozen=True, slots=True)
class MessagesView:
    run: RunRecord
    said: list[ConversationPart]
    more_said: str | None


@dataclass(frozen=True, slots=True)
class EventsView:
    run: RunRecord
    events: Page[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ComparisonView:
    a: RunRecord
    b: RunRecord
    facts: Sequence[Any]
    calls: Sequence[Any]
    diff: Sequence[str]
    same_answer: bool


@pages.page("/runs/compare", "compare.html")
async def compare(seen: RequestScope, a: str, b: str) -> ComparisonView:
    sides = [await seen.run(a.strip()), await seen.run(b.strip())]
    found = await seen.runs.compare(*sides)
    return ComparisonView(found.a.run, found.b.run, found.facts, found.calls, found.diff, found.same_answer)


@pages.page("/runs/{id}", "run.html")
async def show_run(seen: RequestScope, id: str, after: str | None = None) -> RunView:
    handle = await seen.run(id)
    run = await handle.refresh()
    said, more_said = await _said(seen, handle, after)
    family = await seen.runs.tree(run.id)
    spans = await handle.waterfall(workers=seen.sees_fleet)
    laid = lay_out(spans, now_of(seen))
    ended = run.state in ENDED
    living = OpenCounts(0, 0) if ended else await core_of(seen.hf).runtime().transact(open_below, [run.id])
    return RunView(
        run=run,
        ended=ended,
        reasons=await seen.why(run.id),
        said=said,
        more_said=more_said,
        turns=await handle.turns(limit=_SHOWN),
        calls=sum(span.kind == "call" for span in spans),
        inquiries=await handle.inquiries(limit=_SHOWN),
        family=[each for each in family if each.id != run.id],
        waterfall=laid,
        drawing=draw(laid),
        usage=await handle.usage(),
        origin=await handle.forked_from(),
        open_runs=living.runs,
        open_calls=living.calls,
        written_after=run.events if ended else await _turn_began(handle, run.events),
    )


async def _said(seen: PrincipalScope, run: Run[Any], after: str | None) -> tuple[list[ConversationPart], str | None]:
    """What was said, and where it continues."""
    messages = await run.messages(after=after, limit=_SHOWN)
    calls = await core_of(seen.hf).runtime().transact(calls_of_messages, messages)
    return parts_of(messages, calls), messages.next


@pages.page("/runs/{id}/said", "said.html", like="GET /runs/{id}/messages")
async def show_said(seen: RequestScope, id: str, after: str | None = None) -> MessagesView:
    """What was said in a run, as a part of the page of the run above it."""
    handle = await seen.run(id)
    said, more_said = await _said(seen, handle, after)
    return MessagesView(await handle.refresh(), said, more_said)


async def _turn_began(run: Run[Any], last: int) -> int:
    """The event from which on a page has to listen to have all that the model has written in this turn."""
    marks = [
        event.seq
        for event in await run.events(max(0, last - _LOOK_BACK), limit=_LOOK_BACK)
        if isinstance(event, TurnStarted | TurnRestarted | TurnEnded)
    ]
    return max(marks, default=last)


@pages.page("/runs/{id}/events", "events.html")
async def show_events(seen: RequestScope, id: str, page: Paged) -> EventsView:
    run = await (await seen.run(id)).refresh()
    return EventsView(run, await list_events(seen, id, page))


@pages.action("/runs/{id}/cancel")
async def cancel(seen: RequestScope, id: str, form: Filled) -> Redirect:
    await cancel_run(seen, id, ReasonBody(reason=form.text("reason") or f"cancelled by {seen.principal.name}"))
    return Redirect("/runs", id)


@pages.action("/runs/{id}/interrupt")
async def interrupt(seen: RequestScope, id: str) -> Redirect:
    await (await seen.run(id)).interrupt(seen.principal.name)
    return Redirect("/runs", id)


@pages.action("/runs/{id}/steer")
async def steer(seen: RequestScope, id: str, form: Filled) -> Redirect:
    await (await seen.run(id)).steer(form.get("prompt", ""))
    return Redirect("/runs", id)


@pages.action("/runs/{id}/retry")
async def retry(seen: RequestScope, id: str) -> Redirect:
    return Redirect("/runs", (await retry_run(seen, id)).id)


@pages.action("/runs/{id}/fork")
async def fork(seen: RequestScope, id: str, form: Filled) -> Redirect:
    at = form.text("at")
    wish = ForkBody(at=form.json("at") if at else None, prompt=form.text("prompt"), model=form.text("model"))
    return Redirect("/runs", (await fork_run(seen, id, wish)).id)
