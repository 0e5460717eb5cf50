"""What a set of tools may be, as strict as the provider: known server tools, and tools that wait to be found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.models.facts import Facts
from holdfast.models.protocol import Wire
from holdfast.models.simulator.refusal import need
from holdfast.models.thinking_signature import blocks_of

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
