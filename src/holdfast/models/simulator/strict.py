"""What the provider refuses, refused here with its words: a request that passes would have been accepted there.

`check_request` raises `Refused` for the first thing that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from holdfast.models.facts import Facts, known
from holdfast.models.protocol import Wire
from holdfast.models.schemas import objection
from holdfast.models.simulator.conversation import check_conversation
from holdfast.models.simulator.media import check_media
from holdfast.models.simulator.refusal import RequestRefused, need
from holdfast.models.simulator.tool_sets import check_tool_references, check_tool_set
from holdfast.models.thinking_signature import blocks_of, forged
from holdfast.models.wire import count_tokens

_FIELDS = frozenset(
    (
        "model",
        "max_tokens",
        "messages",
        "system",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "stop_sequences",
        "stream",
        "temperature",
        "top_p",
        "top_k",
        "metadata",
        "container",
        "service_tier",
        "cache_control",
        "context_management",
        "mcp_servers",
        "diagnostics",
        "inference_geo",
        "speed",
        "user_profile_id",
        "fallbacks",
    )
)
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MARKERS = 4


def check_request(body: Any, *, key: str, account: str, counting: bool = False) -> Facts:
    """Refuse what the provider would; the facts of the model otherwise. `counting`: for the token counting API."""
    need(isinstance(body, dict), "Input should be a valid dictionary")
    for name in body:
        need(name in _FIELDS, f"{name}: Extra inputs are not permitted")
    for name in ("model", "messages") if counting else ("model", "max_tokens", "messages"):
        need(name in body, f"{name}: Field required")
    facts = _facts(body["model"])
    for check in (
        _sizes,
        _sampling,
        _thinking,
        _tools,
        _output,
        _schemas,
        _system,
        check_conversation,
        check_media,
        check_tool_references,
        _markers,
    ):
        check(body, facts)
    for message, block in forged(key, body, account):
        raise RequestRefused(f"messages.{message}.content.{block}: Invalid `signature` in `thinking` block")
    if (tokens := count_tokens(body)) > facts.window and not counting:
        raise RequestRefused(f"prompt is too long: {tokens} tokens > {facts.window} maximum")
    return facts


def _facts(model: Any) -> Facts:
    need(isinstance(model, str), "model: Input should be a valid string")
    facts = known(model)
    if facts is None or facts.lifecycle == "retired":
        raise RequestRefused(f"model: {model}", status=404, type="not_found_error")
    return facts


def _sizes(body: Wire, facts: Facts) -> None:
    most = body.get("max_tokens", 1)
    need(isinstance(most, int) and not isinstance(most, bool), "max_tokens: Input should be a valid integer")
    need(most >= 1, "max_tokens: Input should be greater than or equal to 1")
    need(
        most <= facts.max_output,
        f"max_tokens: {most} > {facts.max_output}, which is the maximum allowed number of output tokens for "
        f"{body['model']}",
    )
    for text in body.get("stop_sequences") or []:
        need(isinstance(text, str) and bool(text.strip()), "stop_sequences: each stop sequence must contain text")


def _sampling(body: Wire, facts: Facts) -> None:
    for name in ("temperature", "top_p", "top_k"):
        if body.get(name) is None:
            continue
        need(facts.sampling, f"`{name}` is not supported for this model.")
        thinks = (body.get("thinking") or {}).get("type") in ("enabled", "adaptive")
        need(
            not thinks or (name == "temperature" and body[name] == 1),
            f"`{name}` may only be set to its default when thinking is enabled.",
        )
    if body.get("temperature") is not None:
        need(0 <= body["temperature"] <= 1, "temperature: range: 0..1")


def _thinking(body: Wire, facts: Facts) -> None:
    thinking = body.get("thinking")
    if thinking is None:
        return
    kind = thinking.get("type")
    need(kind in ("enabled", "disabled", "adaptive", "between_tools"), f"thinking: unknown type {kind!r}")
    need(
        kind in facts.thinking_types,
        f'"thinking.type.{kind}" is not supported for this model. Use "thinking.type.{facts.thinking_types[0]}" and '
        f'"output_config.effort" to control thinking behavior.',
    )
    if kind == "enabled":
        budget = thinking.get("budget_tokens")
        need(isinstance(budget, int) and budget >= 1024, "thinking.enabled.budget_tokens: must be at least 1024")
        need(budget < body.get("max_tokens", budget + 1), "`max_tokens` must be greater than `thinking.budget_tokens`.")


def _tools(body: Wire, facts: Facts) -> None:
    tools = body.get("tools") or []
    names = [tool.get("name") for tool in tools]
    for number, tool in enumerate(tools):
        if tool.get("type", "custom") != "custom":
            continue
        need(
            isinstance(tool.get("name"), str) and bool(_NAME.fullmatch(tool["name"])),
            f"tools.{number}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'",
        )
        schema = tool.get("input_schema")
        need(isinstance(schema, dict), f"tools.{number}.custom.input_schema: Field required")
        need(schema.get("type") == "object", f"tools.{number}.custom.input_schema.type: Input should be 'object'")
    need(len(set(names)) == len(names), "tools: Tool names must be unique.")
    check_tool_set(body)
    _tool_choice(body.get("tool_choice"), names, facts)


def _tool_choice(choice: Any, names: list[Any], facts: Facts) -> None:
    if choice is None:
        return
    kind = choice.get("type") if isinstance(choice, dict) else None
    need(kind in ("auto", "any", "tool", "none"), f"tool_choice: Input tag {kind!r} found using 'type' does not match")
    need(bool(names), "tool_choice: may only be specified while providing `tools`.")
    need(kind not in ("any", "tool") or facts.forced_tool_choice, f'"tool_choice.type.{kind}" is not supported.')
    if kind == "tool":
        need(choice.get("name") in names, f"Tool '{choice.get('name')}' not found in provided tools")


def _output(body: Wire, facts: Facts) -> None:
    output = body.get("output_config") or {}
    for name in output:
        need(name in ("effort", "format"), f"output_config.{name}: Extra inputs are not permitted")
    if (effort := output.get("effort")) is not None:
        need(effort in ("low", "medium", "high", "xhigh", "max"), "output_config.effort: unknown level")
        need(facts.effort, "This model does not support the effort parameter.")
    if (wanted := output.get("format")) is not None:
        need(facts.structured_output, "output_config.format: not supported for this model")
        need(wanted.get("type") == "json_schema", "output_config.format.type: Input should be 'json_schema'")
        need(isinstance(wanted.get("schema"), dict), "output_config.format.schema: Field required")


def _schemas(body: Wire, facts: Facts) -> None:
    """Of structured output and strict tools."""
    problem = objection(body)
    need(problem is None, problem or "")


def _system(body: Wire, facts: Facts) -> None:
    for number, block in enumerate(blocks_of(body.get("system") or [])):
        need(block.get("type") == "text", f"system.{number}.type: Input should be 'text'")
        need(bool(block.get("text")), "system: text content blocks must be non-empty")


def _markers(body: Wire, facts: Facts) -> None:
    found, shorter = (0 if body.get("cache_control") is None else 1), False
    for place, block in _markable(body):
        if block.get("cache_control") is None:
            continue
        found += 1
        kind = block.get("type")
        need(
            kind not in ("thinking", "redacted_thinking"),
            f"{place}.{kind}.cache_control: Extra inputs are not permitted",
        )
        need(kind != "text" or bool(block.get("text")), f"{place}: cache_control cannot be set for empty text blocks")
        need(
            block["cache_control"].get("type") == "ephemeral",
            f"{place}.cache_control.type: Input should be 'ephemeral'",
        )
        life = block["cache_control"].get("ttl") or "5m"
        need(life in ("5m", "1h"), f"{place}.cache_control.ephemeral.ttl: Input should be '5m' or '1h'")
        need(
            life == "5m" or not shorter,
            f"{place}.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' cache_control "
            f"block. Note that blocks are processed in the following order: `tools`, `system`, `messages`.",
        )
        shorter = shorter or life == "5m"
    need(found <= _MARKERS, f"A maximum of 4 blocks with cache_control may be provided. Found {found}.")


def _markable(body: Wire) -> Iterator[tuple[str, Wire]]:
    yield from ((f"tools.{number}", tool) for number, tool in enumerate(body.get("tools") or []))
    yield from ((f"system.{number}", block) for number, block in enumerate(blocks_of(body.get("system") or [])))
    for number, message in enumerate(body["messages"]):
        for at, block in enumerate(blocks_of(message.get("content") or [])):
            if isinstance(block, dict):
                yield f"messages.{number}.content.{at}", block
