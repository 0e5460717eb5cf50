"""Scripts: what a model says without a model, for tests, demos and the provider simulator.

A script keeps no state. The step to play follows from the messages alone (how many assistant turns have come since the
last message of a user), so any worker, after any crash, plays the right one. When Holdfast itself asks the model to
repair an answer or to continue it, the next step answers, and the last one if there is no other.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from holdfast.errors import UsageError
from holdfast.models.protocol import Wire
from holdfast.models.request_view import RequestView, ReturnedResult, blocks_of, is_follow_up, is_said, texts_of
from holdfast.models.steps import (
    Call,
    ExpectedStep,
    Inside,
    Part,
    Raw,
    Reject,
    Rejected,
    Say,
    ScriptedTurn,
    Think,
    Unexpected,
    block,
    call,
    calls,
    ends,
    read_inside,
    read_step,
    refuse,
    reject,
    say,
    think,
    truncate,
    whole,
    write_inside,
)
from holdfast.text import Redactor, plural

# A value that follows a JSON schema: the arguments and the structured output of a script that was given none.


def example(schema: Mapping[str, Any], text: str) -> Any:
    """Strings take `text`, numbers 1, booleans true, enums their first value; of a choice the first, `null` last."""
    return _example(schema, text, schema)


def _example(schema: Mapping[str, Any], text: str, root: Mapping[str, Any]) -> Any:
    if "$ref" in schema:
        return _example(_resolved(schema["$ref"], root), text, root)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            choices = [each for each in schema[key] if each.get("type") != "null"] or schema[key]
            return _example(choices[0], text, root)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = next((each for each in kind if each != "null"), "null")
    return _of_type(kind, schema, text, root)


def _of_type(kind: str, schema: Mapping[str, Any], text: str, root: Mapping[str, Any]) -> Any:
    match kind:
        case "object":
            properties: Mapping[str, Any] = schema.get("properties") or {}
            wanted = schema.get("required", list(properties))
            return {name: _example(properties.get(name, {}), text, root) for name in wanted}
        case "array":
            count = max(1, schema.get("minItems", 1))
            return [_example(schema.get("items") or {}, text, root)] * count
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return text or "text"


def _resolved(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    value: Any = root
    for step in reference.removeprefix("#/").split("/"):
        value = value[step]
    found: Mapping[str, Any] = value
    return found


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

Step = Part | ExpectedStep | Callable[[list[Wire]], Part]


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

        try:
            written = json.loads(Path(path).read_text())
            if isinstance(written, dict):
                return RecordedScript.read(written, strict=strict)
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
            raise Unexpected(f"{where}\nWhat it was sent:\n{RequestView(body).told()}") from problem
        return ScriptedTurn((*thoughts, *turn.parts), turn.stop_reason, turn.category, turn.usage)

    def _run_out(self, number: int, body: Wire) -> UsageError:
        problem = (
            f"the script has {plural(len(self._turns), 'step')} and is asked for step {number + 1}: "
            f"give it one step for each model call that follows a user message."
        )
        if any(isinstance(step, ExpectedStep) for _, step in self._turns):  # it expects no more, either
            return Unexpected(f"{problem}\nWhat it was sent:\n{RequestView(body).told()}")
        return UsageError(problem)


def _played(step: Step, body: Wire) -> Part:
    match step:
        case ExpectedStep():
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


# Cassettes: what models were asked and answered in real runs, in a file, so that a script can answer the same again.
#
# What looks like a secret is taken out before anything is written, and thinking loses its signature: the model that
# plays
# it signs it again.


VERSION = 1
_PAUSED = "pause_turn"


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """What was new in a request: what the user said, if anything, and what tools returned."""

    text: str | None
    results: tuple[ReturnedResult, ...] = ()

    @classmethod
    def of(cls, heard: RequestView) -> RecordedRequest:
        text = without_secrets(heard.text) if is_said(heard.messages[-1]) else None
        results = [ReturnedResult(each.tool, without_secrets(each.text), each.is_error) for each in heard.results]
        return cls(text, tuple(results))

    def lines(self) -> list[str]:
        """For a comparison."""
        said = [] if self.text is None else ["user:", *self.text.splitlines()]
        for result in self.results:
            said += [f"{result.tool} {'failed' if result.is_error else 'returned'}:", *result.text.splitlines()]
        return said


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """One turn: what the model was asked, and the answer."""

    asked: RecordedRequest
    turn: ScriptedTurn


@dataclass(frozen=True, slots=True)
class Recording:
    """One run: the turns of an agent, in order."""

    agent: str
    model: str
    turns: tuple[RecordedAnswer, ...]

    def place(self, messages: Sequence[Wire]) -> tuple[int, bool]:
        """Which turn answers these messages, and whether they begin as the run did.

        A user may have spoken in the middle of the run. Its text finds the answers to that.
        """
        said = [without_secrets(text) for text in texts_of(messages)]
        begun = [number for number, each in enumerate(self.turns) if each.asked.text is not None]
        texts = [self.turns[number].asked.text for number in begun]
        spoken = max(k for k in range(len(begun)) if k == 0 or (len(said) > k and said[-k:] == texts[1 : k + 1]))
        same = len(said) > spoken and said[-spoken - 1] == texts[0]
        end = [*begun, len(self.turns)][spoken + 1]
        number = self._next(range(begun[spoken], end), messages)
        return (len(self.turns) if number is None else number), same

    def _next(self, numbers: range, messages: Sequence[Wire]) -> int | None:
        """Which of these turns is next; none when all have been played. Answers that paused are sent as one message."""
        answers: list[list[int]] = []
        for number in numbers:
            if number > numbers.start and self.turns[number - 1].turn.stop_reason == _PAUSED:
                answers[-1].append(number)
            else:
                answers.append([number])
        played = turns_since_user(messages)
        if messages[-1]["role"] != "assistant":
            return answers[played][0] if played < len(answers) else None
        sent = len(blocks_of(messages[-1]["content"]))
        left = iter(answers[played - 1] if played <= len(answers) else ())
        for number in left:
            sent -= len(self.turns[number].turn.parts)
            if sent <= 0:
                break
        return next(left, None)


class RecordedScript(Script):
    """A script that plays recordings: the one whose prompt was the same, or else the first."""

    def __init__(self, recordings: Sequence[Recording], *, strict: bool) -> None:
        super().__init__()
        self._recordings = recordings
        self._strict = strict

    @classmethod
    def read(cls, written: Mapping[str, Any], *, strict: bool) -> Self:
        """`ValueError`, `TypeError` or `KeyError` when this is not a cassette."""
        if written.get("cassette") != VERSION:
            raise ValueError(f"it is not a cassette of version {VERSION}, but {written.get('cassette')!r}")
        recordings = [_read(run) for run in written["runs"]]
        if not all(each.turns and each.turns[0].asked.text is not None for each in recordings) or not recordings:
            raise ValueError("a run in it does not begin with what a user said")
        return cls(recordings, strict=strict)

    def for_agent(self, name: str) -> Script:
        own = [each for each in self._recordings if each.agent == name]
        return RecordedScript(own, strict=self._strict) if own else self

    def turn(self, body: Wire) -> ScriptedTurn:
        places = [(each, *each.place(body["messages"])) for each in self._recordings]
        recording, number, _ = next((each for each in places if each[2]), places[0])
        if number >= len(recording.turns):
            turns = plural(len(recording.turns), "turn")
            problem = f"the recorded run of {recording.agent} was not asked this: it has {turns}."
            if not self._strict:
                raise UsageError(problem)
            raise Unexpected(f"{problem}\nWhat it was sent:\n{RequestView(body).told()}")
        answered = recording.turns[number]
        if self._strict:
            _compare(answered.asked, RecordedRequest.of(RequestView(body)), number, recording)
        return answered.turn


def _compare(recorded: RecordedRequest, asked: RecordedRequest, number: int, recording: Recording) -> None:
    if recorded != asked:
        lines = difflib.ndiff(recorded.lines(), asked.lines())
        where = f"at turn {number + 1} of the recorded run of {recording.agent} (- recorded, + asked):"
        raise Unexpected("\n".join([where, *(line.rstrip("\n") for line in lines)]))


def write(recordings: Sequence[Recording]) -> str:
    """The text of a cassette."""
    runs = [{"agent": each.agent, "model": each.model, "turns": list(map(_written, each.turns))} for each in recordings]
    return json.dumps({"cassette": VERSION, "runs": redacted(runs)}, ensure_ascii=False, indent=1) + "\n"


def part_of(block: Wire) -> Inside | None:
    """A block of an answer as a part of a step; none for what only its provider can read."""
    match block.get("type"):
        case "thinking":
            return Think(str(block.get("thinking", "")))
        case "redacted_thinking":
            return None
        case "text" if not block.get("citations"):
            return Say(str(block.get("text", "")))
        case "tool_use":
            return Call(str(block["name"]), dict(block["input"]))
        case _:
            return Raw(block)


def redacted(value: Any) -> Any:
    """A JSON value without what looks like a secret."""
    return Redactor().value(value)


def without_secrets(text: str) -> str:
    return Redactor().text(text)


def _sealed(part: Inside) -> Inside:
    """A call goes by the names of its arguments, as in a capsule."""
    return Call(part.name, Redactor().value(part.input, "arguments")) if isinstance(part, Call) else part


def _written(answered: RecordedAnswer) -> dict[str, Any]:
    asked, turn = answered.asked, answered.turn
    request: dict[str, Any] = {} if asked.text is None else {"text": asked.text}
    if asked.results:
        request["results"] = [
            {"tool": each.tool, "text": each.text, "is_error": each.is_error} for each in asked.results
        ]
    parts = [write_inside(_sealed(part)) for part in turn.parts]
    written = {"asked": request, "parts": parts, "stop": turn.stop_reason}
    more = {"category": turn.category, "usage": turn.usage}
    return written | {name: value for name, value in more.items() if value is not None}


def _read(run: Mapping[str, Any]) -> Recording:
    return Recording(run["agent"], run["model"], tuple(map(_answered, run["turns"])))


def _answered(written: Mapping[str, Any]) -> RecordedAnswer:
    request = written["asked"]
    results = tuple(ReturnedResult(each["tool"], each["text"], each["is_error"]) for each in request.get("results", ()))
    parts = tuple(map(read_inside, written["parts"]))
    turn = ScriptedTurn(parts, written["stop"], written.get("category"), written.get("usage"))
    return RecordedAnswer(RecordedRequest(request.get("text"), results), turn)
