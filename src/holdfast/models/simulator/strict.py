"""What the provider refuses, refused here with its words: a request that passes would have been accepted there.

`check_request` raises `Refused` for the first thing that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from holdfast.models.facts import Facts, known
from holdfast.models.protocol import Wire
from holdfast.models.request_view import blocks_of, forged
from holdfast.models.schemas import objection
from holdfast.models.simulator.http import RequestRefused, need
from holdfast.models.wire import count_tokens

# What a set of tools may be, as strict as the provider: known server tools, and tools that wait to be found.


_SERVER_TOOLS = {
    "advisor": ("20260301",),
    "bash": ("20241022", "20250124"),
    "browser_toolset": ("20260801",),
    "code_execution": ("20250522", "20250825", "20260120", "20260521"),
    "computer": ("20241022", "20250124", "20251124"),
    "computer_toolset": ("20260801",),
    "memory": ("20250818",),
    "text_editor": ("20241022", "20250124", "20250429", "20250728"),
    "tool_search_tool_bm25": ("20251119",),
    "tool_search_tool_regex": ("20251119",),
    "web_fetch": ("20250910", "20260209", "20260309", "20260318"),
    "web_search": ("20250305", "20260209", "20260318"),
}
_TYPES = {f"{kind}_{version}": kind for kind, versions in _SERVER_TOOLS.items() for version in versions} | {
    "tool_search_tool_bm25": "tool_search_tool_bm25",
    "tool_search_tool_regex": "tool_search_tool_regex",
    "mcp_toolset": "mcp_toolset",
}
_NAMED_OTHERWISE = frozenset(("text_editor", "browser_toolset", "computer_toolset", "mcp_toolset"))


def check_tool_set(body: Wire) -> None:
    tools = body.get("tools") or []
    for number, tool in enumerate(tools):
        _check_type(number, tool)
        _check_deferred(number, tool)
    need(
        not tools or not all(tool.get("defer_loading") for tool in tools),
        "At least one tool must have defer_loading=false.",
    )


def check_tool_references(body: Wire, _facts: Facts) -> None:
    """Of a conversation that is well-formed: what a result refers to is there."""
    names = {tool.get("name") for tool in body.get("tools") or []}
    for place, name in _references(body):
        need(name in names, f"{place}: Tool reference '{name}' not found in available tools")


def _check_type(number: int, tool: Wire) -> None:
    kind = tool.get("type") or "custom"
    if kind == "custom":
        return
    need(
        kind in _TYPES, f"tools.{number}: Input tag '{kind}' found using 'type' does not match any of the expected tags"
    )
    name = _TYPES[kind]
    need(
        name in _NAMED_OTHERWISE or tool.get("name") == name,
        f"tools.{number}.{kind}.name: Input should be '{name}'",
    )


def _check_deferred(number: int, tool: Wire) -> None:
    deferred = tool.get("defer_loading")
    need(
        deferred is None or isinstance(deferred, bool),
        f"tools.{number}.{tool.get('type') or 'custom'}.defer_loading: Input should be a valid boolean",
    )
    need(
        not deferred or tool.get("cache_control") is None,
        f"tools.{number}: Tool '{tool.get('name')}' cannot have both defer_loading=true and cache_control set. Tools "
        f"with defer_loading cannot use prompt caching.",
    )


def _references(body: Wire) -> Iterator[tuple[str, Any]]:
    """Every tool that a result names, of a search of the provider's or of a tool that searches."""
    for number, message in enumerate(body["messages"]):
        for at, block in enumerate(blocks_of(message["content"])):
            content: Any = block.get("content")
            if block["type"] == "tool_search_tool_result" and isinstance(content, dict):
                content = content.get("tool_references")
            for each in content if isinstance(content, list) else []:
                if isinstance(each, dict) and each.get("type") == "tool_reference":
                    yield f"messages.{number}.content.{at}", each.get("tool_name")


# Pictures and documents in a request, and those that the provider refuses, in its words.


_PICTURES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_LARGEST = 5 * 1024 * 1024


def media_in(place: str, content: Any) -> Iterator[tuple[str, str]]:
    """Where there are pictures and documents, those in results of tools included, and which."""
    for at, kind, _ in _media(place, content):
        yield at, kind


def check_media(body: Wire, facts: Facts) -> None:
    for number, message in enumerate(body["messages"]):
        for place, kind, block in _media(f"messages.{number}.content", message["content"]):
            source = block.get("source")
            need(isinstance(source, dict), f"{place}.{kind}.source: Field required")
            if isinstance(source, dict) and source.get("type") == "base64":
                _check(f"{place}.{kind}.source.base64", kind, source)


def _media(place: str, content: Any) -> Iterator[tuple[str, str, Wire]]:
    for number, block in enumerate(content if isinstance(content, list) else ()):
        kind = block.get("type")
        if kind in ("image", "document"):
            yield f"{place}.{number}", kind, block
        elif kind == "tool_result":
            yield from _media(f"{place}.{number}.tool_result.content", block.get("content"))


def _check(place: str, kind: str, source: Wire) -> None:
    known = _PICTURES if kind == "image" else ("application/pdf",)
    wanted = " or ".join(f"'{name}'" for name in known)
    need(source.get("media_type") in known, f"{place}.media_type: Input should be {wanted}")
    data = source.get("data")
    need(isinstance(data, str) and bool(data), f"{place}.data: Field required")
    size = len(str(data)) * 3 // 4
    need(
        kind != "image" or size <= _LARGEST,
        f"{place}: image exceeds 5 MB maximum: {size} bytes > {_LARGEST} bytes",
    )


# The shape of a conversation, as strict as the provider: who speaks, what a block is, which result answers what.


_ID = re.compile(r"[a-zA-Z0-9_-]+")
_ASSISTANT_ONLY = frozenset(("tool_use", "server_tool_use", "tool_search_tool_result", "thinking", "redacted_thinking"))
_USER_ONLY = frozenset(("tool_result", "image"))


def check_conversation(body: Wire, facts: Facts) -> None:
    messages = body["messages"]
    need(isinstance(messages, list), "messages: Input should be a valid list")
    need(bool(messages), "messages: at least one message is required")
    for number, message in enumerate(messages):
        _check_message(number, message)
    need(messages[0]["role"] == "user", 'messages: first message must use the "user" role')
    turns = _turns(messages)
    _check_pairs(turns)
    _check_server_pairs(turns)
    if (body.get("thinking") or {}).get("type") == "enabled":
        _check_thinks_first(turns)
    if turns[-1][1] == "assistant":
        _check_end(turns[-1][2], facts)


def _check_message(number: int, message: Any) -> None:
    place = f"messages.{number}"
    need(isinstance(message, dict), f"{place}: Input should be a valid dictionary")
    for name in message:
        need(name in ("role", "content"), f"{place}.{name}: Extra inputs are not permitted")
    role: Any = message.get("role")
    content: Any = message.get("content")
    need(role in ("user", "assistant"), f"{place}.role: Input should be 'user' or 'assistant'")
    need(isinstance(content, str | list), f"{place}.content: Input should be a valid string or list")
    need(bool(content), f"{place}: a message of role {role} must have non-empty content")
    blocks: list[Any] = list(blocks_of(content))
    for at, block in enumerate(blocks):
        need(
            isinstance(block, dict) and isinstance(block.get("type"), str), f"{place}.content.{at}.type: Field required"
        )
        _check_block(f"{place}.content.{at}", role, block)


def _check_block(place: str, role: str, block: Wire) -> None:
    kind = block["type"]
    if kind in _ASSISTANT_ONLY | _USER_ONLY:
        right = "user" if kind in _USER_ONLY else "assistant"
        need(role == right, f"{place}: `{kind}` blocks can only be in `{right}` messages")
    match kind:
        case "text":
            text = block.get("text")
            need(isinstance(text, str), f"{place}.text.text: Field required")
            need(bool(text), "messages: text content blocks must be non-empty")
            need(bool(str(text).strip()), "messages: text content blocks must contain non-whitespace text")
        case "tool_use":
            need(isinstance(block.get("input"), dict), f"{place}.tool_use.input: Input should be a valid dictionary")
            need(bool(block.get("name")), f"{place}.tool_use.name: Field required")
            pattern = f"{place}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
            need(bool(_ID.fullmatch(str(block.get("id", "")))), pattern)
        case "tool_result":
            need(bool(block.get("tool_use_id")), f"{place}.tool_result.tool_use_id: Field required")
        case "thinking":
            need("thinking" in block and "signature" in block, f"{place}.thinking.signature: Field required")


def _turns(messages: list[Wire]) -> list[tuple[int, str, list[Wire]]]:
    """Messages of one role in a row are one turn: (number of its first message, role, blocks)."""
    turns: list[tuple[int, str, list[Wire]]] = []
    for number, message in enumerate(messages):
        if turns and turns[-1][1] == message["role"]:
            turns[-1][2].extend(blocks_of(message["content"]))
        else:
            turns.append((number, message["role"], blocks_of(message["content"])))
    return turns


def _check_pairs(turns: list[tuple[int, str, list[Wire]]]) -> None:
    seen: set[str] = set()
    open_uses: list[str] = []
    asked = 0
    for number, role, blocks in turns:
        if role == "user":
            _check_results(number, blocks, open_uses, asked)
            open_uses = []
            continue
        asked = number
        for at, block in enumerate(blocks):
            if block["type"] == "tool_use":
                need(block["id"] not in seen, f"messages.{number}.content.{at}: `tool_use` ids must be unique")
                seen.add(block["id"])
                open_uses.append(block["id"])
    if open_uses:
        raise RequestRefused(_unanswered(asked, open_uses))


def _check_server_pairs(turns: list[tuple[int, str, list[Wire]]]) -> None:
    """A result of the provider's own tools follows its use. A use may stay open only while nothing but results of
    other tools follows it."""
    open_uses: dict[str, tuple[int, str]] = {}
    answers = [(number, blocks) for number, role, blocks in turns if role == "assistant"]
    for number, blocks in answers:
        for at, block in enumerate(blocks):
            if block["type"] == "server_tool_use":
                open_uses[block["id"]] = number, str(block.get("name"))
            elif block["type"].endswith("_tool_result"):
                id = str(block.get("tool_use_id"))
                need(
                    open_uses.pop(id, None) is not None,
                    f"messages.{number}.content.{at}: unexpected `tool_use_id` found in `{block['type']}` blocks: "
                    f"{id}. Each `{block['type']}` block must have a corresponding `server_tool_use` block before it.",
                )
    said = turns[-1][1] == "user" and any(block["type"] != "tool_result" for block in turns[-1][2])
    for id, (number, name) in open_uses.items():
        need(
            number == answers[-1][0] and not said,
            f"messages.{number}: `{name}` tool use with id `{id}` was found without a corresponding "
            f"`{name}_tool_result` block",
        )


def _check_results(number: int, blocks: list[Wire], uses: list[str], asked: int) -> None:
    answered: set[str] = set()
    others = False
    for at, block in enumerate(blocks):
        if block["type"] != "tool_result":
            others = True
            continue
        id = block["tool_use_id"]
        need(
            id in uses,
            f"messages.{number}.content.{at}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each "
            f"`tool_result` block must have a corresponding `tool_use` block in the previous message.",
        )
        need(
            id not in answered,
            f"messages.{number}.content.{at}: each tool_use must have a single result. Found multiple `tool_result` "
            f"blocks with id: {id}",
        )
        need(not others, _unanswered(asked, [id]) + " `tool_result` blocks must come first in the message.")
        answered.add(id)
    if missing := [id for id in uses if id not in answered]:
        raise RequestRefused(_unanswered(asked, missing))


def _unanswered(number: int, ids: list[str]) -> str:
    return (
        f"messages.{number}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(ids)}. Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    )


def _check_thinks_first(turns: list[tuple[int, str, list[Wire]]]) -> None:
    """In an open tool loop, with thinking enabled, the turn that asked for the tools begins with its thinking."""
    if len(turns) < 2 or turns[-1][2][0]["type"] != "tool_result":
        return
    number, _, blocks = turns[-2]
    need(
        blocks[0]["type"] in ("thinking", "redacted_thinking"),
        f"messages.{number}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
        f"`{blocks[0]['type']}`. When `thinking` is enabled, a final `assistant` message must start with a thinking "
        f"block.",
    )


def _check_end(blocks: list[Wire], facts: Facts) -> None:
    """An assistant turn at the end is a prefill, unless the provider itself paused in it."""
    last = blocks[-1]
    if last["type"] == "server_tool_use" or last["type"].endswith("_tool_result"):
        return
    need(
        facts.prefill,
        "This model does not support assistant message prefill. The conversation must end with a user message.",
    )
    need(
        last["type"] != "text" or last["text"] == last["text"].rstrip(),
        "messages: final assistant content cannot end with trailing whitespace",
    )


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
