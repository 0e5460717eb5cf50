"""Comparing: two runs side by side. `compare` is pure; what a fork took over from its original counts as its own."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.agents.forks.past import calls_before
from holdfast.agents.history import result_block
from holdfast.agents.reading import Turn, list_messages, list_turns
from holdfast.agents.records import CallRow, RunRow
from holdfast.agents.results import usage_of
from holdfast.agents.statements import Calls, Forks, Looking, Runs
from holdfast.errors import NotFound
from holdfast.kernel import encoding
from holdfast.kernel.database import Transaction, reading
from holdfast.models.protocol import canonical
from holdfast.results import Usage


class Side(NamedTuple):
    """One of the two, as it is read. `usage` is that of everything below it, too."""

    run: RunRow
    turns: Sequence[Turn]
    calls: Sequence[CallRow]
    usage: Usage
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
    """The calls of both runs that belong together; one that only the other made is None."""

    a: CallRow | None
    b: CallRow | None

    @property
    def name(self) -> str:
        return "".join(call.name for call in (self.a or self.b,) if call is not None)

    @property
    def mark(self) -> str:
        """What is different: nothing ("="), the answer ("~"), or that only one made the call ("-" and "+")."""
        if self.a is None:
            return "+"
        if self.b is None:
            return "-"
        return "=" if _told(self.a) == _told(self.b) else "~"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs side by side: `facts` are numbers and names, `calls` what they called, `diff` their last answers."""

    a: Side
    b: Side
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
async def load_side(tx: Transaction, id: str, tenant: str | None) -> Side:
    """A run as it is compared; `NotFound` when there is none, or it is another tenant's."""
    run = await tx.one(Runs.find_run, id=id)
    if run is None or tenant not in (None, run.tenant):
        raise NotFound(f"there is no run {id} in this database.")
    used = next(iter(await tx.many(Looking.usage_below, ids=[id])), None)
    fork = await tx.one(Forks.fork_of, run=id)
    calls = [*await _inherited(tx, run), *await tx.many(Calls.calls_of, run=id, turn=None)]
    origin = (None, None) if fork is None else (fork.forked_from, fork.forked_at)
    return Side(run, await list_turns(tx, id), calls, usage_of(run if used is None else used), *origin)


async def _inherited(tx: Transaction, run: RunRow) -> list[CallRow]:
    """The calls of the turns that a fork has not played itself, with what it was told of them."""
    calls = await calls_before(tx, run.id)
    if not calls:
        return []
    said = await list_messages(tx, run.session, run=run.id, archived=True)
    told = {block["tool_use_id"]: block for each in said if each.kind == "results" for block in each.blocks}
    return [_as_told(call, told.get(call.tool_use_id)) for call in calls]


def _as_told(call: CallRow, block: dict[str, Any] | None) -> CallRow:
    if block is None or block == result_block(call):
        return call
    output = encoding.encode(block.get("content"), what="a result", cap=1 << 28)
    return call._replace(state="completed", output=output, is_error=int(bool(block.get("is_error"))))


def compare(a: Side, b: Side) -> Comparison:
    """What is different between two runs. They need not have anything to do with each other."""
    facts = tuple(Pair(name, _facts(a)[name], _facts(b)[name]) for name in _facts(a))
    return Comparison(a, b, facts, tuple(_paired(a.calls, b.calls)), tuple(_diff(a.run, b.run)))


def _facts(side: Side) -> dict[str, Any]:
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
        "duration_us": None if run.finalized_at is None else run.finalized_at - run.created_at,
    }


def outcome_of(run: RunRow) -> str:
    return run.outcome or run.error_type or run.state


def text_of(run: RunRow) -> str:
    """What the run said at its end, or why it has none."""
    return str((encoding.decode(run.output) or {}).get("text") or run.error or "")


def _diff(a: RunRow, b: RunRow) -> list[str]:
    before, after = text_of(a).splitlines(), text_of(b).splitlines()
    return list(difflib.unified_diff(before, after, a.id, b.id, lineterm=""))


def _paired(a: Sequence[CallRow], b: Sequence[CallRow]) -> list[CallPair]:
    """The two sequences with equal calls beside each other, as many as there can be."""
    matcher = difflib.SequenceMatcher(None, [_identity(call) for call in a], [_identity(call) for call in b], False)
    pairs: list[CallPair] = []
    for _, a_from, a_to, b_from, b_to in matcher.get_opcodes():
        if a_to - a_from == b_to - b_from and _identities(a, a_from, a_to) == _identities(b, b_from, b_to):
            pairs += [CallPair(*both) for both in zip(a[a_from:a_to], b[b_from:b_to], strict=True)]
        else:
            pairs += [CallPair(call, None) for call in a[a_from:a_to]]
            pairs += [CallPair(None, call) for call in b[b_from:b_to]]
    return pairs


def _told(call: CallRow) -> tuple[Any, bool]:
    """What the model was told of a call."""
    block = result_block(call)
    return block.get("content"), bool(block.get("is_error"))


def _identities(calls: Sequence[CallRow], start: int, end: int) -> list[str]:
    return [_identity(call) for call in calls[start:end]]


def _identity(call: CallRow) -> str:
    return canonical([call.name, encoding.decode(call.input)])


def as_dict(found: Comparison) -> dict[str, Any]:
    """The comparison as plain JSON."""
    return {
        "a": _origin(found.a),
        "b": _origin(found.b),
        "same_answer": found.same_answer,
        "same_calls": found.same_calls,
        **{fact.name: {"a": fact.a, "b": fact.b, "same": fact.same} for fact in found.facts},
        "tools": [{"mark": pair.mark, "a": _call(pair.a), "b": _call(pair.b)} for pair in found.calls],
        "answers": {"a": text_of(found.a.run), "b": text_of(found.b.run)},
        "diff": list(found.diff),
    }


def _origin(side: Side) -> dict[str, Any]:
    return {
        "id": side.run.id,
        "session": side.run.session,
        "forked_from": side.forked_from,
        "forked_at": side.forked_at,
    }


def _call(call: CallRow | None) -> dict[str, Any] | None:
    if call is None:
        return None
    return {
        "id": call.id,
        "turn": call.turn,
        "name": call.name,
        "input": encoding.decode(call.input),
        "state": call.state,
        "output": _told(call)[0],
    }
