"""Rulings: what people are asked, as the app or one tenant sees it, and what they decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from holdfast import validation
from holdfast.agents.core import AgentsCore, AppPart
from holdfast.agents.definition import TOOL_KIND, AgentSpec, ToolSpec
from holdfast.agents.listings import LOOK, FoundRows, IndexedFilter, LookPlace, count_rows, find_page, shown_page
from holdfast.agents.people import inquiries
from holdfast.agents.people.inquiries import Ruling, too_late
from holdfast.agents.people.records import InquiryListsSql, InquiryRow
from holdfast.agents.runs.output import misfit
from holdfast.agents.statements import AgentsSql, RunsSql
from holdfast.agents.states import INQUIRY, InquiryState
from holdfast.agents.tools import Tool
from holdfast.agents.values import Inquiry, inquiry_of
from holdfast.durations import Duration
from holdfast.errors import NotFound, UsageError
from holdfast.kernel.database import Transaction, reading
from holdfast.observe import changing
from holdfast.values import Page, place

# Pages of inquiries, the oldest first: by an index each, and every other filter looks at a bounded number of rows.


_FIRST = (-1, "")
_ALL = IndexedFilter(InquiryListsSql.inquiries_all, None, InquiryListsSql.count_inquiries_all)
_OF_RUN = IndexedFilter(InquiryListsSql.inquiries_of_run, None, InquiryListsSql.count_inquiries_of_run)
_OPEN = IndexedFilter(
    InquiryListsSql.inquiries_open, InquiryListsSql.end_of_inquiries_open, InquiryListsSql.count_inquiries_open
)
_DECIDED = IndexedFilter(
    InquiryListsSql.inquiries_decided, InquiryListsSql.end_of_inquiries_decided, InquiryListsSql.count_inquiries_decided
)
_OF_TENANT = IndexedFilter(
    InquiryListsSql.inquiries_of_tenant,
    InquiryListsSql.end_of_inquiries_of_tenant,
    InquiryListsSql.count_inquiries_of_tenant,
)


class InquiryFilters(NamedTuple):
    """What a list of inquiries is asked for; None is any. `run` stands for the runs below it too."""

    state: str | None = InquiryState.OPEN
    tenant: str | None = None
    run: str | None = None

    @property
    def lead(self) -> IndexedFilter[InquiryRow]:
        """The filter that reads the fewest rows by an index. Open ones are few."""
        if self.run is not None:
            return _OF_RUN
        if self.state == InquiryState.OPEN:
            return _OPEN
        if self.tenant is not None:
            return _OF_TENANT
        return _ALL if self.state is None else _DECIDED


@reading
async def inquiry_page(
    tx: Transaction, filters: InquiryFilters, *, after: LookPlace = _FIRST, limit: int = 100, look: int = LOOK
) -> FoundRows[InquiryRow]:
    given = _given(filters, after)
    return await find_page(tx, filters.lead, given, lambda row: (row.asked_at, row.id), limit=limit, look=look)


@reading
async def count_inquiries(tx: Transaction, filters: InquiryFilters, *, look: int = LOOK) -> int:
    """How many there are, among the oldest that one look sees."""
    return await count_rows(tx, filters.lead, _given(filters, _FIRST), look=look)


@reading
async def list_inquiries(
    tx: Transaction,
    *,
    state: str | None = InquiryState.OPEN,
    tenant: str | None = None,
    run: str | None = None,
    limit: int = 100,
) -> Sequence[InquiryRow]:
    """The first of them."""
    return (await inquiry_page(tx, InquiryFilters(state, tenant, run), limit=limit, look=max(limit, LOOK))).rows


def _given(filters: InquiryFilters, after: LookPlace) -> dict[str, Any]:
    return {**filters._asdict(), "after_at": after[0], "after": after[1]}


T = TypeVar("T")


@reading
async def find_tool(tx: Transaction, inquiry: InquiryRow) -> ToolSpec | None:
    """The tool that an inquiry is about, as its run knows it."""
    run = await tx.one(RunsSql.find_run, id=inquiry.run)
    stored = None if run is None else await tx.one(AgentsSql.find_version, agent=run.agent, version=run.version)
    return None if stored is None else AgentSpec.parse(stored.definition).tool(inquiry.name)


class Rulings(AppPart):
    """`approve`, `deny` and `answer`, for everybody or as one tenant sees it."""

    _app: AgentsCore
    _tenant: str | None = None

    @changing("runs approve")
    async def approve(
        self, id: str, *, digest: str | None = None, by: str = "", input: dict[str, Any] | None = None
    ) -> Inquiry:
        """Approve a call, or let a run continue. `id` is the id of the inquiry, the call or the run.

        `digest` is what the inquiry showed: `DigestMismatch` when it is about something else by now. `input` replaces
        the arguments of a call; the model's own words stay, and its result says what was changed.
        """
        if input is not None:
            await self._check_arguments(id, input)
        return await self._decide(Ruling(id, InquiryState.APPROVED, by, digest, input=input))

    async def _check_arguments(self, id: str, input: dict[str, Any]) -> None:
        """`UsageError` when these arguments do not fit the tool: its stored schema, and the tool itself if this
        program has it."""
        row = await self._transact(inquiries.find_inquiry, id)
        if row is None or self._tenant not in (None, row.tenant):
            return  # it is not found when it is decided
        spec = await self._transact(find_tool, row)
        problem = None if spec is None else misfit(spec.schema, input)
        definition = self._app.registry.definitions.get(TOOL_KIND + row.name)
        if problem is None and definition is not None:
            problem = definition.signature.misfit(input)
        if problem is not None:
            raise UsageError(f"these arguments do not fit {TOOL_KIND}{row.name}: {problem.removesuffix('.')}.")

    @changing("runs deny")
    async def deny(self, id: str, *, digest: str | None = None, by: str = "", message: str = "") -> Inquiry:
        """Deny a call, and tell the model why; or end a run that asked to continue."""
        return await self._decide(Ruling(id, InquiryState.DENIED, by, digest, message=message))

    @changing("runs answer")
    async def answer(self, id: str, answer: Any, *, digest: str | None = None, by: str = "") -> Inquiry:
        """Answer a question, provide the result of a call, or tell a cut-off run how to continue."""
        return await self._decide(Ruling(id, InquiryState.ANSWERED, by, digest, answer=answer))

    async def _decide(self, wish: Ruling) -> Inquiry:
        wish = wish._replace(tenant=self._tenant)
        row = await self._transact(inquiries.decide, wish, self._app.settings.announced)
        if row.state == InquiryState.EXPIRED:
            raise too_late(row)
        return inquiry_of(row)


class InquiriesList(Rulings):
    """`hf.inquiries`: what people are asked, and what they decide."""

    def __init__(self, app: AgentsCore, tenant: str | None = None) -> None:
        self._app = app
        self._tenant = tenant

    async def get(self, id: str) -> Inquiry:
        """By its own id, or that of the call or run that it is about."""
        row = await self._transact(inquiries.find_inquiry, id)
        if row is None or self._tenant not in (None, row.tenant):
            raise NotFound(f"no inquiry is open about {id}.")
        return inquiry_of(row)

    async def list(
        self,
        *,
        state: str | None = InquiryState.OPEN.value,
        run: str | None = None,
        tenant: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[Inquiry]:
        """The oldest first; without a state, decided ones too.

        One call looks at 10,000 at most, so a page may be short and still have a `next`.
        """
        validation.one_of(state, "state", INQUIRY.names)
        wanted = InquiryFilters(state, tenant if self._tenant is None else self._tenant, run)
        last = (-1, "") if after is None else place(after, int, str)
        found = await self._transact(inquiry_page, wanted, after=last, limit=validation.page(limit))
        return shown_page(found, inquiry_of)

    async def count(
        self, *, state: str | None = InquiryState.OPEN.value, run: str | None = None, tenant: str | None = None
    ) -> int:
        """How many inquiries `list` would give, among the oldest 10,000 that it looks at."""
        validation.one_of(state, "state", INQUIRY.names)
        wanted = InquiryFilters(state, tenant if self._tenant is None else self._tenant, run)
        return await self._transact(count_inquiries, wanted)


class AppInquiries(InquiriesList):
    """`hf.inquiries` of the app itself, which also says how people are asked and notified."""

    def question(
        self,
        name: str = "ask_person",
        *,
        description: str = "Ask a person, and wait for the answer.",
        within: Duration | None = None,
        otherwise: str | None = None,
    ) -> Tool[Any, Any]:
        """A tool with which a model asks a person. `otherwise` is the answer when nobody gives one `within` a time."""
        return self._app.tools.question(name, description=description, within=within, otherwise=otherwise)

    def on_open(self, function: Callable[[Inquiry], T]) -> Callable[[Inquiry], T]:
        """Call this function for every new inquiry, so that it can notify a person.

        It is a job, enqueued with the question itself. So it is called at least once, and again when it fails or has
        not returned after a minute. A function that is not async is called on a thread.
        """
        self._app.people.tell(function)
        return function
