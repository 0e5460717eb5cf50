"""What is known of each model, as data: `facts.json` is shipped, and a program may override any of it.

A name is known as written, by an alias, or with the date of a snapshot after it. Nothing is guessed from a name that
merely looks similar: a new model may take other options and cost another price.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib import resources
from typing import Any, Literal

from holdfast.errors import UsageError

SCRIPTED = "scripted"
_SNAPSHOT = re.compile(r"[-@](\d{8}|latest)$")
_SAMPLING = ("temperature", "top_p", "top_k")
Overrides = Mapping[str, Mapping[str, Any]]
"""Model name -> the facts to change; for a name that is unknown, all facts that have no default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One model: what fits, what it takes."""

    name: str
    window: int
    max_output: int
    thinking: Literal["none", "optional", "adaptive", "always"] = "none"
    thinking_types: tuple[str, ...] = ("disabled",)
    """The values of `thinking.type` that it accepts."""
    prefill: bool = False
    forced_tool_choice: bool = True
    structured_output: bool = True
    strict_tools: bool = True
    batch: bool = True
    sampling: bool = False
    """Whether temperature, top_p and top_k are accepted."""
    effort: bool = True
    lifecycle: Literal["active", "deprecated", "retired"] = "active"
    retires: str | None = None
    aliases: tuple[str, ...] = ()
    source: str = ""


@functools.cache
def shipped() -> Mapping[str, Any]:
    """The content of `facts.json`."""
    table: Mapping[str, Any] = json.loads(resources.files("holdfast.models").joinpath("facts.json").read_text())
    return table


@functools.cache
def _known() -> Mapping[str, Facts]:
    rows = [_made({}, row) for row in shipped()["models"]]
    return {name: facts for facts in rows for name in (facts.name, *facts.aliases)}


def names() -> list[str]:
    """Every model of the shipped table, aliases aside."""
    return sorted({facts.name for facts in _known().values()})


def facts_for(model: str, overrides: Overrides | None = None) -> Facts:
    """What is known of a model; `UsageError` if nothing is."""
    known = _known()
    found = known.get(model) or known.get(_SNAPSHOT.sub("", model))
    if found is None and model.startswith(f"{SCRIPTED}:"):
        found = known[SCRIPTED]
    changes = (overrides or {}).get(model) or (overrides or {}).get(found.name if found else "")
    if found is not None:
        return replace(found, **_typed(changes)) if changes else found
    if not changes:
        raise UsageError(
            f"nothing is known of model {model!r}: check its name, or give its facts (window, max_output …) and prices."
        )
    return _made({"name": model}, changes)


def _made(given: Mapping[str, Any], row: Mapping[str, Any]) -> Facts:
    try:
        return Facts(**{**given, **_typed(row)})
    except TypeError as problem:
        raise UsageError(
            f"the facts of model {given.get('name') or row.get('name')!r} are incomplete: {problem}."
        ) from None


def _typed(row: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(row) - {each.name for each in fields(Facts)})
    if unknown:
        raise UsageError(
            f"there is no fact {unknown[0]!r}; there are {', '.join(each.name for each in fields(Facts))}."
        )
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


def check(model: str, options: Mapping[str, Any], overrides: Overrides | None = None) -> None:
    """Refuse, with the reason, what the model does not take: `UsageError` naming the option.

    `options` are those of a request, with `max_tokens` and `output_schema` if they are set.
    """
    facts = facts_for(model, overrides)
    if facts.lifecycle == "retired":
        raise UsageError(f"model {model} was retired on {facts.retires}; choose another.")
    for name, reason in _objections(facts, options):
        raise UsageError(f"model {model} does not take {name}: {reason}.")


def _objections(facts: Facts, options: Mapping[str, Any]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if not facts.sampling:
        reason = "it no longer has sampling parameters; ask for what you want in words"
        found += [(name, reason) for name in _SAMPLING if options.get(name) is not None]
    found += _about_thinking(facts, options)
    choice = (options.get("tool_choice") or {}).get("type")
    if choice in ("any", "tool") and not facts.forced_tool_choice:
        found.append((f"tool_choice {choice}", "it cannot be forced to use a tool; use auto, or structured output"))
    output = options.get("output_config") or {}
    if not facts.structured_output and (options.get("output_schema") is not None or output.get("format")):
        found.append(("output_schema", "it has no structured output"))
    if not facts.effort and (options.get("effort") or output.get("effort")):
        found.append(("effort", "it has no effort levels"))
    most = options.get("max_tokens")
    if most is not None and not 1 <= most <= facts.max_output:
        found.append((f"max_tokens {most}", f"it writes between 1 and {facts.max_output}"))
    return found


def _about_thinking(facts: Facts, options: Mapping[str, Any]) -> list[tuple[str, str]]:
    thinking = options.get("thinking")
    if not thinking:
        return []
    kind, types = thinking.get("type"), ", ".join(facts.thinking_types)
    if kind not in facts.thinking_types:
        always = "; it always thinks, effort says how much" if facts.thinking == "always" else ""
        return [(f"thinking.type {kind}", f"it takes {types}{always}")]
    if kind == "enabled" and any(options.get(name) is not None for name in _SAMPLING):
        return [("temperature, top_p or top_k with thinking", "leave out one of them")]
    return []
