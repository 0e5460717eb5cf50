"""The inbox: what only a person can decide, with all that there is to know about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.agents.overviews import calls_named, last_texts_of_runs
from holdfast.agents.states import InquiryState
from holdfast.agents.values import Inquiry, Message, RunRecord
from holdfast.app import core_of
from holdfast.errors import UsageError
from holdfast.http.api.inquiries import (
    AnswerBody,
    Approval,
    Denial,
    answer_inquiry,
    approve_inquiry,
    deny_inquiry,
    list_inquiries,
)
from holdfast.http.api.routes import Paged
from holdfast.http.api.seen import PrincipalScope, RequestScope
from holdfast.http.pages.chat import ConversationPart, parts_of
from holdfast.http.pages.filters import Tab
from holdfast.http.pages.forms import Filled, Form
from holdfast.http.pages.routes import Pages, Redirect
from holdfast.values import Page

pages = Pages()

TABS = (
    Tab("", "Open"),
    Tab(InquiryState.APPROVED, "Approved"),
    Tab(InquiryState.DENIED, "Denied"),
    Tab(InquiryState.ANSWERED, "Answered"),
    Tab(InquiryState.EXPIRED, "Expired"),
    Tab(InquiryState.WITHDRAWN, "Withdrawn"),
)
_LAST_WORDS = 3  # parts of the conversation that stand before the question
_LOOKED_AT = 8  # messages in which they are looked for


@dataclass(frozen=True, slots=True)
class InquiryCard:
    """An inquiry, its run, and what was said last before it."""

    inquiry: Inquiry
    run: RunRecord | None
    effect: str
    words: list[ConversationPart]


@dataclass(frozen=True, slots=True)
class InboxView:
    asked_of_people: list[InquiryCard]
    found: Page[Inquiry]
    states: tuple[Tab, ...]
    state: str


@pages.page("/inbox", "inbox.html", like="GET /inquiries")
async def show_inbox(seen: RequestScope, page: Paged, state: str | None = None) -> InboxView:
    few = page._replace(limit=min(page.limit, 25))
    found = await list_inquiries(seen, few, state=state or InquiryState.OPEN.value)
    return InboxView(await _told(seen, found), found, TABS, state or "")


async def _told(seen: PrincipalScope, found: Sequence[Inquiry]) -> list[InquiryCard]:
    """Each with its run, what the call may change, and what was said last before it."""
    transact = core_of(seen.hf).runtime().transact
    said = await transact(last_texts_of_runs, [each.run_id for each in found], _LOOKED_AT)
    calls = await transact(calls_named, [each.call.id for each in found if each.call is not None])
    effects = {call.id: call.effect for call in calls}
    return [
        InquiryCard(
            inquiry=each,
            run=said.runs.get(each.run_id),
            effect=effects.get(each.call.id, "") if each.call else "",
            words=_last_words(said.words.get(each.run_id, ())),
        )
        for each in found
    ]


def _last_words(messages: Sequence[Message]) -> list[ConversationPart]:
    words = [part for part in parts_of(messages) if part.kind in ("user", "assistant")]
    return words[-_LAST_WORDS:]


@pages.action("/inquiries/{id}/approve")
async def approve(seen: RequestScope, id: str, form: Filled) -> Redirect:
    await approve_inquiry(seen, id, Approval(digest=form.get("digest", ""), input=_changed(form)))
    return _back(form)


@pages.action("/inquiries/{id}/deny")
async def deny(seen: RequestScope, id: str, form: Filled) -> Redirect:
    await deny_inquiry(seen, id, Denial(digest=form.get("digest", ""), message=form.text("message") or ""))
    return _back(form)


@pages.action("/inquiries/{id}/answer")
async def answer(seen: RequestScope, id: str, form: Filled) -> Redirect:
    said = form.text("choice") or form.text("answer")
    if said is None:
        raise UsageError("write an answer first.")
    await answer_inquiry(seen, id, AnswerBody(digest=form.get("digest", ""), answer=said))
    return _back(form)


def _changed(form: Form) -> dict[str, Any] | None:
    """The arguments, if they are other than those that were shown."""
    written = form.json("input")
    if written is None or written == form.json("shown"):
        return None
    if not isinstance(written, dict):
        raise UsageError("the arguments of a call are a JSON object.")
    return written


def _back(form: Form) -> Redirect:
    for name, path in (("session", "/sessions"), ("run", "/runs")):
        if (place := form.text(name)) is not None:
            return Redirect(path, place)
    return Redirect("/inbox")
