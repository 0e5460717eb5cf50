"""People: what the app offers to whoever decides, and to whoever wants to hear that something is to be decided."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from holdfast import checking, durations
from holdfast.agents.definitions import TOOL_KIND, AgentSpec, ToolSpec
from holdfast.agents.people import inquiries
from holdfast.agents.people.fitting import misfit
from holdfast.agents.people.inquiries import Ruling
from holdfast.agents.people.records import InquiryRow
from holdfast.agents.reaching import App, Reaching
from holdfast.agents.statements import Agents, Runs
from holdfast.agents.states import INQUIRY_STATES
from holdfast.agents.system import EXPIRE, NOTIFY, system_definition
from holdfast.agents.tools import Person, Tool, ToolContext, ToolSignature, tool_name
from holdfast.durations import Duration
from holdfast.errors import BadPayload, NotFound, UsageError
from holdfast.events import CallView
from holdfast.kernel import encoding
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.retry import RetryPolicy
from holdfast.outcomes import Done, Outcome
from holdfast.settings import Settings
from holdfast.workers.context import JobContext
from holdfast.workers.definitions import Definition, Registry
from holdfast.workers.slots import TOOLS

T = TypeVar("T")

log = logging.getLogger("holdfast.agents")

_ASK = "Ask a person, and wait for the answer."


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """Something that only a person can decide.

    `kind` is "approval" (may this call run?), "review" (it may have run: again?), "question", "continuation" (the
    answer was cut off: go on?) or "limit" (go on beyond it?). `call` is what is to be called, `data` the rest of what
    there is to know; `digest` is the identity of what was shown.
    """

    id: str
    kind: str
    state: str
    run_id: str
    session_id: str
    tenant: str
    name: str
    digest: str
    call: CallView | None
    data: dict[str, Any]
    asked_at: int
    expires_at: int | None
    decided_at: int | None = None
    decided_by: str | None = None
    decision: dict[str, Any] | None = None


def inquiry_of(row: InquiryRow) -> Inquiry:
    data: dict[str, Any] = encoding.decode(row.data)
    call = data.pop("call", None)
    return Inquiry(
        id=row.id,
        kind=row.kind,
        state=row.state,
        run_id=row.run,
        session_id=row.session,
        tenant=row.tenant,
        name=row.name,
        digest=row.digest,
        call=None if call is None else CallView(**call),
        data=data,
        asked_at=row.asked_at,
        expires_at=row.expires_at,
        decided_at=row.decided_at,
        decided_by=row.decided_by,
        decision=encoding.decode(row.decision),
    )


@reading
async def find_tool(tx: Transaction, inquiry: InquiryRow) -> ToolSpec | None:
    """The tool that an inquiry is about, as its run knows it."""
    run = await tx.one(Runs.find_run, id=inquiry.run)
    stored = None if run is None else await tx.one(Agents.find_version, agent=run.agent, version=run.version)
    return None if stored is None else AgentSpec.parse(stored.definition).tool(inquiry.name)


class InquiriesList(Reaching):
    """`hf.inquiries`: what people are asked."""

    def __init__(self, app: App, tenant: str | None = None) -> None:
        self._app = app
        self._tenant = tenant

    async def get(self, id: str) -> Inquiry:
        """By its own id, or that of the call or run that it is about."""
        row = await self._transact(inquiries.find_inquiry, id)
        if row is None or self._tenant not in (None, row.tenant):
            raise NotFound(f"nothing is asked of a person about {id}.")
        return inquiry_of(row)

    async def list(
        self,
        *,
        state: str | None = "open",
        run: str | None = None,
        tenant: str | None = None,
        after: tuple[int, str] | None = None,
        limit: int = 100,
    ) -> list[Inquiry]:
        """The oldest first; without a state, decided ones too. `after`: `(asked_at, id)` of the last one seen."""
        checking.one_of(state, "state", INQUIRY_STATES)
        rows = await self._transact(
            inquiries.list_inquiries,
            state=state,
            tenant=tenant if self._tenant is None else self._tenant,
            run=run,
            after=after or (-1, ""),
            limit=checking.page(limit),
        )
        return [inquiry_of(row) for row in rows]


class Rulings(Reaching):
    """`approve`, `deny` and `answer`, for everybody or as one tenant sees it."""

    _app: App
    _tenant: str | None = None

    async def approve(
        self, id: str, *, digest: str | None = None, by: str = "", input: dict[str, Any] | None = None
    ) -> Inquiry:
        """Let a call run, a run go on. `id` is the inquiry's, or that of the call or run it is about.

        `digest` is what the inquiry showed: `DigestMismatch` when it is about something else by now. `input` replaces
        the arguments of a call; the model's own words stay, and its result says what was changed.
        """
        if input is not None:
            await self._fits(id, input)
        return await self._decide(Ruling(id, "approved", by, digest, input=input))

    async def _fits(self, id: str, input: dict[str, Any]) -> None:
        """`UsageError` when these are no arguments of the tool: by the schema it is stored with, and by the tool itself
        where this program has it."""
        row = await self._transact(inquiries.find_inquiry, id)
        if row is None or self._tenant not in (None, row.tenant):
            return  # it is not found when it is decided
        spec = await self._transact(find_tool, row)
        problem = None if spec is None else misfit(spec.schema, input)
        definition = self._app.registry.definitions.get(TOOL_KIND + row.name)
        if problem is None and definition is not None:
            try:
                definition.signature.decode(input)
            except (ValueError, TypeError, BadPayload) as complaint:
                problem = str(complaint).rpartition("do not fit: ")[2]
        if problem is not None:
            raise UsageError(f"these are no arguments of {TOOL_KIND}{row.name}: {problem.removesuffix('.')}.")

    async def deny(self, id: str, *, digest: str | None = None, by: str = "", message: str = "") -> Inquiry:
        """Keep a call from running, and tell the model why; end a run that asked to go on."""
        return await self._decide(Ruling(id, "denied", by, digest, message=message))

    async def answer(self, id: str, answer: Any, *, digest: str | None = None, by: str = "") -> Inquiry:
        """Answer a question; give the result of a call in its place; say how a run that was cut off goes on."""
        return await self._decide(Ruling(id, "answered", by, digest, answer=answer))

    async def _decide(self, wish: Ruling) -> Inquiry:
        wish = wish._replace(tenant=self._tenant)
        return inquiry_of(await self._transact(inquiries.decide, wish, self._app.settings.announced))


class PeopleFace(Rulings):
    """What the app offers for people."""

    settings: Settings
    registry: Registry
    _tools: dict[str, Tool[Any, Any]]
    _teller: Callable[[Inquiry], Any] | None = None

    def _open_people(self) -> None:
        self._app = cast(App, self)
        self.inquiries = InquiriesList(self._app)

    def approve_sync(self, id: str, **options: Any) -> Inquiry:
        return self._app.call(self.approve(id, **options))

    def deny_sync(self, id: str, **options: Any) -> Inquiry:
        return self._app.call(self.deny(id, **options))

    def answer_sync(self, id: str, answer: Any, **options: Any) -> Inquiry:
        return self._app.call(self.answer(id, answer, **options))

    def on_inquiry(self, function: Callable[[Inquiry], T]) -> Callable[[Inquiry], T]:
        """Call this function whenever something is asked of a person: it sends the mail, or rings the bell.

        It is a job, enqueued with the question itself, so it is called at least once, and again when it fails.
        """
        if self._teller is not None and self._teller is not function:
            raise UsageError("there is a function for inquiries already: let it tell everybody who is to hear.")
        self._teller = function
        self._serve_people()
        return function

    def question(
        self,
        name: str = "ask_person",
        *,
        description: str = _ASK,
        within: Duration | None = None,
        otherwise: str | None = None,
    ) -> Tool[Any, Any]:
        """A tool with which a model asks a person. `otherwise` is the answer when nobody gives one `within` a time."""
        title = tool_name(name)

        def ask(question: str, choices: list[str] | None = None) -> str:
            raise UsageError(f"{title} is answered by a person: hf.answer(…).")

        kind = TOOL_KIND + title
        definition = Definition(
            kind=kind,
            function=ask,
            signature=ToolSignature(kind, ask, self.settings.tool_output_cap),
            queue="default",
            requires=frozenset(),
            retry=RetryPolicy.none(),
            timeout_us=None,
            deadline_us=None,
            priority=100,
            isolate=None,
            line=TOOLS,
            context=ToolContext,
        )
        self.registry.add(definition)
        person = Person(asks=True, within_us=durations.microseconds(within) if within else None, otherwise=otherwise)
        tool: Tool[Any, Any] = Tool(definition, ask, name=title, effect="read", strict=False, person=person)
        tool.__doc__ = description
        self._tools[title] = tool
        self._serve_people()
        return tool

    def _notifies(self) -> bool:
        return self._teller is not None

    def _approving(self, spec: ToolSpec, call: str, input: dict[str, Any]) -> bool:
        """Whether a person has to approve a call. A rule that fails asks: nobody has said that it may run."""
        tool = self._tools.get(spec.name)
        rule = True if tool is None else tool.person.approve
        if not callable(rule):
            return bool(rule)
        definition = self.registry.definitions[spec.kind]
        try:
            given = definition.signature.decode(input)
        except (ValueError, TypeError, BadPayload):
            return False  # what is no call of this tool is refused when it starts
        try:
            return bool(rule(CallView(id=call, name=spec.name, input=given)))
        except Exception:
            log.warning("the approve= of tool %s failed, so a person is asked", spec.name, exc_info=True)
            return True

    def _serve_people(self) -> None:
        """The jobs behind questions: their end in time, and the word that there is one."""
        if EXPIRE not in self.registry.definitions:
            self.registry.add(system_definition(EXPIRE, self._expire))
        if self._teller is not None and NOTIFY not in self.registry.definitions:
            self.registry.add(system_definition(NOTIFY, self._notify))

    async def _expire(self, ctx: JobContext, inquiry: str) -> Outcome:
        wish = Ruling(inquiry, "expired")
        try:
            await ctx.database.transact(inquiries.decide, wish, self.settings.announced)
        except NotFound:
            return Done("its run is gone")
        return Done()

    async def _notify(self, ctx: JobContext, inquiry: str) -> Outcome:
        row = await ctx.database.transact(inquiries.find_inquiry, inquiry)
        if row is None or row.state != "open" or self._teller is None:
            return Done("it is decided")
        told = self._teller(inquiry_of(row))
        if inspect.isawaitable(told):
            await told
        return Done()
