"""The gateway in this process: sessions are Holdfast's sessions, a turn is a run of an agent in one.

What a session may do at a time, how a turn is repeated and how it ends is decided there. A caller that stops reading
does not stop the turn.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

from holdfast import events as run_events
from holdfast.agents.api.agent import Agent
from holdfast.agents.api.lists import Tenant
from holdfast.agents.api.options import RunOptions
from holdfast.agents.api.run import Run
from holdfast.agents.api.session import Session
from holdfast.agents.definition import Limits
from holdfast.agents.values import Inquiry, RunRecord, SessionRecord
from holdfast.app import Holdfast, core_of
from holdfast.client.results import Result
from holdfast.errors import AlreadyDecided, NotFound, UsageError
from holdfast.events import Event
from holdfast.facades.universal_agent import handlers, protocol, workspaces
from holdfast.facades.universal_agent.protocol import (
    AgentEvent,
    BadName,
    Data,
    EventCallback,
    EventType,
    GatewayRequest,
    GatewayResult,
    GatewaySession,
    GatewaySessionSummary,
    UnknownSession,
    collected,
)
from holdfast.facades.universal_agent.runs import OUTCOMES
from holdfast.facades.universal_agent.runtime_db import RuntimeDb, connect_runtime_db
from holdfast.kernel import queries
from holdfast.reasons import Gate, failure_for_tenant
from holdfast.values import moment

# Admission of turns: which request begins a turn, and which asks for one that is there.
#
# A turn is a run that does not wait for another one of its session (`SessionBusy`), and its id is the run's key. So
# the
# store decides, and two servers that are asked at once begin one turn.


REPEATED_WITHIN = timedelta(seconds=120)  # the same input without an id, so soon, is the same turn

Admission = Literal["accepted", "duplicate_in_progress", "duplicate_completed"]


class AdmittedTurn(NamedTuple):
    run: Run[Any]
    status: Admission


class SessionAdmission:
    """Admits turns to one session."""

    def __init__(self, app: Holdfast, session: GatewaySession, own: Session, tenant: str | None) -> None:
        self._app = app
        self._session = session
        self._own = own
        self._tenant = tenant

    async def admit(
        self, agent: Agent[Any], request: GatewayRequest, turn: str | None, repeated_within: timedelta | None
    ) -> AdmittedTurn:
        """The run of a turn; `SessionBusy` while another turn of the session is under way.

        A `turn` that is known is the same turn again. Without one, and if `repeated_within` is given, the session's
        newest turn is, if it is not older than that and had the same input.
        """
        said = _fingerprint(request)
        if turn is None and repeated_within is not None:
            turn = await self._repeated(said, repeated_within)
        options = self._options(agent, request)
        options["metadata"] = {"turn": {"said": said, "id": turn}}
        if turn is not None:
            options["key"] = f"universal_agent/{self._session.session_id}/{turn}"
        run = await agent.enqueue(request.user_input, **options)
        if run.fresh:
            return AdmittedTurn(run, "accepted")
        ended = (await run.refresh()).finalized_at is not None
        return AdmittedTurn(run, "duplicate_completed" if ended else "duplicate_in_progress")

    async def _repeated(self, said: str, within: timedelta) -> str:
        """An id for a turn that came without one: that of the newest turn, if this repeats it and it did not fail.

        A new one counts the turns before it, so that of two who ask at once the second repeats the first.
        """
        now = moment(await core_of(self._app).runtime().transact(queries.now))
        for newest in await self._own.runs(limit=1):
            before, lost = newest.metadata.get("turn", {}), newest.state in ("failed", "cancelled")
            if before.get("said") == said and before.get("id") and not lost and now - newest.created_at <= within:
                return str(before["id"])
        return f"said/{said}/{(await self._own.refresh()).runs}"

    def _options(self, agent: Agent[Any], request: GatewayRequest) -> RunOptions:
        options: RunOptions = {
            "session": self._own,
            "during": "reject",
            "variables": {"workspace_dir": self._session.workspace_dir, "session_id": self._session.session_id},
        }
        if self._tenant is not None:
            options["tenant"] = self._tenant
        limits = _limits(agent.spec.limits, request)
        if limits != agent.spec.limits:
            options["limits"] = limits
        return options


def _limits(limits: Limits, request: GatewayRequest) -> Limits:
    """The agent's limits, with those that the request has of its own."""
    most, seconds = request.metadata.get("max_turns"), request.metadata.get("turn_timeout_seconds")
    try:
        if most is not None:
            limits = replace(limits, turns=int(most))
        if seconds is not None:
            limits = replace(limits, time=f"{float(seconds)}s")
    except (TypeError, ValueError, OverflowError):
        raise UsageError("max_turns is a whole number, and turn_timeout_seconds a number.") from None
    return limits


def _fingerprint(request: GatewayRequest) -> str:
    asked = json.dumps([request.user_input, request.force_complex, request.metadata], sort_keys=True, default=str)
    return hashlib.sha256(asked.encode(errors="replace")).hexdigest()[:32]


# Runs as a gateway shows them: its turns, and what was queued for pools. A tenant has turns alone.


class GatewayRuns:
    """The runs that are there for somebody who sees `part` of the app, in sessions with these metadata."""

    def __init__(self, runtime: RuntimeDb, part: Holdfast | Tenant, own: Mapping[str, Any], *, queued: bool) -> None:
        self._runtime = runtime
        self._part = part
        self._own = own
        self._queued = queued  # whether runs for pools, which belong to no session, are shown

    async def get(self, run_id: str) -> dict[str, Any]:
        """A turn or a queued run by its id; `NotFound` when there is none."""
        turn = await self._turn(run_id)
        if turn is not None:
            return turn
        found = await self._runtime.runs.get(run_id) if self._queued else None
        if found is None:
            raise NotFound(f"there is no run {run_id[:80]} in this gateway.")
        return found

    async def attempts(self, run_id: str) -> list[dict[str, Any]]:
        """The attempts of a turn or a queued run that have ended, the first first."""
        if await self._turn(run_id) is None:
            await self.get(run_id)
            return await self._runtime.runs.attempts(run_id)
        found = await self._runtime.app.jobs.attempts(run_id)
        return [
            {
                "attempt_number": number,
                "status": OUTCOMES.get(each.outcome, each.outcome),
                "started_at": each.started_at.isoformat(),
                "ended_at": each.ended_at.isoformat(),
            }
            for number, each in enumerate(found, 1)
        ]

    async def _turn(self, run_id: str) -> dict[str, Any] | None:
        try:
            run = await self._part.runs.get(run_id)
            session = await self._part.sessions.get(run.session)
        except NotFound:
            return None
        if any(session.metadata.get(name) != value for name, value in self._own.items()):
            return None
        return {
            "run_id": run.id,
            "session_id": session.key,
            "status": _run_status(run),
            "last_job_prompt": "".join(block.get("text", "") for block in run.input if isinstance(block, dict)),
            "workspace_dir": session.metadata.get("workspace_dir"),
            "created_at": run.created_at.isoformat(),
        }


def _run_status(run: RunRecord) -> str:
    if run.finalized_at is not None:
        return run.state
    return "queued" if run.started_at is None else "running"


# The events of a Holdfast run in the words of this interface.


def agent_event(event: Event) -> AgentEvent | None:
    """How a client of a gateway learns of an event; None: not at all."""
    match event:
        case run_events.TextDelta(text=text):
            return AgentEvent(EventType.TEXT, {"text": text})
        case run_events.ThinkingDelta(text=text):
            return AgentEvent(EventType.THINKING, {"thinking": text})
        case run_events.ToolCalled():
            return AgentEvent(EventType.TOOL_CALL, {"id": event.call, "name": event.name, "input": event.input})
        case run_events.ToolEnded():
            failed = event.state != "completed"
            return AgentEvent(
                EventType.TOOL_RESULT, {"tool_use_id": event.call, "name": event.name, "is_error": failed}
            )
        case run_events.ApprovalRequested() | run_events.QuestionAsked() | run_events.InputRequested():
            return AgentEvent(EventType.INPUT_REQUIRED, _wanted(event))
        case run_events.InputGiven():
            return AgentEvent(
                EventType.INPUT_RESPONSE, {"input_id": event.inquiry, "verdict": event.verdict, "by": event.by}
            )
        case run_events.RunEnded():
            return _ended(event)
        case _:
            return _status_event(event)


def _wanted(event: run_events.ApprovalRequested | run_events.QuestionAsked | run_events.InputRequested) -> Data:
    match event:
        case run_events.QuestionAsked():
            return {"input_id": event.inquiry, "category": "question", "question": event.question}
        case run_events.ApprovalRequested():
            question = event.reason or f"May {event.call.name} be called?"
            call = {"name": event.call.name, "input": event.call.input, "digest": event.digest}
            return {"input_id": event.inquiry, "category": event.kind, "question": question, "call": call}
        case _:
            return {"input_id": event.inquiry, "category": event.kind, "question": event.reason}


def _ended(event: run_events.RunEnded) -> AgentEvent:
    """An answer ends a turn; everything else is an error, by what it is called."""
    result = event.result
    if result is not None and result.outcome == "answered":
        return AgentEvent(EventType.ITERATION_END, _answer(result))
    if result is not None:
        why = result.limit or (result.refusal.category if result.refusal else None) or result.stop_reason
        return AgentEvent(
            EventType.ERROR,
            {**_answer(result), "message": f"the turn was {result.outcome}: {why}", "code": result.outcome},
        )
    return AgentEvent(
        EventType.ERROR,
        {"message": event.error or event.state, "code": event.error_type or event.state, "run_id": event.run},
    )


def _answer(result: Result[object]) -> Data:
    return {
        "run_id": result.run_id,
        "response_text": result.text,
        "outcome": result.outcome,
        "turns": result.turns,
        "usage": result.usage.as_json(),
    }


def _status_event(event: Event) -> AgentEvent | None:
    match event:
        case run_events.RunStateChanged():
            return AgentEvent(EventType.STATUS, {"status": event.state, "run_id": event.run})
        case run_events.TurnRestarted():
            return AgentEvent(EventType.STATUS, {"status": "restarted", "turn": event.turn})
        case run_events.TurnFailed():
            reason = failure_for_tenant(event.kind, event.message)  # who reads this is a user of the program
            return AgentEvent(EventType.STATUS, {"status": "retrying", "turn": event.turn, "reason": reason})
        case _:
            return None


_MARK = {"gateway": "universal_agent"}  # in the metadata of sessions that were made here
_YES = frozenset({"yes", "y", "true", "ok", "approve", "approved", "allow"})
_SHOWN = 50


class InProcessGateway:
    """Sessions and turns, served by agents of this process and by whichever workers share its database.

    Inside a handler of a worker it uses that worker's database; elsewhere `runtime`, or `runtime.db`. `agent` answers,
    or the stored one of that name; without one it is the app's agent named `universal_agent`. In a `confined`
    gateway the workspace of a session is the folder of its id in `workspace_base`, and no other.
    """

    def __init__(
        self,
        runtime: RuntimeDb | Holdfast | None = None,
        *,
        agent: Agent[Any] | str | None = None,
        workspace_base: str | Path | None = None,
        confined: bool = False,
    ) -> None:
        handled = handlers.current()
        self._owned = isinstance(runtime, Holdfast) or (runtime is None and handled is None)
        if runtime is None:
            self._runtime = connect_runtime_db() if handled is None else handled.runtime
        else:
            self._runtime = connect_runtime_db(runtime) if isinstance(runtime, Holdfast) else runtime
        self._agent = agent
        self._base = Path(workspace_base or workspaces.DEFAULT_BASE).resolve()  # now: a tool may put a link there later
        self._confined = confined
        self._tenant: str | None = None
        self._pinned: Mapping[str, Any] = {}
        self._by = ""

    def within(self, tenant: str | None, pinned: Mapping[str, Any], by: str) -> InProcessGateway:
        """This gateway as somebody sees it who is bound to a tenant, and to sessions with `pinned` metadata.

        A tenant's workspaces lie in a folder of its own, and nowhere else.
        """
        part = copy.copy(self)
        part._pinned, part._by, part._owned = pinned, by, False
        if tenant is not None:
            part._tenant, part._confined = tenant, True
            part._base = self._base / workspaces.TENANTS / workspaces.name_of_tenant(tenant)
        return part

    @property
    def runs(self) -> GatewayRuns:
        """Turns by their ids, and runs that were queued for pools."""
        queued = self._tenant is None and not self._pinned
        return GatewayRuns(self._runtime, self._part, {**_MARK, **self._pinned}, queued=queued)

    @property
    def _app(self) -> Holdfast:
        return self._runtime.app

    @property
    def _part(self) -> Holdfast | Tenant:
        """What of the app is there for who uses this gateway."""
        return self._app if self._tenant is None else self._app.tenant(self._tenant)

    async def create_session(
        self, user_id: str, workspace_dir: str | None = None, session_id: str | None = None
    ) -> GatewaySession:
        """A session for a user. Without an id it is named after its workspace, or by the time.

        A session that is there already is returned if it has this user and this workspace.
        """
        given = workspaces.check_workspace(workspace_dir)
        workspaces.check_text(user_id, "user_id")
        for name in self._names(user_id, given, session_id):
            path = await asyncio.to_thread(workspaces.place, self._base, given, name, confined=self._confined)
            own = {**_MARK, **self._pinned, "user_id": user_id, "workspace_dir": str(path)}
            record = await (await self._part.session(name, metadata={**own, "status": "active"})).refresh()
            if all(record.metadata.get(each) == value for each, value in own.items()):
                return await self._opened(record)
        raise BadName(f"session {name!r} has another user or workspace; resume_session opens it.")

    def _names(self, user_id: str, given: str | None, session_id: str | None) -> list[str]:
        """By what a session may be called: the next is tried when another user or workspace has the one before."""
        if session_id is not None:
            return [workspaces.check_name(session_id, "session_id")]
        if given is None:
            ports = core_of(self._app).ports
            now = moment(ports.clock.wall_us()).strftime("%Y%m%d_%H%M%S")
            return [f"session_{now}_{ports.random.getrandbits(32):08x}"]
        name = workspaces.name_from(Path(given))
        own = hashlib.sha256(f"{user_id}\0{given}".encode()).hexdigest()[:8]
        return [name] if self._confined else [name, f"{name[:119]}_{own}"]

    async def _opened(self, record: SessionRecord) -> GatewaySession:
        """A session that is active, and whose folder is there."""
        if record.metadata.get("status") != "active":
            record = await self._app.sessions.update(record.id, metadata={**record.metadata, "status": "active"})
        session = _session_of(record)
        manifest = {**_MARK, "session_id": session.session_id, "user_id": session.user_id, "at": self._now()}
        await asyncio.to_thread(workspaces.prepare, Path(session.workspace_dir), manifest)
        await self._note(session, "session_opened", user_id=session.user_id)
        return session

    async def resume_session(self, session_id: str) -> GatewaySession:
        """A session that is there; `UnknownSession`, a `ValueError`, when there is none. It changes nothing."""
        return _session_of(await self._record(session_id))

    async def _record(self, session_id: str) -> SessionRecord:
        if not workspaces.is_name(session_id):
            raise UnknownSession(str(session_id)[:200])
        try:
            record = await self._part.sessions.get(session_id)
        except NotFound:
            raise UnknownSession(session_id) from None
        own = {**_MARK, **self._pinned}
        if record.key != session_id or any(record.metadata.get(name) != value for name, value in own.items()):
            raise UnknownSession(session_id)
        if not await asyncio.to_thread(self._takes, record):
            raise UnknownSession(session_id)
        return record

    def _takes(self, record: SessionRecord) -> bool:
        """Whether its workspace is the one that this gateway would give it. A client may write what stands in the
        metadata, so this is asked at every use; a confined workspace follows from the session's key, which nobody can
        change."""
        user, folder = (record.metadata.get(name) for name in ("user_id", "workspace_dir"))
        if not isinstance(user, str) or not isinstance(folder, str) or record.key is None:
            return False
        try:
            given = None if self._confined else workspaces.check_workspace(folder)
            found = workspaces.place(self._base, given, record.key)
        except BadName:
            return False
        return str(found) == folder

    async def execute(
        self, session: GatewaySession, request: GatewayRequest, *, repeated_within: timedelta | None = None
    ) -> AsyncIterator[AgentEvent]:
        """The events of one turn, until it has ended; `SessionBusy` while the session has another one.

        The same `client_turn_id` again is the same turn: its events are given again, and nothing is run. So is the
        same input without an id, if `repeated_within` is given and the session's newest turn is not older than that.
        """
        session, (run, status) = await self._begin(session.session_id, request, repeated_within)
        info = {"session_id": session.session_id, "workspace_dir": session.workspace_dir, "run_id": run.id}
        yield AgentEvent(EventType.SESSION_INFO, info)
        admitted = {"status": status, "run_id": run.id, "client_turn_id": request.turn_id}
        yield AgentEvent(EventType.STATUS, admitted)
        if not core_of(self._app).binding.embedded and await _is_unserved(run):
            words = "no worker that lives serves this agent: the turn begins when one does"
            yield AgentEvent(EventType.STATUS, {"status": "unserved", "run_id": run.id, "message": words})
        last: AgentEvent | None = None
        async with aclosing(run.stream()) as events:
            async for event in events:
                last = agent_event(event)
                if last is not None:
                    yield last
        ended = "failed" if last is not None and last.type is EventType.ERROR else "completed"
        await self._note(session, "turn_ended", run_id=run.id, status=ended)

    async def _begin(
        self, session_id: str, request: GatewayRequest, repeated_within: timedelta | None
    ) -> tuple[GatewaySession, AdmittedTurn]:
        """The session as it stands in the store, whatever its caller kept of it, and the run of the turn."""
        protocol.execute(request)  # what no client could send is refused here too
        record = await self._record(session_id)
        agent = await self._answering()
        core_of(self._app).require_key(agent.spec.model, agent.spec.kind)
        await self._app.ensure_worker()
        handled, turn = handlers.current(), request.turn_id
        if turn is None and handled is not None:
            turn = handled.turn_id(session_id, request.user_input)
        known = _session_of(record)
        admitting = SessionAdmission(self._app, known, self._part.sessions[record.id], self._tenant)
        admitted = await admitting.admit(agent, request, turn, repeated_within)
        if admitted.status == "accepted":
            await self._opened(record)
            await self._note(known, "turn_started", run_id=admitted.run.id, client_turn_id=request.turn_id)
        return known, admitted

    async def _answering(self) -> Agent[Any]:
        if isinstance(self._agent, str):
            return await self._part.agents.named(self._agent)
        return self._agent or self._runtime.agent

    async def run_query(
        self, session: GatewaySession, request: GatewayRequest, event_callback: EventCallback | None = None
    ) -> GatewayResult:
        """One turn, and what it came to."""
        return await collected(self.execute(session, request), core_of(self._app).ports.clock, event_callback)

    async def cancel(self, session_id: str) -> int:
        """Cancel every turn of a session that has not ended; how many they were."""
        open_runs = await self._open_runs(session_id)
        for run in open_runs:
            await self._app.runs[run].cancel("cancelled through its gateway")
        return len(open_runs)

    async def _open_runs(self, session_id: str) -> list[str]:
        record = await self._record(session_id)
        runs = await self._app.sessions[record.id].runs(limit=_SHOWN)
        return [run.id for run in runs if run.finalized_at is None]

    async def pending(self, session_id: str) -> list[Inquiry]:
        """What the session's turns ask people now, the oldest first."""
        found: list[Inquiry] = []
        for run in reversed(await self._open_runs(session_id)):
            found += await self._part.inquiries.list(run=run)
        return found

    async def resolve_input(self, session_id: str, input_id: str, response: str) -> bool:
        """Give a person's answer to what a turn of this session asked; False when it asks nothing of that id.

        A question is answered with the text. Whatever else is asked is approved by "yes" and denied by any other text.
        """
        record = await self._record(session_id)
        try:
            inquiry = await self._part.inquiries.get(input_id)
            if inquiry.session_id != record.id:
                return False
            if inquiry.kind == "question":
                await self._part.inquiries.answer(inquiry.id, response, digest=inquiry.digest, by=self._by)
            elif response.strip().lower() in _YES:
                await self._part.inquiries.approve(inquiry.id, digest=inquiry.digest, by=self._by)
            else:
                await self._part.inquiries.deny(inquiry.id, digest=inquiry.digest, by=self._by, message=response)
        except (NotFound, AlreadyDecided):
            return False
        return True

    async def close_session(self, session_id: str) -> None:
        """Mark a session as closed. Its conversation and its files stay, and its next turn opens it again."""
        record = await self._record(session_id)
        await self._app.sessions.update(record.id, metadata={**record.metadata, "status": "closed"})

    async def list_sessions_async(self) -> list[GatewaySessionSummary]:
        """The newest sessions."""
        own = {**_MARK, **self._pinned}
        found = await self._part.sessions.list(metadata=own, tenant=self._tenant or "", limit=_SHOWN)
        return [_summary_of(record) for record in found]

    def list_sessions(self) -> list[GatewaySessionSummary]:
        """`list_sessions_async`, for code that cannot await it."""
        return self._app.sync(self.list_sessions_async())

    async def close(self) -> None:
        """Close the connection, if this gateway opened it; an app that you brought stays open."""
        if self._owned:
            await self._runtime.aclose()

    def _now(self) -> str:
        return moment(core_of(self._app).ports.clock.wall_us()).isoformat()

    async def _note(self, session: GatewaySession, event: str, **facts: object) -> None:
        await asyncio.to_thread(workspaces.note, Path(session.workspace_dir), self._now(), event, facts)


async def _is_unserved(run: Run[Any]) -> bool:
    return any(reason.gate in (Gate.NO_WORKER, Gate.NO_ROUTE) for reason in await run.why())


def _session_of(record: SessionRecord) -> GatewaySession:
    known = dict(record.metadata)
    if record.key is None:
        raise UsageError(f"session {record.id} has no key, so no gateway made it.")
    return GatewaySession(record.key, str(known["user_id"]), str(known["workspace_dir"]), known)


def _summary_of(record: SessionRecord) -> GatewaySessionSummary:
    known = dict(record.metadata)
    return GatewaySessionSummary(
        record.key or record.id, str(known.get("workspace_dir", "")), str(known.get("status", "")), known
    )
