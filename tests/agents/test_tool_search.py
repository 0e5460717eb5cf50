"""Large sets of tools: definitions that wait until the model's search has found them."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.definition import AgentSpec
from holdfast.agents.tools import ServerTool, Tool
from holdfast.errors import BadSetting, UsageError
from holdfast.models.protocol import unmarked
from holdfast.models.script import block, call, calls, say
from holdfast.models.simulator import simulator
from holdfast.testing import Labs
from tests.support.agents import MODEL, Noting, audit, results, scripted, settle

pytestmark = pytest.mark.asyncio

SEARCH = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
USE = {"id": "srvtoolu_1", "name": "tool_search_tool_bm25", "input": {"query": "number 137"}}


def _many(hf: Holdfast, count: int) -> list[Tool[Any, Any]]:
    """So many tools; each seventh is offered at once."""
    made = []
    for number in range(count):

        def tool(n: int, number: int = number) -> str:
            return f"{number}: {n}"

        tool.__doc__ = f"Number {number}."
        made.append(hf.tool(name=f"number_{number}", defer=number % 7 != 0)(tool))
    return made


def _found(name: str) -> Any:
    content = {
        "type": "tool_search_tool_search_result",
        "tool_references": [{"type": "tool_reference", "tool_name": name}],
    }
    return block("tool_search_tool_result", tool_use_id="srvtoolu_1", content=content)


@pytest.mark.long
@pytest.mark.parametrize("instructions", ["", "Use what you find."])
async def test_two_hundred_tools_are_found_by_search(hf: Holdfast, provided: Labs, instructions: str) -> None:
    script = Noting(
        calls(block("server_tool_use", **USE), _found("number_137"), call("number_137", n=5)),
        say("found it"),
    )
    async with simulator(script=script) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url})
        tools = _many(hf, 200)
        agent = hf.agent("finder", model=MODEL, tools=tools, tool_search="bm25", instructions=instructions)
        lab = await provided.use(hf)
        run = await agent.enqueue("Call number 137.")
        (row,) = await settle(lab, run)
        assert (row.state, row.turns) == ("completed", 2)
        assert [block["content"] for block in await results(hf, run.session_id)] == ["137: 5"]
        await audit(hf, provider)
    first, second = script.bodies
    assert unmarked(first["tools"]) == unmarked(second["tools"])
    assert [tool["name"] for tool in first["tools"]] == [*(f"number_{n}" for n in range(200)), SEARCH["name"]]
    deferred = [tool.get("defer_loading") for tool in first["tools"]]
    assert deferred == [True if n % 7 else None for n in range(200)] + [None]
    assert unmarked(first["tools"][-1]) == SEARCH
    marked = [tool["name"] for tool in first["tools"] if "cache_control" in tool]
    assert marked == ([] if instructions else [SEARCH["name"]])
    answer = next(each for each in second["messages"] if each["role"] == "assistant")["content"]
    assert [each["type"] for each in answer] == ["server_tool_use", "tool_search_tool_result", "tool_use"]
    assert answer[0] == {"type": "server_tool_use", **USE}


async def test_a_tool_may_search_too(hf: Holdfast) -> None:
    @hf.tool(effect="read")
    def look_for(words: str) -> list[dict[str, str]]:
        """Look for tools."""
        return [{"type": "tool_reference", "tool_name": "number_1"}]

    script = scripted(hf, call("look_for", words="one"), call("number_1", n=2), say("ok"))
    agent = hf.agent("own", model=script, tools=[look_for, *_many(hf, 3)], tool_search="regex")
    result = await agent.run("Go")
    first, second = await results(hf, result.session_id)
    assert first["content"] == [{"type": "tool_reference", "tool_name": "number_1"}]
    assert second["content"] == "1: 2"


async def test_what_could_not_be_found_is_refused(hf: Holdfast) -> None:
    tools = _many(hf, 2)
    with pytest.raises(UsageError, match=r"could never find its tool 'number_1', .* tool_search"):
        hf.agent("lost", model="scripted:", tools=tools)
    wrong: Any = "grep"
    with pytest.raises(BadSetting, match="tool_search must be"):
        hf.agent("wrong", model="scripted:", tools=tools, tool_search=wrong)
    own = ServerTool("tool_search_tool_regex_20251119", name="tool_search_tool_regex")
    spec = hf.agent("own", model="scripted:", tools=[*tools, own]).spec
    assert spec.wire_tools(strict=False)[-1] == own.wire()
    with pytest.raises(UsageError, match="two tools named 'tool_search_tool_regex'"):
        _ = hf.agent("twice", model="scripted:", tools=[*tools, own], tool_search="regex").spec


async def test_it_is_part_of_what_is_stored(hf: Holdfast) -> None:
    _many(hf, 2)
    row = await hf.agents.create("stored", model="scripted:", tools=["number_0", "number_1"], tool_search="regex")
    spec = (await hf.agents[row.id].load()).spec
    assert (spec.tool_search, [tool.defer for tool in spec.tools]) == ("regex", [False, True])
    assert AgentSpec.parse(spec.text()) == spec
    with pytest.raises(UsageError, match="could never find its tool"):
        await hf.agents.update(row.id, tool_search=None)


async def test_definitions_of_older_releases_are_read() -> None:
    from holdfast.kernel import codec

    stored = codec.decode(AgentSpec(name="old", model="scripted:").text())
    for field in ("tool_search", "fallbacks"):
        del stored[field]
    assert AgentSpec.parse(codec.encode(stored, what="a test", cap=1 << 20)).fallbacks == ()
