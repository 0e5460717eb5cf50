"""The decision: what follows from an answer. Pure; every stop reason has its meaning here, an unknown one has none."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from holdfast.agents.content import readable
from holdfast.agents.definition import LAYER, AgentSpec, Delegate, Effect, ToolSpec
from holdfast.agents.forks.past import NOT_RECORDED, RecordedCalls, Simulation, policy_of, recorded_output
from holdfast.agents.money.budgets import above
from holdfast.agents.money.limits import limits_of
from holdfast.agents.people.questions import InquiryKind, call_data, digest_of_input, encode_data
from holdfast.agents.people.records import NewInquiry
from holdfast.agents.rows import LoadedRun, NewCall, WindowBlock
from holdfast.agents.runs.create import run_job
from holdfast.agents.runs.end import Conclusion
from holdfast.agents.runs.history import CLIENT_USE, text_of, uses
from holdfast.agents.runs.output import OutputTypes, UnreadAnswer, read_answer, unknown_type
from holdfast.agents.states import CallState, InquiryState
from holdfast.durations import Duration, microseconds
from holdfast.errors import BadPayload
from holdfast.kernel import codec
from holdfast.kernel.ids import JobId, derived_id
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import NewJob, Route
from holdfast.models.fold import Reply
from holdfast.models.request_view import CONTINUE, CORRECT
from holdfast.settings import Settings
from holdfast.workers.endings import redacted

log = logging.getLogger("holdfast.agents")

_CAP = 1 << 26
_DEEPEST = 1 << 30


class ToolCallRequest(NamedTuple):
    """One request to run a tool: with a job, or answered on the spot."""

    row: NewCall
    job: NewJob | None = None
    route: Route | None = None
    child: str | None = None  # the id of the agent that answers it in a run of its own
    inquiry: NewInquiry | None = None  # it waits for a person


class Decision(NamedTuple):
    """What is called, and what then: an end, a question to a person, a word to continue; without any, the next turn."""

    calls: tuple[ToolCallRequest, ...] = ()
    conclusion: Conclusion | None = None
    inquiry: NewInquiry | None = None
    continuation: str | None = None  # what the model is told so that it continues
    last: bool = False  # the limits of the run leave no room for another turn
    otherwise: Conclusion | None = None  # how it ends where it may not continue

    def within(self, *, last: bool) -> Decision:
        """The same, by what the limits of the run leave room for."""
        decision = self._replace(last=last)
        if not last or self.otherwise is None:
            return decision
        return decision._replace(conclusion=self.otherwise, continuation=None)


CALLING = ("tool_use", "end_turn", "stop_sequence", "pause_turn")  # no call of such an answer may stay unanswered

ApprovalCheck = Callable[[ToolSpec, str], bool]
"""Whether a person has to approve the call of this tool with this id; `holdfast.agents.runs.decision` finds out."""


def call_id(run: str, turn: int, place: int) -> str:
    """The id of the call at this place of an answer."""
    return derived_id(run, "call", turn, place)


class Decider:
    """Decides for one turn of one run."""

    def __init__(  # noqa: PLR0917  what decides
        self,
        run: LoadedRun,
        spec: AgentSpec,
        number: int,
        settings: Settings,
        approving: ApprovalCheck,
        records: RecordedCalls = RecordedCalls(),  # noqa: B008  it cannot be changed
        reading: OutputTypes = unknown_type,
    ) -> None:
        """`approving` says whether a person has to approve a call; a fork may answer it from `records`.

        `reading` knows the types of answers.
        """
        self._run = run
        self._spec = spec
        self._number = number
        self._settings = settings
        self._approving = approving
        self._simulation = Simulation(run, records)
        self._reading = reading
        self._before = ""
        self._corrected = False

    def decide(self, reply: Reply, before: str = "", *, corrected: bool = False) -> Decision:
        """`before`: the text that this answer continues with, if one was cut off. `corrected`: it is in place of one
        that did not fit.

        The answer is paid for: a fault in here ends its run rather than have it asked for, and fail, again. Only a type
        that fails, which is the program's own code, has the turn tried again: `UnreadAnswer`.
        """
        self._before, self._corrected = before, corrected
        asked = uses(reply.blocks)
        try:
            return self._decided(reply, asked)
        except UnreadAnswer:  # as with any handler that fails, it is tried again
            raise
        except Exception as problem:
            log.exception("what follows from turn %d of run %s could not be decided", self._number, self._run.id)
            why = f"what follows from the answer is not known: {type(problem).__name__}: {problem}"
            return self._failed(asked, redacted(why, self._settings.error_cap))

    def _decided(self, reply: Reply, asked: list[dict[str, Any]]) -> Decision:
        match reply.stop_reason:
            case reason if reason in CALLING and asked:
                return Decision(calls=tuple(self._call(place, use, reply) for place, use in enumerate(asked)))
            case "end_turn" | "stop_sequence":
                return self._answered(reply)
            case "tool_use":
                return Decision(conclusion=Conclusion("failed", "the model stopped to use a tool, but named none"))
            case "pause_turn":
                return Decision()
            case "max_tokens" | "model_context_window_exceeded" as reason:
                return self._cut_off(reply, asked, reason)
            case "refusal":
                refusal = {"category": None, **(reply.stop_details or {})}
                return Decision(conclusion=Conclusion("refused", text_of(reply.blocks), refusal=refusal))
            case other:
                return self._failed(asked, f"the model stopped for an unknown reason: {other!r}")

    def _failed(self, asked: list[dict[str, Any]], why: str) -> Decision:
        calls = tuple(self._refused(place, use, "The run failed.") for place, use in enumerate(asked))
        return Decision(calls, Conclusion("failed", why))

    def _cut_off(self, reply: Reply, asked: list[dict[str, Any]], reason: str) -> Decision:
        """By policy: stop, continue by itself so many times, or ask a person whether to."""
        cut = "The answer was cut off before this call was complete."
        calls = tuple(self._refused(place, use, cut) for place, use in enumerate(asked))
        text = self._before + text_of(reply.blocks)
        policy = self._spec.on_max_tokens if reason == "max_tokens" else "stop"
        if policy == "continue" and self._run.continued < self._spec.continuations:
            return Decision(calls, continuation=CONTINUE)
        if policy == "ask":
            data = {"reason": reason, "text": text}
            within = limits_of(self._run, self._spec).within
            return Decision(calls, inquiry=run_inquiry(self._run, self._number, "continuation", data, within=within))
        return Decision(calls, Conclusion("truncated", text, limited=reason))

    def _answered(self, reply: Reply) -> Decision:
        """The end, if it fits what was asked for. If it does not, the model is told once what is wrong."""
        text, schema = self._before + text_of(reply.blocks), self._spec.output
        if schema is None:
            return Decision(conclusion=Conclusion("answered", text))
        value, wrong = read_answer(schema, text, self._reading(self._spec.name, schema))
        if wrong is None:  # JSON can spell what no store holds
            return Decision(conclusion=Conclusion("answered", text, readable(value)))
        unfit = Conclusion("unfit", text, limited=wrong)
        if self._corrected:
            return Decision(conclusion=unfit)
        return Decision(continuation=CORRECT.format(wrong=wrong), otherwise=unfit)

    def _call(self, place: int, use: dict[str, Any], reply: Reply) -> ToolCallRequest:
        spec, name = self._spec, str(use.get("name", ""))
        if use["id"] in reply.nameless:
            return self._refused(place, use, "This call named no tool; call it again by its name.")
        if use["id"] in reply.bad_inputs:
            return self._refused(place, use, "The arguments were not valid JSON; call it again.")
        tool = spec.tool(name)
        if (known := self._known(place, use, "idempotent" if tool is None else tool.effect)) is not None:
            return known
        if tool is not None:
            return self._tool_call(place, use, tool)
        if (delegate := spec.delegate(name)) is not None:
            return self._agent_call(place, use, delegate)
        names = ", ".join([tool.name for tool in spec.tools] + [each.name for each in spec.agents]) or "none"
        return self._refused(place, use, f"There is no tool {name!r}. There are: {names}.")

    def _known(self, place: int, use: dict[str, Any], effect: Effect) -> ToolCallRequest | None:
        """The call of a fork as the record answers it; None when it is to be run, or asked about."""
        policy = self._simulation.policy
        if policy in ("live", "ask") or (policy == "recorded" and effect == "read"):
            return None
        record = self._simulation.take(str(use.get("name", "")), use.get("input", {}))
        if record is None:
            return self._refused(place, use, NOT_RECORDED) if policy == "replayed" else None
        row = self._row(place, use)._replace(effect=effect)
        return ToolCallRequest(
            row._replace(state=record.state, output=recorded_output(record), is_error=record.is_error)
        )

    def _must_ask(self, effect: Effect) -> bool:
        """Whether the author of the fork wants to be asked before this is run again."""
        return self._simulation.policy != "live" and effect != "read"

    def _row(self, place: int, use: dict[str, Any]) -> NewCall:
        return NewCall(
            id=call_id(self._run.id, self._number, place),
            run=self._run.id,
            turn=self._number,
            ordinal=place,
            tool_use_id=str(use["id"]),
            name=codec.clip(str(use.get("name", "")), 500),
            input=codec.encode(use.get("input", {}), what="a call's input", cap=_CAP),
            child=None,
            effect="read",
            state=None,
            output=None,
            is_error=0,
        )

    def _left_us(self) -> int | None:
        """How much wall clock the run has left for what it starts now."""
        time = limits_of(self._run, self._spec).time
        if time is None:
            return None
        return max(1, microseconds(time) - (self._run.now - self._run.created_at))

    def _refused(self, place: int, use: dict[str, Any], why: str) -> ToolCallRequest:
        """A call that needs no job: its answer is known."""
        said = codec.encode(why, what="an answer", cap=_CAP)
        return ToolCallRequest(self._row(place, use)._replace(state=CallState.FAILED, output=said, is_error=1))

    def _tool_call(self, place: int, use: dict[str, Any], tool: ToolSpec) -> ToolCallRequest:
        run, settings = self._run, self._settings
        row = self._row(place, use)._replace(effect=tool.effect)
        about = {
            "id": row.id,
            "run": run.id,
            "root": run.root,
            "session": run.session,
            "agent": run.agent_name,
            "turn": self._number,
            "depth": run.depth,
            "tool_use_id": row.tool_use_id,
            "variables": codec.decode(run.variables),
            **({"review": True, "approve_us": tool.within_us} if tool.review else {}),
        }
        try:
            payload = codec.encode(use.get("input", {}), what="the arguments", cap=settings.payload_cap)
        except BadPayload as problem:
            return self._refused(place, use, str(problem))
        route = route_for(tool.queue, tool.kind, tool.requires, laned=tool.lane is not None)
        job = NewJob(
            id=JobId(row.id),
            kind=tool.kind,
            queue=tool.queue,
            route=route.id,
            tenant=run.tenant,
            priority=tool.priority,
            delay_us=None,
            due_at=None,
            timeout_us=tool.timeout_us,
            deadline_us=self._left_us(),
            deadline_at=None,
            max_attempts=tool.attempts,
            max_rescues=0 if tool.effect == "once" else settings.max_rescues,
            parent=None,
            retry_of=None,
            payload=payload,
            metadata=codec.encode({"call": about}, what="a call's surroundings", cap=_CAP),
            lane=tool.lane,
            concurrency=tool.concurrency,
            layer=LAYER,
        )
        return ToolCallRequest(row, job, route, inquiry=self._inquiry(row, tool))

    def _inquiry(self, row: NewCall, tool: ToolSpec) -> NewInquiry | None:
        given = codec.decode(row.input)
        if tool.person:
            more = {"question": given.get("question"), "choices": given.get("choices")}
            asked = self._inquiry_about(row, "question", **more)
        elif tool.approve and self._approving(tool, row.id):
            asked = self._inquiry_about(row, "approval")
        else:  # nothing but the fork asks: then nothing but a person answers
            return self._inquiry_about(row, "approval") if self._must_ask(tool.effect) else None
        return asked._replace(fallback=_fallback(tool), timeout_us=tool.within_us)

    def _inquiry_about(self, row: NewCall, kind: InquiryKind, **more: Any) -> NewInquiry:
        given = codec.decode(row.input)
        return NewInquiry(
            id=row.id,
            run=row.run,
            session=self._run.session,
            tenant=self._run.tenant,
            kind=kind,
            call=row.id,
            name=row.name,
            digest=digest_of_input(row.name, given),
            data=encode_data(call_data(row.id, row.name, given, self._number, **more)),
            fallback=None,
            timeout_us=None,
        )

    def _agent_call(self, place: int, use: dict[str, Any], delegate: Delegate) -> ToolCallRequest:
        depths = [limits.get("depth") for _, limits in above(codec.decode(self._run.options), self._run.root)]
        depths.append(limits_of(self._run, self._spec).depth)
        deepest = min(int(depth or _DEEPEST) for depth in depths)
        if self._run.depth + 1 >= deepest:
            return self._refused(place, use, f"Agents may call each other {deepest} levels deep, not deeper.")
        task = use.get("input")
        if not isinstance(task, dict) or not isinstance(task.get("task"), str) or not task["task"].strip():
            return self._refused(place, use, "Say in `task` what the agent is to do.")
        row = self._row(place, use)
        row = row._replace(child=row.id, effect="idempotent")
        job, route = run_job(
            JobId(row.id),
            delegate.name,
            self._settings,
            tenant=self._run.tenant,
            queue=delegate.queue,
            priority=delegate.priority,
            requires=delegate.requires,
            mode=self._run.mode,
            deadline_us=self._left_us(),
        )
        asked = self._inquiry_about(row, "approval", agent=True) if self._must_ask("idempotent") else None
        return ToolCallRequest(row, job, route, child=delegate.agent, inquiry=asked)


def _fallback(tool: ToolSpec) -> str | None:
    if tool.within_us is None or tool.otherwise is None:
        return None
    if tool.person:
        return encode_data({"verdict": InquiryState.ANSWERED, "answer": tool.otherwise})
    return encode_data({"verdict": InquiryState.APPROVED if tool.otherwise == "approve" else InquiryState.DENIED})


def run_inquiry(
    run: LoadedRun, number: int, kind: InquiryKind, data: dict[str, Any], *, within: Duration | None = None
) -> NewInquiry:
    """What a run as a whole has to ask of a person; when nobody decides in time, it ends as if it had been denied."""
    return NewInquiry(
        id=derived_id(run.id, kind, number, run.continued),
        run=run.id,
        session=run.session,
        tenant=run.tenant,
        kind=kind,
        call=None,
        name=run.agent_name,
        digest=codec.digest(encode_data(data)),
        data=encode_data(data),
        fallback=None,
        timeout_us=None if within is None else microseconds(within),
    )


# Approvals: which calls of an answer a person has to approve, asked before anything is decided.
#
# The `approve=` of a tool is code of the program and may wait for something, so it is asked outside of the decision and
# of every transaction. The toolbox limits its time.


_AT_ONCE = 8  # calls of one answer: one that hangs delays the others no longer than it is waited for

ApprovalRule = Callable[[ToolSpec, str, dict[str, Any]], Awaitable[bool]]
"""Whether a person has to approve a call of this tool, with this id and these arguments."""


async def never(_tool: ToolSpec, _call: str, _input: dict[str, Any]) -> bool:
    return False


class AskedCall(NamedTuple):
    """A call whose tool has an `approve=`."""

    tool: ToolSpec
    id: str
    input: dict[str, Any]


async def ask_rule(rule: ApprovalRule, calls: Iterable[AskedCall]) -> ApprovalCheck:
    """Ask the rule about these calls; the answer says of each whether a person has to approve it, and yes of others."""
    asked = list(calls)
    places = asyncio.Semaphore(_AT_ONCE)

    async def ask(call: AskedCall) -> bool:
        async with places:
            return await rule(*call)

    answers = await asyncio.gather(*map(ask, asked)) if len(asked) > 1 else [await rule(*call) for call in asked]
    known = {call.id: answer for call, answer in zip(asked, answers, strict=True)}
    return lambda _tool, call: known.get(call, True)


def asked_calls(run: LoadedRun, spec: AgentSpec, number: int, reply: Reply) -> Iterator[AskedCall]:
    """The calls of an answer that the rule is asked about. A replay runs none of them."""
    if reply.stop_reason not in CALLING or policy_of(run) == "replayed":
        return
    for place, use in enumerate(uses(reply.blocks)):
        tool = spec.tool(str(use.get("name", "")))
        if tool is not None and tool.approve and not tool.person and use["id"] not in reply.bad_inputs:
            yield AskedCall(tool, call_id(run.id, number, place), use.get("input", {}))


# Ids of calls: every call of an answer has one that no other call of the conversation has.
#
# Providers see to that, and what stands between us and them does not always. The answer is paid for, so it is kept: a
# call without an id, or with one that is taken, gets an id of ours. It is made from the run, the turn and the place, so
# that reading the same answer again gives the same one.


_ID = re.compile("[a-zA-Z0-9_-]{1,256}")
UNNAMED = "unnamed"  # what a call without a name is called in the history


class RepairedReply(NamedTuple):
    """An answer whose calls can be told apart, and what was changed for that, one entry for each call."""

    reply: Reply
    repairs: tuple[dict[str, Any], ...] = ()


def used_ids(window: Sequence[WindowBlock]) -> set[str]:
    """The ids of the calls that were made before."""
    return {str(codec.decode(row.body).get("id")) for row in window if row.type == CLIENT_USE}


def repair_calls(reply: Reply, run: str, turn: int, taken: Collection[str] = ()) -> RepairedReply:
    """The answer with an id and a name for each call; `taken` are the ids of earlier ones."""
    uses = [place for place, block in enumerate(reply.blocks) if block.get("type") == CLIENT_USE]
    if not uses:
        return RepairedReply(reply)
    blocks, seen = list(reply.blocks), set(taken)
    repairs: list[dict[str, Any]] = []
    bad: dict[str, str] = {}
    nameless: set[str] = set()
    for place in uses:
        block = blocks[place]
        id, name, given = block.get("id"), block.get("name"), block.get("input")
        own = id if isinstance(id, str) and _ID.fullmatch(id) and id not in seen else _own_id(run, turn, place)
        named = isinstance(name, str) and bool(name.strip())
        seen.add(own)
        if not named:
            nameless.add(own)
        if place in reply.bad_places or not isinstance(given, dict):
            bad[own] = reply.bad_inputs.get(str(id), "")
        if own != id or not named or not isinstance(given, dict):
            blocks[place] = {
                **block,
                "id": own,
                "name": name if named else UNNAMED,
                "input": given if isinstance(given, dict) else {},
            }
        if own != id or not named:
            repairs.append({"index": place, "was": codec.clip(str(id), 200), "id": own, "named": named})
    kept = replace(reply, blocks=blocks, bad_inputs=bad, nameless=frozenset(nameless), duplicates=())
    return RepairedReply(kept, tuple(repairs))


def _own_id(run: str, turn: int, place: int) -> str:
    return "toolu_" + derived_id(run, "use", turn, place).replace("-", "")
