"""What the provider refuses, the simulator refuses, in its words and at no cost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.conftest import WEATHER, Converse, request_of

OLD = "claude-haiku-4-5"  # takes sampling, prefill and thinking budgets
PICKY = "claude-opus-5-5"


def use(id: str = "toolu_1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "weather", "input": {"city": "Oslo"}, **more}


def result(id: str = "toolu_1") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": "sunny"}


def text(words: str = "well", **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


MARK: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
THINK = {"thinking": {"type": "enabled", "budget_tokens": 2000}}
OPEN = {"type": "object", "properties": {}}

REFUSED: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("no messages", [], {"messages": []}, "at least one message is required"),
    ("assistant first", [], {"messages": [{"role": "assistant", "content": "x"}]}, 'must use the "user" role'),
    ("unknown role", [], {"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
    ("foreign field", [], {"messages": [{"role": "user", "content": "x", "id": 1}]}, "messages.0.id: Extra inputs"),
    ("no content", [], {"messages": [{"role": "user", "content": []}]}, "must have non-empty content"),
    ("empty text", [[text("")]], {}, "text content blocks must be non-empty"),
    ("blank text", [[text(" \n")]], {}, "must contain non-whitespace text"),
    ("use without result", ["a", [use()], "b"], {}, "`tool_use` ids were found without `tool_result` blocks"),
    ("use at the end", ["a", [use()]], {"model": OLD}, "`tool_use` ids were found without"),
    ("one result of two", ["a", [use("a"), use("b")], [result("a")]], {}, "immediately after: b."),
    ("result without use", [[result()]], {}, "unexpected `tool_use_id` found in `tool_result` blocks: toolu_1"),
    ("result of an older turn", ["a", [use()], [result()], "b", [result()]], {}, "unexpected `tool_use_id`"),
    ("two results", ["a", [use()], [result(), result()]], {}, "each tool_use must have a single result"),
    ("result after text", ["a", [use()], [text(), result()]], {}, "must come first"),
    ("same id twice", ["a", [use(), use()], [result()]], {}, "`tool_use` ids must be unique"),
    ("same id again", ["a", [use()], [result()], [use()], [result()]], {}, "`tool_use` ids must be unique"),
    ("bad id", ["a", [use("a b")], [result("a b")]], {}, "String should match pattern"),
    ("input is no object", ["a", [use(input="x")], [result()]], {}, "input: Input should be a valid dictionary"),
    ("use by the user", [[use()]], {}, "can only be in `assistant` messages"),
    ("result by the model", ["a", [result()], "b"], {}, "can only be in `user` messages"),
    ("prefill", ["a", "b"], {}, "does not support assistant message prefill"),
    ("prefill with space", ["a", "b "], {"model": OLD}, "cannot end with trailing whitespace"),
    ("unsigned thinking", ["a", [{"type": "thinking", "thinking": "x"}], "b"], {}, "signature: Field required"),
    ("max_tokens 0", [], {"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1"),
    ("max_tokens over", [], {"max_tokens": 128_001}, "max_tokens: 128001 > 128000"),
    ("unknown tool_choice", [], {"tools": [WEATHER], "options": {"tool_choice": {"type": "maybe"}}}, "tool_choice"),
    ("tool_choice alone", [], {"options": {"tool_choice": {"type": "auto"}}}, "while providing `tools`"),
    ("forced tool", [], {"tools": [WEATHER], "options": {"tool_choice": {"type": "any"}}}, "tool_choice.type.any"),
    ("choice of nobody", [],
     {"model": OLD, "tools": [WEATHER], "options": {"tool_choice": {"type": "tool", "name": "x"}}},
     "Tool 'x' not found"),
    ("same tool twice", [], {"tools": [WEATHER, WEATHER]}, "Tool names must be unique"),
    ("tool with a bad name", [], {"tools": [{**WEATHER, "name": "a b"}]}, "tools.0.custom.name"),
    ("tool without schema", [], {"tools": [{"name": "x"}]}, "input_schema: Field required"),
    ("strict tool left open", [], {"tools": [{**WEATHER, "strict": True}]}, "'additionalProperties' must be"),
    ("five markers", [[text(**MARK)] * 5], {}, "A maximum of 4 blocks with cache_control may be provided. Found 5."),
    ("unknown lifetime", [[text(cache_control={"type": "ephemeral", "ttl": "2h"})]], {}, "should be '5m' or '1h'"),
    ("hour after minutes", [[text(**MARK), text(cache_control={"type": "ephemeral", "ttl": "1h"})]], {},
     "must not come after a ttl='5m'"),
    ("temperature", [], {"options": {"temperature": 0.5}}, "`temperature` is not supported for this model"),
    ("temperature with thinking", [], {"model": OLD, "max_tokens": 4000, "options": {"temperature": 0.5, **THINK}},
     "when thinking is enabled"),
    ("hot", [], {"model": OLD, "options": {"temperature": 2}}, "temperature: range: 0..1"),
    ("budget over max_tokens", [], {"model": OLD, "options": THINK}, "must be greater than `thinking.budget_tokens`"),
    ("small budget", [], {"model": OLD, "options": {"thinking": {"type": "enabled", "budget_tokens": 1}}},
     "at least 1024"),
    ("thinking off", [], {"model": PICKY, "options": {"thinking": {"type": "disabled"}}}, "thinking.type.disabled"),
    ("loop without its thinking", ["a", [use()], [result()]], {"model": OLD, "max_tokens": 4000, "options": THINK},
     "must start with a thinking block"),
    ("effort", [], {"model": OLD, "options": {"effort": "high"}}, "effort"),
    ("unknown effort", [], {"options": {"effort": "heroic"}}, "output_config.effort"),
    ("open schema", [], {"output_schema": OPEN}, "'additionalProperties' must be explicitly set to false"),
    ("bounds", [], {"output_schema": {"type": "integer", "minimum": 1, "maximum": 5}},
     "For 'integer' type, properties maximum, minimum are not supported"),
    ("many items", [], {"output_schema": {"type": "array", "items": {"type": "string"}, "minItems": 2}},
     "'minItems' values other than 0 or 1"),
    ("one of", [], {"output_schema": {"oneOf": [{"type": "string"}]}}, "properties oneOf are not supported"),
    ("unknown format", [], {"output_schema": {"type": "string", "format": "binary"}}, "format 'binary'"),
    ("pattern that looks ahead", [], {"output_schema": {"type": "string", "pattern": "(?=a)"}}, "'pattern' uses"),
    ("schema of itself", [],
     {"output_schema": {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}},
     "Circular reference"),
    ("strict tool with bounds", [], {"tools": [{**WEATHER, "strict": True, "input_schema": {
        "type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "additionalProperties": False}}]},
     "tools.0.custom: For 'integer' type, properties minimum are not supported"),
    ("unknown field", [], {"options": {"temprature": 1}}, "temprature: Extra inputs are not permitted"),
    ("empty system", [], {"system": [text("")]}, "system: text content blocks must be non-empty"),
    ("blank stop sequence", [], {"options": {"stop_sequences": [" "]}}, "stop_sequences"),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "more", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
async def test_it_is_refused(converse: Converse, messages: list[Any], more: dict[str, Any], words: str) -> None:
    talk = await converse()
    failure = await talk.failure(request_of(*messages, **more))
    assert (failure.kind, failure.status, failure.code) == ("bad_request", 400, "invalid_request_error")
    assert words in failure.message
    assert failure.bought == "no"
    sent, done = talk.provider.lines
    assert (sent["event"], done["event"], done["billed"]) == ("sent", "done", None)
    assert words in done["rejected"]


ACCEPTED: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("text as blocks", [[text(), text()]], {}),
    ("pairs", ["a", [text(), use("a"), use("b")], [result("b"), result("a"), text()], "c", "d"], {}),
    ("a user twice", [], {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}),
    ("results in two messages", [], {"messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [use("a"), use("b")]},
        {"role": "user", "content": [result("a")]},
        {"role": "user", "content": [result("b")]},
    ]}),
    ("prefill where it is taken", ["a", "b"], {"model": OLD}),
    ("a paused server tool", ["a", [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}]], {}),
    ("four markers", [[text(**MARK)] * 4], {}),
    ("temperature where it is taken", [], {"model": OLD, "options": {"temperature": 0.5}}),
    ("a budget where it is taken", [], {"model": OLD, "max_tokens": 4000, "options": THINK}),
    ("a server tool", [], {"tools": [{"type": "web_search_20260318", "name": "web_search"}]}),
    ("a snapshot's name", [], {"model": "claude-sonnet-5-5-20260928"}),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "more"), [row[1:] for row in ACCEPTED], ids=[row[0] for row in ACCEPTED])
async def test_it_is_accepted(converse: Converse, messages: list[Any], more: dict[str, Any]) -> None:
    talk = await converse()
    assert (await talk.reply(request_of(*messages, **more))).stop_reason == "end_turn"


async def test_an_unknown_model_is_not_found(converse: Converse) -> None:
    failure = await (await converse()).failure(request_of(model="claude-nobody-1"))
    assert (failure.kind, failure.status, failure.message) == ("not_found", 404, "model: claude-nobody-1")


async def test_a_retired_model_is_not_found(converse: Converse) -> None:
    assert (await (await converse()).failure(request_of(model="claude-mythos-preview"))).kind == "not_found"


async def test_a_prompt_over_the_window_is_too_long(converse: Converse) -> None:
    failure = await (await converse()).failure(request_of("x" * 900_000, model=OLD))
    assert failure.kind == "context_window"
    assert "prompt is too long" in failure.message
