"""The page of routes: every route of the JSON API, who may call it, and what it does."""

from __future__ import annotations

from holdfast.http.api.routes import API, Endpoint
from holdfast.http.app import HOOK, NOUNS
from holdfast.http.gateway import STREAM
from holdfast.http.security.roles import TABLE


def routes() -> str:
    parts = [
        "# Routes",
        "",
        f"Every route of the [JSON API](../api.md), under `{API}`, and of the [gateway](../universal-agent.md),",
        "by its whole path. A role may do what the roles before it may: viewer, operator, admin. A route marked",
        "`fleet` is not there for a principal that has a tenant. Those that answer 201 take an `Idempotency-Key`.",
        "`WS` is a WebSocket.",
    ]
    for noun in NOUNS:
        parts += ["", f"## {noun.noun}", "", "| route | role | does |", "|---|---|---|"]
        parts += [_row(endpoint) for endpoint in noun.endpoints]
        if noun.noun == STREAM.noun:
            parts.append(_row(STREAM))
    parts += ["", f"## {HOOK.noun}", "", "| route | judged by | does |", "|---|---|---|"]
    parts.append(f"| `{HOOK.name}` | its signature | {HOOK.function.__doc__} |")
    return "\n".join([*parts, ""])


def _row(endpoint: Endpoint) -> str:
    rule = TABLE[endpoint.name]
    role = f"{rule.role}, fleet" if rule.fleet else rule.role
    does = " ".join((endpoint.function.__doc__ or "").split())
    return f"| `{endpoint.name}` | {role} | {does}{' Answers 201.' if endpoint.creates else ''} |"
