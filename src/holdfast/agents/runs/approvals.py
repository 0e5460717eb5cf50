"""Approvals: which calls of an answer a person has to approve, asked before anything is decided.

The `approve=` of a tool is code of the program and may wait for something, so it is asked outside of the decision and
of every transaction. The toolbox limits its time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, NamedTuple

from holdfast.agents.definition import AgentSpec, ToolSpec
from holdfast.agents.forks.simulation import policy_of
from holdfast.agents.rows import LoadedRun
from holdfast.agents.runs.decision import CALLING, Approving, call_id
from holdfast.agents.runs.history import uses
from holdfast.models.fold import Reply

_AT_ONCE = 8  # calls of one answer: one that hangs delays the others no longer than it is waited for

ApprovalRule = Callable[[ToolSpec, str, dict[str, Any]], Awaitable[bool]]
"""Whether a person has to approve a call of this tool, with this id and these arguments."""


async def never(_tool: ToolSpec, _call: str, _input: dict[str, Any]) -> bool:
    return False


class AskedCall(NamedTuple):
    """A call whose tool has an `approve=`."""

    tool: ToolSpec
    id: str
    input: dict[str, Any]


async def ask_rule(rule: ApprovalRule, calls: Iterable[AskedCall]) -> Approving:
    """Ask the rule about these calls; the answer says of each whether a person has to approve it, and yes of others."""
    asked = list(calls)
    places = asyncio.Semaphore(_AT_ONCE)

    async def ask(call: AskedCall) -> bool:
        async with places:
            return await rule(*call)

    answers = await asyncio.gather(*map(ask, asked)) if len(asked) > 1 else [await rule(*call) for call in asked]
    known = {call.id: answer for call, answer in zip(asked, answers, strict=True)}
    return lambda _tool, call: known.get(call, True)


def asked_calls(run: LoadedRun, spec: AgentSpec, number: int, reply: Reply) -> Iterator[AskedCall]:
    """The calls of an answer that the rule is asked about. A replay runs none of them."""
    if reply.stop_reason not in CALLING or policy_of(run) == "replayed":
        return
    for place, use in enumerate(uses(reply.blocks)):
        tool = spec.tool(str(use.get("name", "")))
        if tool is not None and tool.approve and not tool.person and use["id"] not in reply.bad_inputs:
            yield AskedCall(tool, call_id(run.id, number, place), use.get("input", {}))
