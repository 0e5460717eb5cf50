"""Inquiries over HTTP: what runs ask people, and what people decide. Who decides is who asks."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from holdfast.agents.values import Inquiry
from holdfast.errors import NotFound
from holdfast.http.api.routes import Count, Paged, PartOfPage, Routes
from holdfast.http.api.runs import Body
from holdfast.http.api.seen import PrincipalScope, RequestScope
from holdfast.values import Page

routes = Routes("inquiries")


class Approval(Body):
    """`digest` is that of the inquiry as it was shown; `input` replaces the arguments of a call."""

    digest: str
    input: dict[str, Any] | None = None


class Denial(Body):
    digest: str
    message: str = Field("", max_length=20_000)


class AnswerBody(Body):
    digest: str
    answer: Any


@routes.get("/inquiries")
async def list_inquiries(
    seen: RequestScope,
    page: Paged,
    state: str | None = "open",
    run: str | None = None,
    tenant: str | None = None,
    count: Count = False,
) -> Page[Inquiry]:
    """List inquiries, oldest first: open ones, unless `state` says otherwise (empty: all)."""
    whose = seen.chosen(tenant)
    if seen.pinned and run is not None:
        await seen.run(run)
    found = await seen.inquiries.list(state=state or None, run=run, tenant=whose, **page.place)
    if not seen.pinned:
        found.total = await seen.inquiries.count(state=state or None, run=run, tenant=whose) if count else None
        return found
    return PartOfPage(await seen.shown(found, lambda each: each.session_id), found)


async def _find(seen: PrincipalScope, id: str) -> Inquiry:
    found = await seen.inquiries.get(id)
    if not await seen.shows(found.session_id):
        raise NotFound(f"no inquiry is open about {id}.")
    return found


@routes.get("/inquiries/{id}")
async def show_inquiry(seen: RequestScope, id: str) -> Inquiry:
    """Show an inquiry, by its own id or that of the call or run that it is about."""
    return await _find(seen, id)


@routes.post("/inquiries/{id}/approve")
async def approve_inquiry(seen: RequestScope, id: str, approval: Approval) -> Inquiry:
    """Approve a call, or let a run continue."""
    await _find(seen, id)
    by = seen.principal.name
    return await seen.inquiries.approve(id, digest=approval.digest, by=by, input=approval.input)


@routes.post("/inquiries/{id}/deny")
async def deny_inquiry(seen: RequestScope, id: str, denial: Denial) -> Inquiry:
    """Deny a call and tell the model why, or end a run that asked to continue."""
    await _find(seen, id)
    by = seen.principal.name
    return await seen.inquiries.deny(id, digest=denial.digest, by=by, message=denial.message)


@routes.post("/inquiries/{id}/answer")
async def answer_inquiry(seen: RequestScope, id: str, answer: AnswerBody) -> Inquiry:
    """Answer a question, or provide the result of a call."""
    await _find(seen, id)
    return await seen.inquiries.answer(id, answer.answer, digest=answer.digest, by=seen.principal.name)
