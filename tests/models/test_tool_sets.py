"""Sets of tools as the provider takes them: known server tools, deferred tools, references to them."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.models import Script, block, ends, say, with_breakpoints
from tests.models.conftest import WEATHER, Converse, request_of

SEARCH = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
LATER = {**WEATHER, "defer_loading": True}
MARK: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}


def found(*names: str) -> list[Any]:
    """A conversation in which the provider's search found these."""
    references = [{"type": "tool_reference", "tool_name": name} for name in names]
    result = {"type": "tool_search_tool_search_result", "tool_references": references}
    return [
        "a",
        [
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "tool_search_tool_regex", "input": {"query": "w"}},
            {"type": "tool_search_tool_result", "tool_use_id": "srvtoolu_1", "content": result},
            {"type": "text", "text": "found"},
        ],
        "b",
    ]


def returned(name: str) -> list[Any]:
    """A conversation in which a tool of ours returned a reference."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {}}
    content = [{"type": "tool_reference", "tool_name": name}]
    return ["a", [use], [{"type": "tool_result", "tool_use_id": "toolu_1", "content": content}]]


REFUSED: list[tuple[str, list[Any], list[Any], str]] = [
    ("an unknown type", [], [{"type": "telepathy_20260101", "name": "telepathy"}], "Input tag 'telepathy_20260101'"),
    ("a search of another name", [], [{**SEARCH, "name": "search"}], "Input should be 'tool_search_tool_regex'"),
    ("defer that is no boolean", [], [SEARCH, {**WEATHER, "defer_loading": "yes"}], "defer_loading: Input should be"),
    ("everything deferred", [], [LATER], "At least one tool must have defer_loading=false"),
    ("a marker on a deferred tool", [], [SEARCH, {**LATER, **MARK}], "cannot have both defer_loading=true and"),
    ("a search that found nothing that is there", found("wether"), [SEARCH, LATER], "'wether' not found"),
    ("a tool that refers to nothing", returned("wether"), [SEARCH, LATER], "'wether' not found"),
    ("a search result by the user", [found("weather")[1]], [SEARCH, LATER], "can only be in `assistant`"),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "tools", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
async def test_it_is_refused(converse: Converse, messages: list[Any], tools: list[Any], words: str) -> None:
    failure = await (await converse()).failure(request_of(*messages, tools=tools))
    assert (failure.kind, failure.status) == ("bad_request", 400)
    assert words in failure.message


@pytest.mark.parametrize("messages", [[], found("weather"), found(), returned("weather")])
async def test_deferred_tools_are_accepted(converse: Converse, messages: list[Any]) -> None:
    talk = await converse(script=Script(say("ok"), say("ok")))
    request = with_breakpoints(request_of(*messages, tools=[SEARCH, LATER]))
    assert (await talk.reply(request)).stop_reason == "end_turn"


async def test_a_script_can_search(converse: Converse) -> None:
    use, result, _ = found("weather")[1]
    blocks = [block(each.pop("type"), **each) for each in ({**use}, {**result})]
    talk = await converse(script=Script(ends("end_turn", *blocks, say("found"))))
    reply = await talk.reply(request_of(tools=[SEARCH, LATER]))
    assert reply.blocks == [use, result, {"type": "text", "text": "found"}]


@pytest.mark.parametrize("system", [[], [{"type": "text", "text": "You find things."}]])
def test_no_marker_goes_to_a_deferred_tool(system: list[Any]) -> None:
    marked = with_breakpoints(request_of(tools=[SEARCH, LATER, {**LATER, "name": "b"}], system=system))
    assert ["cache_control" in tool for tool in marked.tools] == [not system, False, False]
