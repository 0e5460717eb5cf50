"""Definitions of agents: their values are checked, and each is stored once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Holdfast, Limits
from holdfast.agents.runs.create import put_agent
from holdfast.app import core_of
from holdfast.errors import UsageError
from holdfast.kernel.database import Transaction
from holdfast.models.script import say
from tests.conftest import Place
from tests.support.agents import MODEL, scripted
from tests.support.apps import MakeApp, eventually, happens
from tests.support.past_kernel import query


async def test_two_that_write_the_same_agent_at_once_write_it_once(make_app: MakeApp, place: Place) -> None:
    first, second = (make_app(embedded=False) for _ in range(2))
    named = [app.agent("twin", model="scripted:").named for app in (first, second)]
    written, go = asyncio.Event(), asyncio.Event()

    async def slowly(tx: Transaction) -> str:
        row = await put_agent(tx, named[0])
        if place.url.startswith("postgres"):  # a file has one writer, which must not wait for anybody
            written.set()
            await go.wait()
        return row.id

    slow = asyncio.create_task(core_of(first).runtime().transact(slowly))
    if place.url.startswith("postgres"):
        await happens(written)
    quick = asyncio.create_task(core_of(second).runtime().transact(put_agent, named[1]))
    if place.url.startswith("postgres"):
        await eventually(lambda: _blocked(place))
    go.set()
    assert (await quick).id == await slow
    assert [row.version for row in await first.agents.list()] == [1]


async def _blocked(place: Place) -> bool:
    """Whether somebody waits for a row that is not committed yet."""
    return bool(
        query(place, "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'")
    )


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model": " "}, "model must be the name of a model, but it is empty"),
    ({"model": 3}, "model of agent 'z' must be the name of a model; got 3"),
    ({"model": MODEL, "options": {"temperature": 0.5, "thinking": {"type": "nonsense"}}}, MODEL),
    ({"agents": ["a"]}, "agents of agent 'z' must be a list of agents, .* one of them is 'a'"),
    ({"agents": "a"}, "agents of agent 'z' must be a list of"),
    ({"output": int}, "output of agent 'z' must be a JSON schema, as a dict; got <class 'int'>"),
    ({"limits": {"turn": 3}}, "limits have no 'turn'"),
    ({"limits": 3}, "limits of agent 'z' must be Limits"),
    ({"max_tokens": "many"}, "max_tokens of agent 'z' must be a whole number; got 'many'"),
    ({"tools": [int]}, "tools of agent 'z' must be a list of names"),
    ({"tools": ["nothing"]}, "no tool 'nothing'"),
]


@pytest.mark.parametrize(("fields", "reason"), WRONG, ids=[f"{list(f)[-1]} {n}" for n, (f, _) in enumerate(WRONG)])
async def test_an_agent_of_wrong_values_is_refused(hf: Holdfast, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        await hf.agents.create("z", **{"model": "scripted:", **fields})
    assert await hf.agents.list() == []
    await hf.agents.create("z", model="scripted:")
    with pytest.raises(UsageError, match=reason):
        await hf.agents.update("z", **fields)
    assert (await hf.agents.get("z")).version == 1


async def test_an_agent_of_right_values_is_taken(hf: Holdfast) -> None:
    @hf.tool
    def look() -> str:
        """Look."""
        return "seen"

    below = hf.agent("below", model=scripted(hf, say("below")))
    row = await hf.agents.create(
        "z", model=scripted(hf, say("done")), tools=["look"], agents=[below], limits={"turns": 3}, requires=[]
    )
    spec = (await hf.agents[row.id].load()).spec
    assert (spec.limits, [tool.name for tool in spec.tools]) == (Limits(turns=3), ["look"])
    assert [each.agent for each in spec.agents] == [(await hf.agents.get("below")).id]
    assert (await hf.agents[row.id].run("Go")).text == "done"
    with pytest.raises(UsageError, match="needs a model"):
        await hf.agents.create("y")  # type: ignore[call-arg]


async def test_a_model_of_a_run_is_checked(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("a", model="scripted:")
    with pytest.raises(UsageError, match="claude-mythos-preview was retired"):
        await agent.enqueue("Go", model="claude-mythos-preview")
    with pytest.raises(UsageError, match="model must be the name of a model; got int"):
        await agent.enqueue("Go", model=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="limits must be Limits"):
        await agent.enqueue("Go", limits={"turns": 3})  # type: ignore[arg-type]
    assert await hf.runs.list() == []
