"""Agents made of names: their tools may be those that another process has."""

from __future__ import annotations

import json

import pytest

from holdfast.agents.statements import ToolsSql
from holdfast.app import core_of
from holdfast.errors import NotUnderstood, UsageError
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction
from holdfast.models.script import Script, call, say
from tests.support.apps import MakeApp, working


async def test_an_agent_may_be_made_of_tools_whose_code_another_process_has(make_app: MakeApp) -> None:
    office, able = make_app(embedded=False), make_app(embedded=False)

    @able.tool(timeout="1m", requires=["shovel"])
    def dig(depth: int) -> str:
        """Dig a hole."""
        return f"{depth} deep"

    able.script("dig", Script(call("dig", depth=3), say("Done.")))
    with pytest.raises(UsageError, match=r"no tool 'dig'.*no worker ever has"):
        await office.agents.create("digger", model="scripted:dig", tools=["dig"])
    async with working(able):
        row = await office.agents.create("digger", model="scripted:dig", tools=["dig"])
        with pytest.raises(UsageError, match="no tool 'fill'"):
            await office.agents.update(row.id, tools=["dig", "fill"])
    (tool,) = (await office.agents[row.id].load()).named.spec.tools
    assert tool == core_of(able).tool_named("dig")


async def test_a_tool_that_is_declared_anew_is_the_one_that_new_agents_get(make_app: MakeApp) -> None:
    office = make_app(embedded=False)
    for words in ("Dig a hole.", "Dig a deep hole."):
        able = make_app(embedded=False)

        def dig(depth: int) -> str:
            return f"{depth} deep"

        dig.__doc__ = words
        able.tool(dig)
        able.script("dig", Script(call("dig", depth=3), say("Done.")))
        async with working(able):
            row = await office.agents.create("digger", model="scripted:dig", tools=["dig"])
            assert (await office.agents[row.id].load()).named.spec.tools[0].description == words
            run = await office.agents[row.id].enqueue("Dig.")
            assert (await run.result()).text == "Done."
            assert [made.output for made in await run.calls()] == ["3 deep"]


async def test_a_tool_that_a_newer_release_declared_is_read_as_far_as_it_is_understood(make_app: MakeApp) -> None:
    office = make_app(embedded=False)
    known = {"name": "dig", "description": "Dig.", "schema": {"type": "object"}, "requires": ["shovel"]}

    async def declare(tx: Transaction, /, **more: object) -> None:
        text = json.dumps({**known, **more})
        await tx.run(ToolsSql.declare_tool, name="dig", definition=text, digest=codec.digest(text))

    await core_of(office).runtime().transact(declare, colour="green")
    row = await office.agents.create("digger", model="scripted:", tools=["dig"])
    assert (await office.agents[row.id].load()).named.spec.tools[0].requires == ("shovel",)
    await core_of(office).runtime().transact(declare, effect="sometimes")
    with pytest.raises(NotUnderstood, match=r"tool 'dig'.*effect is 'sometimes'"):
        await office.agents.create("digger", model="scripted:", tools=["dig"])
