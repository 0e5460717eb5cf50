"""Comparison: two runs side by side. `compare` is pure; what a fork took over from its original counts as its own."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from holdfast.agents.api.results import usage_of
from holdfast.agents.forks.past import calls_before
from holdfast.agents.forks.records import ForksSql
from holdfast.agents.listings import list_messages
from holdfast.agents.queries import calls_after, list_turns
from holdfast.agents.rows import CallRow, RunRow
from holdfast.agents.runs.history import result_block
from holdfast.agents.statements import RunsSql, RunTreesSql
from holdfast.agents.states import CallState
from holdfast.agents.values import CallRecord, RunRecord, Turn, call_of, run_of
from holdfast.client.results import Usage
from holdfast.errors import NotFound
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, reading
from holdfast.models.protocol import canonical

Mark = Literal["=", "~", "-", "+"]

_MICROSECOND = timedelta(microseconds=1)
_CALLS = 1_000  # of each side
_LINES = 2_000  # of each side: to compare them takes the square of their number
_PAIRS = 40_000  # of calls of both sides, up to which equal ones are always found
_LINE = 2_000  # characters of each


class ToolAnswer(NamedTuple):
    """The result of a call that the model read."""

    content: Any
    is_error: bool


class ComparedRun(NamedTuple):
    """One of the two, as it is read. `usage` is that of everything below it, too."""

    run: RunRecord
    turns: Sequence[Turn]
    calls: Sequence[CallRecord]
    usage: Usage
    call_answers: Mapping[str, ToolAnswer]  # of each call, by its id
    forked_from: str | None = None
    forked_at: int | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """Something of both runs."""

    name: str
    a: Any
    b: Any

    @property
    def same(self) -> bool:
        return bool(self.a == self.b)


@dataclass(frozen=True, slots=True)
class CallPair:
    """The calls of both runs that belong together; one that only the other made is None.

    `mark` says what is different: nothing ("="), the answer ("~"), or that only one made the call ("-" and "+").
    """

    a: CallRecord | None
    b: CallRecord | None
    mark: Mark

    @property
    def name(self) -> str:
        return "".join(call.name for call in (self.a or self.b,) if call is not None)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs side by side: `facts` are numbers and names, `calls` what they called, `diff` their last answers.

    A run that made more calls than a thousand is compared by its first thousand.
    """

    a: ComparedRun
    b: ComparedRun
    facts: tuple[Pair, ...]
    calls: tuple[CallPair, ...]
    diff: tuple[str, ...]

    @property
    def same_answer(self) -> bool:
        return not self.diff and outcome_of(self.a.run) == outcome_of(self.b.run)

    @property
    def same_calls(self) -> bool:
        return all(call.mark == "=" for call in self.calls)


@reading
async def load_side(tx: Transaction, id: str, tenant: str | None) -> ComparedRun:
    """A run as it is compared; `NotFound` when there is none, or it is another tenant's."""
    run = await tx.one(RunsSql.find_run, id=id)
    if run is None or tenant not in (None, run.tenant):
        raise NotFound(f"there is no run {id} in this database.")
    used = next(iter(await tx.many(RunTreesSql.usage_below, ids=[id])), None)
    fork = await tx.one(ForksSql.fork_of, run=id)
    calls = [*await _inherited(tx, run), *await calls_after(tx, id, (-1, -1), _CALLS)]
    origin = (None, None) if fork is None else (fork.forked_from, fork.forked_at)
    usage = usage_of(run if used is None else used)
    answers = {call.id: _answer(call) for call in calls}
    return ComparedRun(
        run_of(run), await list_turns(tx, id), [call_of(call) for call in calls], usage, answers, *origin
    )


async def _inherited(tx: Transaction, run: RunRow) -> list[CallRow]:
    """The calls of the turns that a fork has not played itself, with the results it got."""
    calls = await calls_before(tx, run.id)
    if not calls:
        return []
    said = await list_messages(tx, run.session, run=run.id, archived=True)
    results = {block["tool_use_id"]: block for each in said if each.kind == "results" for block in each.blocks}
    return [_as_answered(call, results.get(call.tool_use_id)) for call in calls]


def _as_answered(call: CallRow, block: dict[str, Any] | None) -> CallRow:
    if block is None or block == result_block(call):
        return call
    output = codec.encode(block.get("content"), what="a result", cap=1 << 28)
    return call._replace(state=CallState.COMPLETED, output=output, is_error=int(bool(block.get("is_error"))))


def compare(a: ComparedRun, b: ComparedRun) -> Comparison:
    """What is different between two runs. They need not have anything to do with each other."""
    facts = tuple(Pair(name, _facts(a)[name], _facts(b)[name]) for name in _facts(a))
    return Comparison(a, b, facts, tuple(_paired(a, b)), tuple(_diff(a.run, b.run)))


def _facts(side: ComparedRun) -> dict[str, Any]:
    run, usage = side.run, side.usage
    return {
        "agent": f"{run.agent_name} v{run.version}",
        "state": run.state,
        "outcome": outcome_of(run),
        "models": ", ".join(dict.fromkeys(turn.model for turn in side.turns)),
        "turns": run.turns,
        "calls": len(side.calls),
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cost_nano": usage.cost_nano,
        "duration_us": None if run.finalized_at is None else (run.finalized_at - run.created_at) // _MICROSECOND,
    }


def outcome_of(run: RunRecord) -> str:
    return run.outcome or run.error_type or run.state


def text_of(run: RunRecord) -> str:
    """What the run said at its end, or why it has none."""
    return str((run.output or {}).get("text") or run.error or "")


def _diff(a: RunRecord, b: RunRecord) -> list[str]:
    before, after = _lines(a), _lines(b)
    return list(difflib.unified_diff(before, after, a.id, b.id, lineterm=""))


def _lines(run: RunRecord) -> list[str]:
    return comparable(text_of(run).splitlines())


def comparable(lines: list[str]) -> list[str]:
    """Lines that can be compared in time. Of very many the rest is one line, which is compared as a whole."""
    rest = "\n".join(lines[_LINES:])
    if rest:
        lines = [*lines[:_LINES], f"[{len(rest):,} more characters: {codec.digest(rest)}]"]
    return [
        line if len(line) <= _LINE else f"{line[:_LINE]} [{len(line):,} characters: {codec.digest(line)}]"
        for line in lines
    ]


def _paired(a: ComparedRun, b: ComparedRun) -> list[CallPair]:
    """The calls of both sides with equal ones beside each other, as many as there can be."""
    before, after = [_identity(call) for call in a.calls], [_identity(call) for call in b.calls]
    pairs: list[CallPair] = []
    is_long = len(before) * len(after) > _PAIRS  # then calls that come very often count for less
    for _, a_from, a_to, b_from, b_to in difflib.SequenceMatcher(None, before, after, is_long).get_opcodes():
        gone, come = a.calls[a_from:a_to], b.calls[b_from:b_to]
        if before[a_from:a_to] == after[b_from:b_to]:
            pairs += [
                CallPair(one, other, "=" if a.call_answers[one.id] == b.call_answers[other.id] else "~")
                for one, other in zip(gone, come, strict=True)
            ]
        else:
            pairs += [CallPair(call, None, "-") for call in gone]
            pairs += [CallPair(None, call, "+") for call in come]
    return pairs


def _answer(call: CallRow) -> ToolAnswer:
    block = result_block(call)
    return ToolAnswer(block.get("content"), bool(block.get("is_error")))


def _identity(call: CallRecord) -> str:
    return canonical([call.name, call.input])


def as_dict(found: Comparison) -> dict[str, Any]:
    """The comparison as plain JSON."""
    return {
        "a": _origin(found.a),
        "b": _origin(found.b),
        "same_answer": found.same_answer,
        "same_calls": found.same_calls,
        **{fact.name: {"a": fact.a, "b": fact.b, "same": fact.same} for fact in found.facts},
        "tools": [
            {"mark": pair.mark, "a": _call(found.a, pair.a), "b": _call(found.b, pair.b)} for pair in found.calls
        ],
        "answers": {"a": text_of(found.a.run), "b": text_of(found.b.run)},
        "diff": list(found.diff),
    }


def _origin(side: ComparedRun) -> dict[str, Any]:
    return {
        "id": side.run.id,
        "session": side.run.session,
        "forked_from": side.forked_from,
        "forked_at": side.forked_at,
    }


def _call(side: ComparedRun, call: CallRecord | None) -> dict[str, Any] | None:
    if call is None:
        return None
    return {
        "id": call.id,
        "turn": call.turn,
        "name": call.name,
        "input": call.input,
        "state": call.state,
        "output": side.call_answers[call.id].content,
    }
