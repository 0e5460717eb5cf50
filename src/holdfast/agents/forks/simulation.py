"""Simulation: which calls of a fork are run, which are answered from the record, and which a person is asked about.

What only reads is run. What has an effect outside is never run again by itself, unless the fork says so: the
world has seen it once already.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from holdfast.agents.forks.past import calls_before
from holdfast.agents.forks.statements import ForksSql
from holdfast.agents.people.question import digest_of_input
from holdfast.agents.rows import CallRow, LoadedRun
from holdfast.agents.runs.history import result_block
from holdfast.agents.statements import CallsSql
from holdfast.agents.states import CallState
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction

Tools = Literal["recorded", "ask", "live"]
Policy = Literal["recorded", "ask", "live", "replayed"]

NOT_RECORDED = "This call is not in the record that is being replayed."
_ENDED = (CallState.COMPLETED, CallState.FAILED)


class Records(NamedTuple):
    """What the run that was forked had called from there on, and what the fork has called itself."""

    made: Sequence[CallRow] = ()
    used: Sequence[CallRow] = ()


class Simulation:
    """For one answer of one run: the k-th equal call takes the k-th record."""

    def __init__(self, run: LoadedRun, records: Records) -> None:
        self.policy = policy_of(run)
        self._made: defaultdict[str, list[CallRow]] = defaultdict(list)
        for call in records.made:
            self._made[_identity(call.name, codec.decode(call.input))].append(call)
        self._used = Counter(_identity(call.name, codec.decode(call.input)) for call in records.used)

    def take(self, name: str, input: Any) -> CallRow | None:
        """The record of this call, if there is one left that ended. A replay gets the results of the others from the
        run."""
        identity = _identity(name, input)
        place = self._used[identity]
        self._used[identity] += 1
        found = self._made[identity][place : place + 1]
        return found[0] if found and (found[0].state in _ENDED or self.policy == "replayed") else None


def policy_of(run: LoadedRun) -> Policy:
    fork = codec.decode(run.options).get("fork") or {}
    policy: Policy = fork.get("tools", "live")
    return policy


async def load_records(tx: Transaction, run: LoadedRun) -> Records:
    """The calls that a fork may be answered with; none for any other run. A fork of a fork has those of both."""
    if run.forked_from is None or policy_of(run) not in ("recorded", "replayed"):
        return Records()
    fork = await tx.one(ForksSql.fork_of, run=run.id)
    first = fork.forked_at or 1 if fork is not None else 1
    calls = [
        *await calls_before(tx, run.forked_from),
        *await tx.many(CallsSql.calls_of, run=run.forked_from, turn=None),
    ]
    made = [call for call in calls if call.turn >= first]
    return Records(made, await tx.many(CallsSql.calls_of, run=run.id, turn=None))


def recorded_output(record: CallRow) -> str:
    """The result of a recorded call that the model read, as the call that repeats it stores it."""
    return codec.encode(result_block(record).get("content"), what="a recorded answer", cap=1 << 28)


def _identity(name: str, input: Any) -> str:
    return digest_of_input(name, input)
