"""What is known of each model, as data: `facts.json` is shipped, and a program may override any of it.

A name is known as written, by an alias, or with the date of a snapshot after it. Nothing is guessed from a name that
merely looks similar: a new model may take other options and cost another price. A model that is not listed can still
be used, with facts that hold for every model; only its price is unknown.
"""

from __future__ import annotations

import functools
import json
import logging
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib import resources
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from holdfast.errors import UsageError

# Places: where a provider is, apart from the credentials that its URL may hold.
#
# What is shown, stored or logged of a URL is its place. User info and query go to the provider and nowhere else.


class ProviderPlace(NamedTuple):
    """A URL in two halves: the one to show, and the credentials."""

    url: str  # without user info, query and fragment
    user: str = ""  # user info as the URL spells it
    query: str = ""

    @property
    def secret(self) -> str:
        """Which account pays, as far as the URL says so; "": it says nothing."""
        return f"{self.user}\n{self.query}" if self.user or self.query else ""

    @property
    def headers(self) -> Mapping[str, str]:
        """What says to the provider who asks, in place of user info in a URL, which others log."""
        if not self.user:
            return {}
        name, _, password = self.user.partition(":")
        pair = f"{unquote(name)}:{unquote(password)}"
        return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}

    @property
    def parameters(self) -> Mapping[str, str]:
        return dict(parse_qsl(self.query, keep_blank_values=True))


def place_of(url: str) -> ProviderPlace:
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    return ProviderPlace(urlunsplit((parts.scheme, host, parts.path, "", "")), user if at else "", parts.query)


class WithoutQueries(logging.Filter):
    """Keeps the query of a URL out of what an HTTP client logs of its requests."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_shown, record.args))
        return True


def _shown(value: object) -> object:
    text = str(value)
    return place_of(text).url if text.startswith(("http://", "https://")) else value


log = logging.getLogger("holdfast.models")

SCRIPTED = "scripted"
_SNAPSHOT = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2}|latest|default)$")
_SAMPLING = ("temperature", "top_p", "top_k")
_LEAST_WINDOW, _LEAST_OUTPUT = 200_000, 64_000  # of any model in the table
Overrides = Mapping[str, Mapping[str, Any]]
"""Model name -> the facts to change; for a name that is unknown, all facts that have no default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One model: its limits, and the options it accepts."""

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
    least_cached: int = 1_024
    """Tokens: a shorter prefix is not cached, though it be marked."""
    lifecycle: Literal["active", "deprecated", "retired"] = "active"
    retires: str | None = None
    aliases: tuple[str, ...] = ()
    source: str = ""
    listed: bool = True
    """False: nothing is known of it. What it takes is left to the provider, and refused by nobody here."""


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
    """What is known about a model. If it is not listed, this is what holds for every model; the log says so once."""
    found = known(model, overrides)
    return _unlisted(model) if found is None else found


def known(model: str, overrides: Overrides | None = None) -> Facts | None:
    """What the table and the overrides say of a model; None where neither knows it."""
    table = _known()
    found = table.get(model) or table.get(family(model))
    if found is None and model.startswith(f"{SCRIPTED}:"):
        found = table[SCRIPTED]
    changes = (overrides or {}).get(model) or (overrides or {}).get(found.name if found else "")
    if found is not None:
        return replace(found, **_typed(changes)) if changes else found
    return _made({"name": model}, changes) if changes else None


def family(model: str) -> str:
    """The name without the date of a snapshot."""
    return _SNAPSHOT.sub("", model)


@functools.lru_cache(maxsize=1_000)  # so each name is warned of once
def _unlisted(model: str) -> Facts:
    log.warning(
        "model %r is not among the models that are known here: check its name. It is used as one with a window of "
        "%d tokens that writes up to %d; what it costs is not known before hf.budgets.prices says so.",
        model,
        _LEAST_WINDOW,
        _LEAST_OUTPUT,
    )
    return Facts(
        name=model,
        window=_LEAST_WINDOW,
        max_output=_LEAST_OUTPUT,
        thinking_types=(),
        strict_tools=False,
        batch=False,
        listed=False,
    )


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
    if not facts.listed:
        return
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
