"""A worker is killed before and after every commit of a run: the answer is the same, and nothing is bought twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents import listings
from holdfast.agents.tools import ToolContext
from holdfast.app import core_of
from holdfast.events import RunEnded, TextDelta, TurnRestarted
from holdfast.models.script import Script, call, calls, say
from holdfast.models.spool import read_witness
from holdfast.testing import Lab, Labs
from tests.support.apps import outcomes
from tests.support.exchanges import Said, broken_exchange, purchases
from tests.testing.conftest import databases, labs, server

__all__ = ["databases", "labs", "server"]

SPOKEN = ["looked up cat", "looked up dog", "the clerk is done"]


@pytest.fixture
def app(tmp_path: Path) -> Holdfast:
    """An app whose own database nobody ever opens."""
    (tmp_path / "file").touch()
    app = Holdfast(f"sqlite:///{tmp_path / 'file' / 'own.db'}")
    app.settings = replace(app.settings, script_witness=str(tmp_path / "witness"))
    return app


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_run_survives_a_crash_at_every_commit(app: Holdfast, labs: Labs, tmp_path: Path) -> None:
    starts: Counter[str] = Counter()

    @app.tool
    async def look_up(ctx: ToolContext, word: str) -> str:
        """Look a word up."""
        starts[ctx.idempotency_key] += 1
        return f"looked up {word}"

    app.script("clerk", Script(say("the clerk is done")))
    app.script(
        "boss",
        Script(
            calls(call("look_up", word="cat"), call("look_up", word="dog"), call("clerk", task="find owl")),
            say("all done"),
        ),
    )
    clerk = app.agent("clerk", model="scripted:clerk")
    boss = app.agent("boss", model="scripted:boss", tools=[look_up], agents=[clerk])
    crashed = Counter[str]()
    async for lab in labs.crash_everywhere(app):
        starts.clear()
        before = len(read_witness(tmp_path / "witness"))
        run = await boss.enqueue("Go")
        await lab.drain()
        result = await run.result()
        assert (result.text, result.outcome, result.turns) == ("all done", "answered", 2)
        await everything_is_whole(app, run.id)
        await nothing_was_bought_twice(app, lab, read_witness(tmp_path / "witness")[before:])
        assert len(starts) == 2
        for call_id, times in starts.items():  # once more only for each attempt that a crash cut off
            assert times <= 1 + (await outcomes(app, call_id)).count("lost")
        crashed.update(str(crash).rpartition(" ")[0] for crash in lab.crashes)
    assert crashed["before begin"] == crashed["after begin"] == crashed["before commit"] == crashed["after commit"] == 3
    assert crashed["before claim"] >= 3


async def everything_is_whole(app: Holdfast, run: str) -> None:
    """The conversation of the run and of the run below it, the calls, and the events that a reader gets."""
    row = await app.runs[run].refresh()
    rows = [row, *await app.runs[run].children()]
    assert [each.agent_name for each in rows] == ["boss", "clerk"]
    for each in rows:
        found = await core_of(app).runtime().database.transact(listings.list_messages, each.session, branch=each.branch)
        told = [Said(message.role, message.run_id, message.blocks) for message in found]
        assert [message.role for message in told] == ["user", "assistant"] * each.turns
        assert not broken_exchange(told, open_tail=False)
        turns = await app.runs[each.id].turns()
        assert [turn.number for turn in turns] == list(range(1, each.turns + 1))
        assert {turn.state for turn in turns} == {"completed"}
        assert each.output_tokens == sum(turn.usage.output_tokens for turn in turns) > 0
        assert each.input_tokens == sum(turn.usage.input_tokens for turn in turns) > 0
        events = await app.runs[each.id].events()
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert isinstance(events[-1], RunEnded)
        assert sum(isinstance(event, RunEnded) for event in events) == 1
        restarts = [event for event in events if isinstance(event, TurnRestarted)]
        assert len(restarts) == sum(turn.unknown for turn in turns)
        assert "".join(e.text for e in events if isinstance(e, TextDelta)) in ("all done", SPOKEN[-1])
    results = await app.sessions[row.session].messages()
    assert [block["content"] for block in results[2].blocks] == SPOKEN


async def nothing_was_bought_twice(app: Holdfast, lab: Lab, witness: list[dict[str, Any]]) -> None:
    """Only a worker that dies with an answer it has not stored costs a second call."""
    bought = purchases(witness)
    for row in await app.runs.list():
        for turn in await app.runs[row.id].turns():
            assert 1 <= bought[row.id, turn.number] <= 1 + turn.unknown
    lost = [crash for crash in lab.crashes if (crash.when, crash.commit) == ("before", "commit")]
    assert bought.total() == 3 + len(lost)
