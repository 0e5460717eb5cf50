"""Thinking is bound to everything before it: sent back unchanged it is accepted, after any change it is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.models import Request, Script, call, say, think, with_breakpoints
from tests.models.conftest import WEATHER, Conversation, Converse, request_of

SYSTEM = [{"type": "text", "text": "You are a guide."}]
SCRIPT = Script(think("where is it?"), call("weather", city="Oslo"), think("sunny, then"), say("It is sunny."))


async def second_turn(talk: Conversation) -> Request:
    """A request that sends thinking back, in an open tool loop."""
    first = request_of("Oslo?", tools=[WEATHER], system=SYSTEM)
    asked = await talk.reply(first)
    assert [block["type"] for block in asked.blocks] == ["thinking", "tool_use"]
    assert asked.blocks[0]["thinking"] == "where is it?"
    result = {"type": "tool_result", "tool_use_id": asked.tool_uses[0]["id"], "content": "sunny"}
    return request_of("Oslo?", asked.blocks, [result], tools=[WEATHER], system=SYSTEM)


async def test_thinking_goes_round(converse: Converse) -> None:
    talk = await converse(script=SCRIPT)
    second = await second_turn(talk)
    answer = await talk.reply(second)
    assert answer.text == "It is sunny."
    third = replace(
        second,
        messages=[
            *second.messages,
            {"role": "assistant", "content": answer.blocks},
            {"role": "user", "content": "And Rome?"},
        ],
    )
    assert (await talk.reply(third)).stop_reason == "tool_use"


async def test_cache_markers_are_no_change(converse: Converse) -> None:
    talk = await converse(script=SCRIPT)
    assert (await talk.reply(with_breakpoints(await second_turn(talk)))).text == "It is sunny."


def changed(request: Request, what: str) -> Request:
    messages: list[Any] = [dict(message) for message in request.messages]
    match what:
        case "system":
            return replace(request, system=[{"type": "text", "text": "You are a pirate."}])
        case "tools":
            return replace(request, tools=[{**WEATHER, "description": "Another."}])
        case "model":
            return replace(request, model="claude-opus-5-5")
        case "message":
            messages[0]["content"] = "Oslo!"
        case "thinking":
            messages[1]["content"] = [{**messages[1]["content"][0], "thinking": "x"}, *messages[1]["content"][1:]]
        case "signature":
            messages[1]["content"] = [{**messages[1]["content"][0], "signature": "x"}, *messages[1]["content"][1:]]
    return replace(request, messages=messages)


@pytest.mark.parametrize("what", ["system", "tools", "model", "message", "thinking", "signature"])
async def test_thinking_after_a_change_is_refused(converse: Converse, what: str) -> None:
    talk = await converse(script=SCRIPT)
    failure = await talk.failure(changed(await second_turn(talk), what))
    assert failure.kind == "bad_request"
    assert "messages.1.content.0: Invalid `signature` in `thinking` block" in str(failure)


async def test_another_account_cannot_send_it(converse: Converse) -> None:
    talk, other = await converse(script=SCRIPT), await converse(script=SCRIPT, key="sk-other")
    assert "Invalid `signature`" in str(await other.failure(await second_turn(talk)))


async def test_what_follows_thinking_may_change(converse: Converse) -> None:
    talk = await converse(script=SCRIPT)
    request = await second_turn(talk)
    result = {**request.messages[2]["content"][0], "content": "rain"}
    later = replace(request, messages=[*request.messages[:2], {"role": "user", "content": [result]}])
    assert (await talk.reply(later)).text == "It is sunny."
