"""The books of `holdfast demo`: what the store recorded beside what witnesses saw, and one run as its events say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.agents.api.run import Run
from holdfast.app import Holdfast
from holdfast.cli.demo_agents import CALLS, TURNS, note
from holdfast.events import (
    Event,
    InputDelta,
    RunCreated,
    RunEnded,
    TextDelta,
    ThinkingDelta,
    ToolCalled,
    ToolEnded,
    TurnEnded,
    TurnRestarted,
    TurnStarted,
)
from holdfast.models.witness import read_witness
from holdfast.shown_text import plural


@dataclass(frozen=True, slots=True)
class Books:
    """The demo's figures. `problems` is empty when all is as promised."""

    runs: int
    completed: int
    recorded: int  # turns whose answer is stored
    unknown: int  # calls whose worker died before their answer was stored
    bought: int  # calls that the model saw
    rebought: int  # calls that neither explains
    calls: int  # of tools
    calls_completed: int
    calls_repeated: int  # started more than once
    problems: tuple[str, ...]


async def close_books(hf: Holdfast, towns: dict[str, Run[str]], witness: Path, journal: Path) -> Books:
    """Compare everything; nothing here is taken from one side alone."""
    asked = Counter(_turn_of(line["call"]) for line in read_witness(witness) if line["event"] == "sent")
    recorded = unknown = rebought = calls = completed_calls = 0
    problems: list[str] = []
    for run in await _family(hf, towns.values()):
        for turn in await run.turns():
            done = int(turn.state == "completed")
            recorded, unknown = recorded + done, unknown + turn.unknown
            rebought += max(0, asked[run.id, turn.number] - done - turn.unknown)
        for call in await run.calls():
            calls += call.child is None
            completed_calls += call.child is None and call.state == "completed"
    answers = {town: await run.refresh() for town, run in towns.items()}
    completed = sum(row.state == "completed" for row in answers.values())
    for town, row in answers.items():
        if row.state != "completed" or (row.output or {}).get("text") != note(town):
            problems.append(f"the run about {town} is {row.state}: {row.error or row.output}")
    if recorded != TURNS * len(towns):
        problems.append(f"{plural(recorded, 'turn is', 'turns are')} recorded, not {TURNS * len(towns)}")
    if rebought:
        problems.append(f"{plural(rebought, 'call')} to the model without an explanation")
    if completed_calls != CALLS * len(towns):
        problems.append(f"{completed_calls} tool calls are completed, not {CALLS * len(towns)}")
    begun = Counter(line["key"] for line in read_witness(journal) if line["event"] == "begun")
    if len(begun) != calls:
        problems.append(f"{calls} tool calls are recorded, {len(begun)} were seen")
    again = sum(times > 1 for times in begun.values())
    bought = asked.total()
    return Books(
        len(towns), completed, recorded, unknown, bought, rebought, calls, completed_calls, again, tuple(problems)
    )


def _turn_of(call: str) -> tuple[str, int]:
    run, turn, _ = call.split("/", 2)
    return run, int(turn)


async def _family(hf: Holdfast, runs: Iterable[Run[str]]) -> list[Run[str]]:
    found: list[Run[str]] = []
    for run in runs:
        found += [run, *(hf.runs[child.id] for child in await run.children())]
    return found


def timeline(events: Sequence[Event]) -> Iterator[tuple[float, str]]:
    """A run in lines: seconds since it was accepted, and what happened then."""
    first = events[0].at
    streamed = 0
    for event in events:
        seconds = (event.at - first).total_seconds()
        match event:
            case TextDelta(text=text) | ThinkingDelta(text=text) | InputDelta(text=text):
                streamed += len(text)
            case RunCreated(agent_name=name):
                yield seconds, f"run accepted, for agent {name}"
            case TurnStarted(turn=turn, model=model):
                streamed = 0
                yield seconds, f"turn {turn}   asked {model}"
            case TurnRestarted(turn=turn, attempt=attempt):
                yield seconds, f"turn {turn}   its worker was killed after {streamed} characters: attempt {attempt}"
                streamed = 0
            case TurnEnded(turn=turn, stop_reason=reason, output_tokens=tokens):
                yield seconds, f"turn {turn}   stored: {tokens} tokens, {reason}"
            case ToolCalled(name=name, input=given):
                yield seconds, f"         calls {name} {json.dumps(given, ensure_ascii=False)}"
            case ToolEnded(name=name, state=state):
                yield seconds, f"         {name} {state}"
            case RunEnded(state=state):
                yield seconds, f"run {state}"
            case _:
                pass
