"""Cassettes: what models were asked and answered in real runs, in a file, so that a script can answer the same again.

What looks like a secret is taken out before anything is written, and thinking loses its signature: the model that plays
it signs it again.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from holdfast.errors import UsageError
from holdfast.models.expectations import Unexpected
from holdfast.models.protocol import Wire
from holdfast.models.request_view import Heard, Returned, is_said, texts_of
from holdfast.models.script import Script, turns_since_user
from holdfast.models.steps import Call, Inside, Raw, Say, ScriptedTurn, Think, read_inside, write_inside
from holdfast.models.thinking_signature import blocks_of
from holdfast.redaction import Redactor
from holdfast.shown_text import plural

VERSION = 1
_PAUSED = "pause_turn"


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """What was new in a request: what the user said, if anything, and what tools returned."""

    text: str | None
    results: tuple[Returned, ...] = ()

    @classmethod
    def of(cls, heard: Heard) -> RecordedRequest:
        text = without_secrets(heard.text) if is_said(heard.messages[-1]) else None
        results = [Returned(each.tool, without_secrets(each.text), each.is_error) for each in heard.results]
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


class Recorded(Script):
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
        return Recorded(own, strict=self._strict) if own else self

    def turn(self, body: Wire) -> ScriptedTurn:
        places = [(each, *each.place(body["messages"])) for each in self._recordings]
        recording, number, _ = next((each for each in places if each[2]), places[0])
        if number >= len(recording.turns):
            turns = plural(len(recording.turns), "turn")
            problem = f"the recorded run of {recording.agent} was not asked this: it has {turns}."
            if not self._strict:
                raise UsageError(problem)
            raise Unexpected(f"{problem}\nWhat it was sent:\n{Heard(body).told()}")
        answered = recording.turns[number]
        if self._strict:
            _compare(answered.asked, RecordedRequest.of(Heard(body)), number, recording)
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
    results = tuple(Returned(each["tool"], each["text"], each["is_error"]) for each in request.get("results", ()))
    parts = tuple(map(read_inside, written["parts"]))
    turn = ScriptedTurn(parts, written["stop"], written.get("category"), written.get("usage"))
    return RecordedAnswer(RecordedRequest(request.get("text"), results), turn)
