"""The events of a Holdfast run in the words of this interface."""

from __future__ import annotations

from holdfast import events as told
from holdfast.events import Event
from holdfast.facades.universal_agent.gateway_values import AgentEvent, Data, EventType
from holdfast.reasons import failure_for_tenant
from holdfast.results import Result


def agent_event(event: Event) -> AgentEvent | None:
    """How a client of a gateway learns of an event; None: not at all."""
    match event:
        case told.TextDelta(text=text):
            return AgentEvent(EventType.TEXT, {"text": text})
        case told.ThinkingDelta(text=text):
            return AgentEvent(EventType.THINKING, {"thinking": text})
        case told.ToolCalled():
            return AgentEvent(EventType.TOOL_CALL, {"id": event.call, "name": event.name, "input": event.input})
        case told.ToolEnded():
            failed = event.state != "completed"
            return AgentEvent(
                EventType.TOOL_RESULT, {"tool_use_id": event.call, "name": event.name, "is_error": failed}
            )
        case told.ApprovalRequested() | told.QuestionAsked() | told.InputRequested():
            return AgentEvent(EventType.INPUT_REQUIRED, _wanted(event))
        case told.InputGiven():
            return AgentEvent(
                EventType.INPUT_RESPONSE, {"input_id": event.inquiry, "verdict": event.verdict, "by": event.by}
            )
        case told.RunEnded():
            return _ended(event)
        case _:
            return _status(event)


def _wanted(event: told.ApprovalRequested | told.QuestionAsked | told.InputRequested) -> Data:
    match event:
        case told.QuestionAsked():
            return {"input_id": event.inquiry, "category": "question", "question": event.question}
        case told.ApprovalRequested():
            question = event.reason or f"May {event.call.name} be called?"
            call = {"name": event.call.name, "input": event.call.input, "digest": event.digest}
            return {"input_id": event.inquiry, "category": event.kind, "question": question, "call": call}
        case _:
            return {"input_id": event.inquiry, "category": event.kind, "question": event.reason}


def _ended(event: told.RunEnded) -> AgentEvent:
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


def _status(event: Event) -> AgentEvent | None:
    match event:
        case told.RunStateChanged():
            return AgentEvent(EventType.STATUS, {"status": event.state, "run_id": event.run})
        case told.TurnRestarted():
            return AgentEvent(EventType.STATUS, {"status": "restarted", "turn": event.turn})
        case told.TurnFailed():
            reason = failure_for_tenant(event.kind, event.message)  # who reads this is a user of the program
            return AgentEvent(EventType.STATUS, {"status": "retrying", "turn": event.turn, "reason": reason})
        case _:
            return None
