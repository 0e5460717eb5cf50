"""Agents in tests: models that say what a test wants, runs played to their end, and an audit of what was bought."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from holdfast import Holdfast
from holdfast.agents.api.agent import Agent
from holdfast.agents.api.run import Run
from holdfast.agents.runs.create import AgentName
from holdfast.agents.values import RunRecord
from holdfast.app import core_of
from holdfast.models.protocol import Request, ResponseHead, Wire
from holdfast.models.script import Script, ScriptedTurn, Step
from holdfast.models.scripted import ScriptedModel
from holdfast.models.simulator import SimulatedProvider
from holdfast.testing import Lab
from tests.support.apps import eventually

MODEL = "claude-sonnet-5-5"
ENDED = ("completed", "cancelled", "failed")
BY_RULE = ("refused by rule", "Overloaded")


def redeclare(app: Holdfast, name: str, **options: Any) -> Agent[Any]:
    """An agent in the place of the one that a fixture declared under this name."""
    core_of(app).declared.pop(AgentName(name), None)
    return app.agent(name, **options)


def scripted(app: Holdfast, *steps: Step) -> str:
    """The name of a model that says these, in this app."""
    name = f"s{len(core_of(app).book.scripts)}"
    app.script(name, Script(*steps))
    return f"scripted:{name}"


def snapshot(number: int) -> str:
    """A name for the same model which rules can tell apart."""
    return f"{MODEL}-{20260000 + number}"


class ByModel(Script):
    """For a simulator that plays several scripts: the model's name says which."""

    def __init__(self, scripts: Mapping[str, Script]) -> None:
        super().__init__()
        self._scripts = scripts

    def turn(self, body: Wire) -> ScriptedTurn:
        return self._scripts[body["model"]].turn(body)


class Noting(Script):
    """A script that keeps the requests it was asked with."""

    def __init__(self, *steps: Step) -> None:
        super().__init__(*steps)
        self.bodies: list[Wire] = []

    def turn(self, body: Wire) -> ScriptedTurn:
        self.bodies.append(body)
        return super().turn(body)


async def settle(lab: Lab, *runs: Run[Any]) -> list[RunRecord]:
    """Play these runs to their end, however long they wait in between."""
    rows: list[RunRecord] = []
    for _ in range(100):
        await lab.drain()
        rows = [await run.refresh() for run in runs]
        if all(row.state in ENDED for row in rows):
            return rows
        await lab.clock.advance("31s")
    raise AssertionError(f"not ended: {[row for row in rows if row.state not in ENDED]}")


async def in_run_state(run: Run[Any], state: str) -> RunRecord:
    """The run, once it is in this state."""

    async def look() -> RunRecord | None:
        row = await run.refresh()
        return row if row.state == state else None

    return await eventually(look)


async def results(app: Holdfast, session: str | None) -> list[dict[str, Any]]:
    """What the model was told of its calls in a session, in order."""
    assert session is not None
    messages = await app.sessions[session].messages()
    return [block for message in messages if message.kind == "results" for block in message.blocks]


async def audit(app: Holdfast, provider: SimulatedProvider) -> None:
    """Nothing was sent that the provider refuses; what was bought is recorded, or counted as unknown."""
    done = [line for line in provider.lines if line["event"] == "done"]
    refused = [line["rejected"] for line in done if line["rejected"] and not line["rejected"].startswith(BY_RULE)]
    assert refused == []
    recorded = unknown = 0
    for row in await app.runs.list(limit=1_000):
        turns = await app.runs[row.id].turns()
        completed = [turn for turn in turns if turn.state == "completed"]
        recorded += len(completed)
        unknown += sum(turn.unknown for turn in turns)
        totals = (row.turns, row.input_tokens, row.output_tokens, row.cost_nano)
        spent = [turn.usage for turn in completed]
        assert totals == (
            len(completed),
            sum(usage.input_tokens for usage in spent),
            sum(usage.output_tokens for usage in spent),
            sum(usage.cost_nano for usage in spent),
        )
    bought = sum(line["billed"] is not None for line in done)
    assert recorded <= bought <= recorded + unknown, (recorded, bought, unknown)


class Gated:
    """A model that answers by a script, and whose calls wait at a gate until the test opens it."""

    def __init__(self, *steps: Step, waits: int = 1_000_000) -> None:
        self.gate = asyncio.Event()
        self.waiting = self.most = self.calls = 0
        self._waits = waits  # so many of its calls wait, the others go through
        self._model = ScriptedModel(Script(*steps))

    async def stream(self, request: Request, answered: Callable[[ResponseHead], None]) -> AsyncGenerator[Wire, None]:
        self.calls += 1
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        try:
            if self.calls <= self._waits:
                await self.gate.wait()
        finally:
            self.waiting -= 1
        async for event in self._model.stream(request, answered):
            yield event

    async def count_tokens(self, request: Request) -> int:
        return await self._model.count_tokens(request)

    async def close(self) -> None: ...

    async def reached(self, count: int) -> None:
        """So many calls wait at the gate."""

        async def look() -> bool:
            return self.waiting >= count

        await eventually(look)


class Counting:
    """A scripted model that counts what it is asked for, and may hold its breath in between."""

    def __init__(self, script: Script, hold: Callable[[], Any] | None = None) -> None:
        self._model = ScriptedModel(script)
        self._hold = hold
        self.calls = 0

    async def stream(self, request: Request, answered: Callable[[ResponseHead], None]) -> AsyncGenerator[Wire, None]:
        self.calls += 1
        if self._hold is not None:
            async for event in self._hold():
                yield event
        async for event in self._model.stream(request, answered):
            yield event

    async def count_tokens(self, request: Request) -> int:
        return 1

    async def close(self) -> None: ...
