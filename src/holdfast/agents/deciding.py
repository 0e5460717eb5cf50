"""Deciding: what follows from an answer. Pure; every stop reason has its meaning here, and an unknown one has none."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.agents.definitions import AgentSpec, Delegate, Limits, ToolSpec
from holdfast.agents.history import text_of, uses
from holdfast.agents.records import LoadedRun, NewCall
from holdfast.agents.turns import Call, Conclusion, call_id
from holdfast.durations import microseconds, show
from holdfast.errors import BadPayload
from holdfast.kernel import encoding
from holdfast.kernel.ids import JobId
from holdfast.kernel.records import NewJob, Route
from holdfast.kernel.routes import route_for
from holdfast.models.folding import Reply
from holdfast.settings import Settings

_CAP = 1 << 26


class Decision(NamedTuple):
    calls: tuple[Call, ...] = ()
    conclusion: Conclusion | None = None


class Deciding:
    """Decides for one turn of one run."""

    def __init__(self, run: LoadedRun, spec: AgentSpec, number: int, settings: Settings) -> None:
        self._run = run
        self._spec = spec
        self._number = number
        self._settings = settings

    def decide(self, reply: Reply) -> Decision:
        asked = uses(reply.blocks)
        match reply.stop_reason:
            case "tool_use" | "end_turn" | "stop_sequence" | "pause_turn" if asked:  # no call may stay unanswered
                return Decision(calls=tuple(self._call(place, use, reply) for place, use in enumerate(asked)))
            case "end_turn" | "stop_sequence":
                return Decision(conclusion=self._answered(reply))
            case "tool_use":
                return Decision(conclusion=Conclusion("failed", "the model stopped to use a tool, and named none"))
            case "pause_turn":
                return Decision()
            case "max_tokens" | "model_context_window_exceeded" as reason:
                cut = "The answer was cut off before this call was complete."
                calls = tuple(self._refused(place, use, cut) for place, use in enumerate(asked))
                return Decision(calls, Conclusion("truncated", text_of(reply.blocks), limited=reason))
            case "refusal":
                refusal = {"category": None, **(reply.stop_details or {})}
                return Decision(conclusion=Conclusion("refused", text_of(reply.blocks), refusal=refusal))
            case other:
                why = f"the model stopped for a reason that is not known here: {other!r}"
                calls = tuple(self._refused(place, use, "The run failed.") for place, use in enumerate(asked))
                return Decision(calls, Conclusion("failed", why))

    def _answered(self, reply: Reply) -> Conclusion:
        text = text_of(reply.blocks)
        output: Any = None
        if self._spec.output is not None:
            with contextlib.suppress(ValueError):
                output = json.loads(text)
        return Conclusion("answered", text, output)

    def _call(self, place: int, use: dict[str, Any], reply: Reply) -> Call:
        spec, name = self._spec, str(use.get("name", ""))
        if use["id"] in reply.bad_inputs:
            return self._refused(place, use, "The arguments were not valid JSON; call it again.")
        if (tool := spec.tool(name)) is not None:
            return self._tool_call(place, use, tool)
        if (delegate := spec.delegate(name)) is not None:
            return self._agent_call(place, use, delegate)
        known = ", ".join([tool.name for tool in spec.tools] + [each.name for each in spec.agents]) or "none"
        return self._refused(place, use, f"There is no tool {name!r}. There are: {known}.")

    def _row(self, place: int, use: dict[str, Any]) -> NewCall:
        return NewCall(
            id=call_id(self._run.id, self._number, place),
            run=self._run.id,
            turn=self._number,
            ordinal=place,
            tool_use_id=str(use["id"]),
            name=encoding.clip(str(use.get("name", "")), 500),
            input=encoding.encode(use.get("input", {}), what="a call's input", cap=_CAP),
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

    def _refused(self, place: int, use: dict[str, Any], why: str) -> Call:
        """A call that needs no job: its answer is known."""
        said = encoding.encode(why, what="an answer", cap=_CAP)
        return Call(self._row(place, use)._replace(state="failed", output=said, is_error=1))

    def _tool_call(self, place: int, use: dict[str, Any], tool: ToolSpec) -> Call:
        run, settings = self._run, self._settings
        row = self._row(place, use)._replace(effect=tool.effect)
        about = {
            "run": run.id,
            "root": run.root,
            "session": run.session,
            "agent": run.agent_name,
            "turn": self._number,
            "depth": run.depth,
            "tool_use_id": row.tool_use_id,
            "variables": encoding.decode(run.variables),
        }
        try:
            payload = encoding.encode(use.get("input", {}), what="the arguments", cap=settings.payload_cap)
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
            metadata=encoding.encode({"call": about}, what="a call's surroundings", cap=_CAP),
            lane=tool.lane,
            concurrency=tool.concurrency,
        )
        return Call(row, job, route)

    def _agent_call(self, place: int, use: dict[str, Any], delegate: Delegate) -> Call:
        deepest = limits_of(self._run, self._spec).depth
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
            deadline_us=self._left_us(),
        )
        return Call(row, job, route, child=delegate.agent)


def run_job(  # noqa: PLR0913  what a job can be told
    id: JobId,
    agent: str,
    settings: Settings,
    *,
    tenant: str = "",
    queue: str = "default",
    priority: int = 100,
    requires: Sequence[str] = (),
    delay_us: int | None = None,
    due_at: int | None = None,
    deadline_us: int | None = None,
) -> tuple[NewJob, Route]:
    """The job of a run. Its payload is empty: what it is about stands in the run's row."""
    kind = f"agent:{agent}"
    route = route_for(queue, kind, requires)
    job = NewJob(
        id=id,
        kind=kind,
        queue=queue,
        route=route.id,
        tenant=tenant,
        priority=priority,
        delay_us=delay_us,
        due_at=due_at,
        timeout_us=None,
        deadline_us=deadline_us,
        deadline_at=None,
        max_attempts=settings.max_attempts,
        max_rescues=settings.max_rescue_attempts,
        parent=None,
        retry_of=None,
        payload="{}",
        metadata="{}",
    )
    return job, route


def limits_of(run: LoadedRun, spec: AgentSpec) -> Limits:
    """The run's own limits, or those of its agent."""
    given = encoding.decode(run.options).get("limits")
    return spec.limits if given is None else Limits(**given)


def exceeded(run: LoadedRun, limits: Limits) -> str | None:
    """Which limit the run has reached, in words."""
    if limits.turns is not None and run.turns >= limits.turns:
        return f"{run.turns} turns of {limits.turns}"
    if limits.tokens is not None and run.tokens >= limits.tokens:
        return f"{run.tokens:,} tokens of {limits.tokens:,}"
    if limits.cost_nano is not None and run.cost_nano and run.cost_nano >= limits.cost_nano:
        return f"{run.cost_nano / 1e9:.6f} USD of {limits.cost}"
    if limits.time is not None and run.now - run.created_at >= microseconds(limits.time):
        return f"{show(microseconds(limits.time))} of wall clock"
    return None
