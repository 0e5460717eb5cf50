"""Scripts: what they say follows from the messages alone, so any process can go on with one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.models import (
    ModelFailure,
    Request,
    Script,
    ScriptedModel,
    block,
    call,
    calls,
    ends,
    open_model,
    refuse,
    say,
    think,
)
from holdfast.models import truncate as truncated
from holdfast.models.request_view import CONTINUE, CORRECT
from holdfast.models.script import example, turns_since_user
from holdfast.models.spool import read_witness
from holdfast.models.wire import to_events
from tests.models.conftest import WEATHER, ask, request_of
from tests.support.virtual_time import VirtualLoop


def answered(request: Request, blocks: list[dict[str, Any]], *results: str) -> Request:
    """The next request, when the tools have returned."""
    uses = [block["id"] for block in blocks if block["type"] == "tool_use"]
    content = [
        {"type": "tool_result", "tool_use_id": id, "content": [{"type": "text", "text": text}]}
        for id, text in zip(uses, results, strict=True)
    ]
    messages = [*(message["content"] for message in request.messages), blocks, content]
    return request_of(*messages, model=request.model, tools=request.tools)


async def test_each_step_is_played_by_a_process_of_its_own() -> None:
    def script() -> ScriptedModel:
        return ScriptedModel(Script(call("find", number="A1"), calls(say("both"), call("a"), call("b")), say("Done.")))

    first = request_of("hello", tools=[WEATHER])
    asked = await ask(script(), first)
    assert [(use["name"], use["input"]) for use in asked.tool_uses] == [("find", {"number": "A1"})]
    second = answered(first, asked.blocks, "found")
    both = await ask(script(), second)
    assert [block["type"] for block in both.blocks] == ["text", "tool_use", "tool_use"]
    third = answered(second, both.blocks, "1", "2")
    done = await ask(script(), third)
    assert (done.text, done.stop_reason) == ("Done.", "end_turn")
    ids = [use["id"] for reply in (asked, both) for use in reply.tool_uses]
    assert len(set(ids)) == 3
    assert await ask(script(), third) == done


async def test_a_new_user_message_starts_the_script_again() -> None:
    model = ScriptedModel(Script(say("first"), say("second")))
    assert (await ask(model, request_of("a"))).text == "first"
    assert (await ask(model, request_of("a", "first", "b"))).text == "first"


async def test_what_holdfast_asks_itself_is_answered_by_the_next_step_and_then_by_the_last() -> None:
    model = ScriptedModel(Script(say("bad"), say("good")))
    repair = CORRECT.format(wrong="it is not JSON")
    assert (await ask(model, request_of("a", "bad", repair))).text == "good"
    assert (await ask(model, request_of("a", "bad", repair, "good", CONTINUE))).text == "good"
    assert (await ask(model, request_of("a", "bad", repair, "good", "b"))).text == "bad"
    with pytest.raises(ModelFailure, match="asked for step 3"):
        await ask(model, request_of("a", "bad", repair, "good", [{"type": "tool_result", "tool_use_id": "t"}]))


def test_results_alone_are_no_user_message() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
    text = {"type": "text", "text": "something new"}
    assert turns_since_user(request_of("a", "b", [result]).messages) == 1
    assert turns_since_user(request_of("a", "b", [result], "c", [result]).messages) == 2
    assert turns_since_user(request_of("a", "b", [result, text], "c", [result]).messages) == 1
    assert turns_since_user(request_of("a", "b", "c").messages) == 0


async def test_without_a_script_the_first_tool_is_called_once_and_its_return_is_the_answer() -> None:
    model = open_model("scripted:")
    first = request_of("Weather in Oslo?", model="scripted:", tools=[WEATHER, {**WEATHER, "name": "other"}])
    asked = await ask(model, first)
    assert [(use["name"], use["input"]) for use in asked.tool_uses] == [("weather", {"city": "Weather in Oslo?"})]
    assert (await ask(model, answered(first, asked.blocks, "sunny in Oslo"))).text == "sunny in Oslo"
    assert (await ask(model, request_of("echo"))).text == "echo"


def test_an_example_follows_its_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "s": {"type": "string"},
            "n": {"type": "number", "minimum": 3},
            "i": {"type": ["null", "integer"]},
            "b": {"type": "boolean"},
            "e": {"enum": ["x", "y"]},
            "l": {"type": "array", "items": {"$ref": "#/$defs/P"}},
            "o": {"anyOf": [{"type": "null"}, {"type": "integer"}]},
            "c": {"const": 7},
            "optional": {"type": "string"},
        },
        "required": ["s", "n", "i", "b", "e", "l", "o", "c"],
        "$defs": {"P": {"type": "object", "properties": {"q": {"type": "string"}}}},
    }
    assert example(schema, "text") == {
        "s": "text", "n": 3, "i": 1, "b": True, "e": "x", "l": [{"q": "text"}], "o": 1, "c": 7,
    }  # fmt: skip


async def test_a_step_may_look_at_the_messages() -> None:
    model = ScriptedModel(Script(lambda messages: say(f"you said {messages[-1]['content']}")))
    assert (await ask(model, request_of("hi"))).text == "you said hi"


async def test_thinking_comes_before_its_step_and_other_ends_are_steps() -> None:
    reply = await ask(ScriptedModel(Script(think("a"), think("b"), say("c"))), request_of())
    assert [block["type"] for block in reply.blocks] == ["thinking", "thinking", "text"]
    assert all(block["signature"] for block in reply.blocks[:2])
    refused = await ask(ScriptedModel(Script(refuse("bio"))), request_of())
    assert (refused.stop_reason, refused.stop_details and refused.stop_details["category"]) == ("refusal", "bio")
    assert (await ask(ScriptedModel(Script(truncated("half"))), request_of())).stop_reason == "max_tokens"
    with pytest.raises(UsageError, match="cannot end with think"):
        Script(say("a"), think("b"))


async def test_a_pause_is_answered_by_what_follows_it() -> None:
    search = block("server_tool_use", id="srvtoolu_1", name="web_search", input={"query": "x"})
    model = ScriptedModel(Script(ends("pause_turn", say("let me look"), search, block("hologram")), say("found")))
    paused = await ask(model, request_of("a"))
    assert (paused.stop_reason, paused.blocks[1:]) == ("pause_turn", [search.body, {"type": "hologram"}])
    assert (await ask(model, request_of("a", paused.blocks))).text == "found"


async def test_a_script_that_has_run_out_says_so() -> None:
    model = ScriptedModel(Script(say("only")))
    result = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
    with pytest.raises(ModelFailure, match="has 1 step and is asked for step 2") as caught:
        await ask(model, request_of("a", "only", [result]))
    assert (caught.value.kind, caught.value.bought) == ("bad_request", "no")


async def test_a_cassette_is_a_script_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "script.json"
    steps = [{"think": "t"}, {"calls": [{"say": "s"}, {"call": ["a", {"x": 1}]}]}, {"call": ["b"]}, {"say": "end"}]
    file.write_text(
        json.dumps([*steps, {"refuse": None}, {"truncate": "x"}, {"ends": ["pause_turn", {"block": {"type": "y"}}]}])
    )
    reply = await ask(ScriptedModel(Script.cassette(file)), request_of())
    assert [block["type"] for block in reply.blocks] == ["thinking", "text", "tool_use"]
    assert reply.tool_uses[0]["input"] == {"x": 1}
    file.write_text('[{"shout": "x"}]')
    with pytest.raises(UsageError, match="there is no step 'shout'"):
        Script.cassette(file)
    file.write_text('[{"calls": [{"refuse": "bio"}]}]')
    with pytest.raises(UsageError, match="is a separate turn"):
        Script.cassette(file)


def test_ids_follow_from_the_request_and_its_turn_not_from_the_attempt() -> None:
    body = request_of("a", tools=[WEATHER]).body()
    turn = Script.default().turn(body)

    def id(call: str) -> str:
        return str(to_events(turn, body, call=call)[2]["content_block"]["id"])

    assert id("run/1/1") == id("run/1/2") != id("run/2/1")
    assert id("run/1/1") != id("other/1/1")


def test_texts_come_in_several_pieces_and_usage_is_plausible() -> None:
    body = request_of("x" * 400).body()
    events = to_events(Script(say("y" * 80)).turn(body), body)
    assert sum(event["type"] == "content_block_delta" for event in events) == 4
    usage = events[0]["message"]["usage"]
    assert 100 < usage["input_tokens"] < 130
    assert events[-2]["usage"]["output_tokens"] > 20
    assert usage["cache_read_input_tokens"] == 0


def test_pace_is_the_clocks() -> None:
    from random import Random

    from holdfast.clock import Ports

    loop = VirtualLoop(Random(1))
    try:
        node = loop.create_node("worker")
        model = ScriptedModel(Script(say("y" * 80)), pace=30, ports=Ports(clock=node.clock))
        loop.run_until_complete(node.spawn(ask(model, request_of())))
        assert loop.time() == pytest.approx(120)
    finally:
        loop.close()


async def test_a_call_leaves_two_lines_with_the_witness(tmp_path: Path) -> None:
    file = tmp_path / "witness.jsonl"
    assert read_witness(file) == []
    model = ScriptedModel(Script(say("hello")), witness=file)
    await ask(model, request_of(call="run/1/1"))
    stream = model.stream(request_of(call="run/1/2"), lambda _: None)
    await anext(aiter(stream))
    await model.close()
    await model.close()
    sent, done, again = read_witness(file)
    assert [line["event"] for line in (sent, done, again)] == ["sent", "done", "sent"]
    assert [line["call"] for line in (sent, done, again)] == ["run/1/1", "run/1/1", "run/1/2"]
    assert sent["hash"] == done["hash"] == again["hash"]
    assert done["usage"]["output_tokens"] > 1


def test_a_script_is_found_by_its_name() -> None:
    assert isinstance(open_model("scripted:refund", scripts={"refund": Script(say("x"))}), ScriptedModel)
    with pytest.raises(UsageError, match="there is no script 'refund' for model 'scripted:refund'; registered: other"):
        open_model("scripted:refund", scripts={"other": Script()})


async def test_any_other_name_is_anthropics() -> None:
    from holdfast.models.anthropic import AnthropicModel

    assert isinstance(open_model("claude-sonnet-5-5", api_key="k"), AnthropicModel)
    assert await ScriptedModel().count_tokens(request_of("x" * 400)) > 100
