"""Replay: a run is played again from its record, without a key, a network or its tools.

The loop is the real one; the model says what it said then, and tools return what they returned then. Nothing is written
where the run is: it is played in a copy.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from holdfast.agents.adoption import run_definition
from holdfast.agents.api.run import Run
from holdfast.agents.capsules.capsules import CapsuleContents, export, gather
from holdfast.agents.capsules.records import CapsuleInquiry, CapsuleRun, CapsulesSql, CapsuleTurn
from holdfast.agents.core import AgentsCore
from holdfast.agents.definition import AgentSpec
from holdfast.agents.events.log import Changes
from holdfast.agents.forks.comparison import Comparison, compare, load_side, outcome_of
from holdfast.agents.forks.fork import EDITED
from holdfast.agents.forks.past import Tools
from holdfast.agents.money.cost import stored_usage
from holdfast.agents.people.inquiries import Ruling, decide
from holdfast.agents.rows import RunEnd
from holdfast.agents.runs.end import INTERRUPTED, end_run
from holdfast.agents.states import InquiryState, RunState, TurnState
from holdfast.clock import Ports
from holdfast.events import InputRequested
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, reading
from holdfast.models import ModelFailure
from holdfast.models.protocol import Model, Request, ResponseHead, Wire
from holdfast.models.script import Raw
from holdfast.models.script import ScriptedTurn as Said
from holdfast.models.wire import count_tokens, to_events

_DECIDED = frozenset(InquiryState) - {InquiryState.OPEN, InquiryState.WITHDRAWN}


@dataclass(frozen=True, slots=True)
class Replay:
    """How it went: `differences` says in words what differs; without any, the end is the same."""

    run: str
    turns: int
    same_requests: int  # how many turns asked for the same, byte for byte
    known_requests: int  # of how many turns the record says what they asked for
    differences: tuple[str, ...]
    comparison: Comparison

    @property
    def same(self) -> bool:
        return not self.differences


class RecordedRun(NamedTuple):
    """One answer as it was given."""

    blocks: list[dict[str, Any]]
    turn: CapsuleTurn
    category: str | None


class RecordedModel:
    """Answers each turn as it was answered then.

    `meanwhile` is called before it does, with the turn's number, and `beyond` when there is no such turn in the record.
    """

    def __init__(self, answers: Mapping[int, RecordedRun], interrupt: Callable[[], Awaitable[None]]) -> None:
        self._answers = answers
        self._interrupt = interrupt
        self.meanwhile: Callable[[int], Awaitable[None]] | None = None
        self.beyond: Callable[[int], Awaitable[Any]] | None = None

    async def stream(self, request: Request, answered: Callable[[ResponseHead], None]) -> AsyncGenerator[Wire, None]:
        number = int(request.call.split("/")[1])
        record = self._answers.get(number)
        if record is None:
            if self.beyond is not None:
                await self.beyond(number - 1)
            raise ModelFailure("bad_request", f"the record has no turn {number}", bought="no")
        if self.meanwhile is not None:
            await self.meanwhile(number)
        answered(ResponseHead(request_id=record.turn.request_id or ""))
        for event in _events(record, request):
            if event["type"] == "message_delta" and record.turn.stop_reason == INTERRUPTED:
                await self._interrupt()
                await asyncio.Event().wait()  # somebody cut it off here
            yield event

    async def count_tokens(self, request: Request) -> int:
        return count_tokens(request.body())

    async def close(self) -> None: ...


def _events(record: RecordedRun, request: Request) -> list[Wire]:
    """The answer as it was streamed, with what it used then."""
    usage = stored_usage(record.turn)
    parts = tuple(Raw(block) for block in record.blocks)
    said = Said(parts, record.turn.stop_reason or "end_turn", record.category)
    events = to_events(said, request.body(), call=request.call)
    for event in events:
        if event["type"] == "message_start":
            event["message"] |= {"usage": usage, "model": record.turn.model}
        elif event["type"] == "message_delta":
            event["usage"] = {"output_tokens": usage.get("output_tokens", 0)}
    return events


async def replay(app: AgentsCore, id: str, tenant: str | None) -> Replay:
    """Play a run again, in a copy, and say what was different."""
    contents = await app.runtime().transact(gather, id, tenant, partial=False, to="replay")
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="holdfast-replay-"))
    try:
        await export(_with_valid_thinking(contents, id), folder / "run.db", app.settings, Ports(), redact=None)
        url = f"sqlite:///{folder / 'run.db'}"
        other = AgentsCore(replace(app.settings, url=url, direct_url="", pooler=False), Ports(), embedded=False)
        try:
            return await _played(other, contents, id)
        finally:
            await other.close()
    finally:
        await asyncio.to_thread(shutil.rmtree, folder)


def _with_valid_thinking(contents: CapsuleContents, id: str) -> CapsuleContents:
    """With thinking valid where it was then, whatever account pays here."""
    first = next((turn.fingerprint for turn in contents.turns if turn.run == id), "")
    marks = {"": "", first: ""}
    messages = [each._replace(fingerprint=marks.get(each.fingerprint, EDITED)) for each in contents.messages]
    return contents._replace(messages=messages)


async def _played(app: AgentsCore, contents: CapsuleContents, id: str) -> Replay:
    origin = next(run for run in contents.runs if run.id == id)
    definition = next(
        each for each in contents.versions if (each.agent, each.version) == (origin.agent, origin.version)
    )
    spec = AgentSpec.parse(definition.definition)
    app.registry.add(
        run_definition(spec.name, app.play, queue=spec.queue, requires=spec.requires, priority=spec.priority)
    )
    await app.runtime().open()
    played: Run[Any] = Run(app, id)
    fork = await played.fork(origin.forked_at or 1, tools=cast(Tools, "replayed"))
    model = RecordedModel(_answers(contents, id), fork.interrupt)
    model.meanwhile = _steering(contents, id, fork)
    model.beyond = _ending(app, contents, origin, fork)
    app.book.substitute = cast(Model, model)
    worker = app.make_worker()
    await worker.start()
    try:
        await _follow(app, fork, _inquiries(contents, id), model.beyond)
    finally:
        await worker.stop()
    asked = await app.runtime().transact(_hashes, fork.id)
    sides = [await app.runtime().transact(load_side, each, None) for each in (id, fork.id)]
    return _compared_replay(contents, id, compare(*sides), asked)


def _answers(contents: CapsuleContents, id: str) -> dict[int, RecordedRun]:
    run = next(each for each in contents.runs if each.id == id)
    category = (codec.decode(run.refusal) or {}).get("category")
    turns = {turn.number: turn for turn in contents.turns if turn.run == id and turn.state == TurnState.COMPLETED}
    said = {each.turn: each.id for each in contents.messages if each.run == id and each.kind == "answer"}
    return {
        number: RecordedRun(
            [codec.decode(block.body) for block in contents.blocks if block.message == said.get(number)],
            turn,
            category,
        )
        for number, turn in turns.items()
    }


def _steering(contents: CapsuleContents, id: str, fork: Run[Any]) -> Callable[[int], Awaitable[None]]:
    """What came for the run while it was under way comes again, before the turn that took it."""

    async def meanwhile(number: int) -> None:
        for steer in contents.steers:
            if steer.run == id and steer.turn == number + 1:
                await fork.steer(codec.decode(steer.body))

    return meanwhile


def _ending(
    app: AgentsCore, contents: CapsuleContents, origin: CapsuleRun, fork: Run[Any]
) -> Callable[[int], Awaitable[bool]]:
    """What ended the run from outside does not come again: where its record ends, the fork ends as the run did."""
    done = [turn for turn in contents.turns if turn.run == origin.id and turn.state == TurnState.COMPLETED]
    last = done[-1].number if done else (origin.forked_at or 1) - 1
    stopped = done[-1].stop_reason if done else None

    async def end(played: int) -> bool:
        if played != last or _ended_by_itself(origin, stopped):
            return False
        await app.runtime().transact(_end_as, fork.id, origin)
        return True

    return end


def _ended_by_itself(run: CapsuleRun, stopped: str | None) -> bool:
    """Whether its last answer was its end."""
    if run.outcome == "truncated":
        return run.limited == stopped
    return run.outcome in ("answered", "refused", "unfit")


async def _end_as(tx: Transaction, fork: str, run: CapsuleRun) -> None:
    changes = Changes()
    ending = (run.outcome, run.output, run.refusal, run.limited, run.error_type, run.error_text)
    await end_run(tx, RunEnd(fork, run.state, *ending), changes)
    await changes.write(tx)


def _inquiries(contents: CapsuleContents, id: str) -> list[CapsuleInquiry]:
    """What a person was asked about the run as a whole, in the order of its events."""
    order = [codec.decode(event.data).get("inquiry") for event in contents.events if event.run == id]
    asked = [each for each in contents.inquiries if each.run == id and each.call is None]
    return sorted(asked, key=lambda each: order.index(each.id) if each.id in order else len(order))


async def _follow(
    app: AgentsCore, fork: Run[Any], inquiries: Sequence[CapsuleInquiry], end: Callable[[int], Awaitable[bool]]
) -> None:
    """To its end. What a person decided then is decided the same way; what nobody had is not waited for."""
    left = [each for each in inquiries if each.state in _DECIDED]
    async for event in fork.stream():
        if not isinstance(event, InputRequested):
            continue
        same = next((each for each in left if each.kind == event.kind), None)
        if same is None:
            if not await end((await fork.refresh()).turns):
                await fork.cancel("nobody had decided this in the record")
            continue
        left.remove(same)
        said = codec.decode(same.decision) or {}
        verdict: Any = InquiryState.DENIED if same.state == InquiryState.EXPIRED else InquiryState(same.state)
        decision = Ruling(event.inquiry, verdict, answer=said.get("answer"), message=str(said.get("message") or ""))
        await app.runtime().transact(decide, decision, "")


@reading
async def _hashes(tx: Transaction, run: str) -> dict[int, str]:
    turns = await tx.many(CapsulesSql.kept_turns, runs=[run])
    return {turn.number: turn.request_hash for turn in turns}


def _compared_replay(contents: CapsuleContents, id: str, found: Comparison, asked: Mapping[int, str]) -> Replay:
    then = {turn.number: turn.request_hash for turn in contents.turns if turn.run == id and turn.request_hash}
    differences = [f"turn {n} asked for something else" for n, text in then.items() if asked.get(n) not in (None, text)]
    differences += [f"turn {number} was not played" for number in then if number not in asked]
    for pair in found.calls:
        if pair.mark != "=" and (call := pair.a or pair.b) is not None:
            words = {"~": "was answered differently", "-": "was not called", "+": "was called in addition"}[pair.mark]
            differences.append(f"{call.name} of turn {call.turn} {words}")
    before, after = outcome_of(found.a.run), outcome_of(found.b.run)
    if before != after:
        why = f" ({found.b.run.error})" if found.b.run.error else ""
        differences.append(f"it ended {after}{why}, not {before}")
    elif found.diff and found.a.run.state == RunState.COMPLETED.value:  # the text of a failure differs each time
        differences.append("it said something else")
    same = sum(asked.get(number) == text for number, text in then.items())
    return Replay(id, found.b.run.turns, same, len(then), tuple(differences), found)
