"""The stored form: definitions and limits as they are stored, so that the release before can still read them.

Code of schema 8 reads them strictly: one field that it does not know, and it can do nothing with any of them. So a
field that is younger than that is written only where it says something. A program that uses nothing new writes what the
release before wrote, to the letter, and makes no new version of its agents.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

# The fields that code of schema 8 writes, all of them always. Do not add to these lists.
OLD_FIELDS = {
    "AgentSpec": (
        *("name", "model", "instructions", "max_tokens", "options", "tools", "agents", "server_tools", "output"),
        *("limits", "attempts", "queue", "priority", "requires", "caching", "compaction", "tool_search", "fallbacks"),
        *("on_max_tokens", "continuations"),
    ),
    "ToolSpec": (
        *("name", "description", "schema", "effect", "queue", "requires", "timeout_us", "attempts", "priority"),
        *("strict", "defer", "lane", "concurrency", "approve", "person", "within_us", "otherwise", "review"),
    ),
    "Delegate": ("name", "description", "agent", "queue", "priority", "requires"),
    "Limits": ("turns", "depth", "tokens", "cost", "time", "on_limit", "within"),
}


def as_stored(record: Any) -> dict[str, Any]:
    """A definition, or a part of one, as it is stored."""
    old = OLD_FIELDS[type(record).__name__]
    values = {each.name: (each, getattr(record, each.name)) for each in fields(record)}
    return {name: _value(value) for name, (each, value) in values.items() if name in old or value != _default_of(each)}


def _value(value: Any) -> Any:
    if is_dataclass(value):
        return as_stored(value)
    return [_value(each) for each in value] if isinstance(value, tuple) else value


def _default_of(each: Field[Any]) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()
