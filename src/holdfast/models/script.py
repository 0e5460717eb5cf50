"""Scripts: what a model says without a model, for tests, demos and the provider simulator.

A script keeps no state. The step to play follows from the messages alone (how many assistant turns have come since the
last message of a user), so any worker, after any crash, plays the right one. When Holdfast itself asks the model to
repair an answer or to continue it, the next step answers, and the last one if there is no other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import UsageError
from holdfast.models.examples import example
from holdfast.models.expectations import Expected, Unexpected
from holdfast.models.protocol import Wire
from holdfast.models.request_view import Heard, is_follow_up, is_said
from holdfast.models.steps import (
    Call,
    Inside,
    Part,
    Raw,
    Reject,
    Rejected,
    Say,
    ScriptedTurn,
    Think,
    block,
    call,
    calls,
    ends,
    read_step,
    refuse,
    reject,
    say,
    think,
    truncate,
    whole,
)
from holdfast.models.thinking_signature import blocks_of
from holdfast.shown_text import plural

__all__ = [
    "Call",
    "Inside",
    "Part",
    "Raw",
    "Reject",
    "Rejected",
    "Say",
    "Script",
    "ScriptedTurn",
    "Step",
    "Think",
    "block",
    "call",
    "calls",
    "ends",
    "last_user_text",
    "refuse",
    "reject",
    "say",
    "think",
    "truncate",
    "turns_since_user",
]

Step = Part | Expected | Callable[[list[Wire]], Part]


class Script:
    """The answers to one user message, in order. Asked for more than it has, it raises `UsageError`.

    `Script(say(bad), say(good))` also tests a repair: when an answer does not fit the agent's `output`, Holdfast asks
    again, and the next step answers. If that was the last step, it is said once more.
    """

    def __init__(self, *steps: Step) -> None:
        self._turns: list[tuple[tuple[Think, ...], Step]] = []
        thoughts: tuple[Think, ...] = ()
        for step in steps:
            if isinstance(step, Think):
                thoughts = (*thoughts, step)
            else:
                self._turns.append((thoughts, step))
                thoughts = ()
        if thoughts:
            raise UsageError("a script cannot end with think(): it belongs to the step after it.")

    @classmethod
    def default(cls) -> Script:
        """Call the first tool once, with arguments made from its schema, and answer with what it returned; or echo."""
        return _Default()

    @classmethod
    def cassette(cls, path: str | Path, *, strict: bool = False) -> Script:
        """Read a script from JSON: one that was recorded (`run.cassette(path)`), or a list of steps.

        With `strict`, what was recorded is also expected: the same texts of users, the same results of tools.
        A list is written by hand: `{"say": text}`, `{"call": [name, input]}`, `{"calls": [...]}` …
        """
        from holdfast.models.cassettes import Recorded

        try:
            written = json.loads(Path(path).read_text())
            if isinstance(written, dict):
                return Recorded.read(written, strict=strict)
            steps = [read_step(step) for step in written]
        except (ValueError, TypeError, KeyError) as problem:
            raise UsageError(f"{path} is not a script: {problem}.") from problem
        if strict:
            raise UsageError(f"{path} is written by hand: it does not say what was asked. Record one for strict=True.")
        return cls(*steps)

    @classmethod
    def by_agent(cls, scripts: Mapping[str, Script], *, otherwise: Script | None = None) -> Script:
        """A script for each agent, by its name. Which agent asks is known in a lab."""
        return _ByAgent(scripts, otherwise)

    @classmethod
    def by_model(cls, scripts: Mapping[str, Script], *, otherwise: Script | None = None) -> Script:
        """A script for each model, by the name that agents give it."""
        return _ByModel(scripts, otherwise)

    def for_agent(self, name: str) -> Script:
        """The script that answers this agent."""
        return self

    def turn(self, body: Wire) -> ScriptedTurn:
        """What to answer to this request."""
        messages = body["messages"]
        number = turns_since_user(messages, follow_ups=False)
        if is_follow_up(messages[-1]):
            number = min(number, len(self._turns) - 1)
        if number >= len(self._turns):
            raise self._run_out(number, body)
        thoughts, step = self._turns[number]
        try:
            turn = whole(_played(step, body))
        except Unexpected as problem:
            raise Unexpected(f"at step {number + 1} of {len(self._turns)}:\n{problem}") from None
        except AssertionError as problem:
            where = f"at step {number + 1} of {len(self._turns)}, which asserts: {problem}"
            raise Unexpected(f"{where}\nWhat it was sent:\n{Heard(body).told()}") from problem
        return ScriptedTurn((*thoughts, *turn.parts), turn.stop_reason, turn.category, turn.usage)

    def _run_out(self, number: int, body: Wire) -> UsageError:
        problem = (
            f"the script has {plural(len(self._turns), 'step')} and is asked for step {number + 1}: "
            f"give it one step for each model call that follows a user message."
        )
        if any(isinstance(step, Expected) for _, step in self._turns):  # it expects no more, either
            return Unexpected(f"{problem}\nWhat it was sent:\n{Heard(body).told()}")
        return UsageError(problem)


def _played(step: Step, body: Wire) -> Part:
    match step:
        case Expected():
            return step.played(body)
        case Think() | Say() | Call() | Raw() | ScriptedTurn() | Reject():
            return step
        case _:
            return step(list(body["messages"]))


class _ByAgent(Script):
    def __init__(self, scripts: Mapping[str, Script], otherwise: Script | None) -> None:
        super().__init__()
        self._scripts = dict(scripts)
        self._otherwise = otherwise

    def for_agent(self, name: str) -> Script:
        found = self._scripts.get(name, self._otherwise)
        if found is None:
            raise Unexpected(f"there is no script for {_named('agent', name)}; there are {_listed(self._scripts)}.")
        return found.for_agent(name)

    def turn(self, body: Wire) -> ScriptedTurn:
        if self._otherwise is None:
            raise UsageError("only a lab knows which agent asks; elsewhere, use Script.by_model.")
        return self._otherwise.turn(body)


class _ByModel(Script):
    def __init__(self, scripts: Mapping[str, Script], otherwise: Script | None) -> None:
        super().__init__()
        self._scripts = dict(scripts)
        self._otherwise = otherwise

    def for_agent(self, name: str) -> Script:
        mine = {model: script.for_agent(name) for model, script in self._scripts.items()}
        return _ByModel(mine, None if self._otherwise is None else self._otherwise.for_agent(name))

    def turn(self, body: Wire) -> ScriptedTurn:
        found = self._scripts.get(body["model"], self._otherwise)
        if found is None:
            raise Unexpected(f"there is no script for model {body['model']!r}; there are {_listed(self._scripts)}.")
        return found.turn(body)


def _named(what: str, name: str) -> str:
    return f"{what} {name!r}" if name else f"a call of no {what}"


def _listed(scripts: Mapping[str, Script]) -> str:
    return ", ".join(sorted(scripts)) or "none"


class _Default(Script):
    def turn(self, body: Wire) -> ScriptedTurn:
        messages, tools = body["messages"], [tool for tool in body.get("tools") or [] if "input_schema" in tool]
        text = last_user_text(messages)
        if tools and turns_since_user(messages, follow_ups=False) == 0:
            return calls(Call(tools[0]["name"], example(tools[0]["input_schema"], text)))
        wanted = (body.get("output_config") or {}).get("format")
        if wanted:
            return ScriptedTurn((Say(json.dumps(example(wanted["schema"], text), ensure_ascii=False)),))
        return ScriptedTurn((Say(_returned(messages[-1]["content"]) or text or "(nothing)"),))


def turns_since_user(messages: Sequence[Wire], *, follow_ups: bool = True) -> int:
    """Assistant messages after the last user message that holds more than answers to tool calls.

    With `follow_ups=False`, what Holdfast itself asks of the model is no such message.
    """
    count = 0
    for message in reversed(messages):
        if message["role"] == "assistant":
            count += 1
        elif is_said(message) and (follow_ups or not is_follow_up(message)):
            break
    return count


def last_user_text(messages: Sequence[Wire]) -> str:
    for message in reversed(messages):
        texts = [block["text"] for block in blocks_of(message["content"]) if block.get("type") == "text"]
        if message["role"] == "user" and texts:
            return str(texts[-1])
    return ""


def _returned(content: Any) -> str:
    """The text of the tool results in a message."""
    results = [block.get("content") or "" for block in blocks_of(content) if block.get("type") == "tool_result"]
    texts = [block.get("text", "") for result in results for block in blocks_of(result)]
    return "\n".join(text for text in texts if text)
