"""Answers: what a route returns becomes JSON in the form that `--json` prints, and openapi.json says its type."""

from __future__ import annotations

import functools
import json
from typing import Any, get_args, get_origin, get_type_hints

from starlette.responses import Response

from holdfast.http.api.paging import PageOf
from holdfast.http.api.routes import Endpoint, Handler
from holdfast.http.api.seen import Seen
from holdfast.redaction import REDACTED, Redactor
from holdfast.values import Page, as_json

# What a program or a model was given, and what it gave: a viewer sees it without its secrets.
ARGUMENTS = frozenset(
    (
        *("payload", "input", "variables", "metadata", "result", "output", "data", "error", "blocks"),
        *("context", "message", "options", "progress", "reason", "refusal", "sentence", "text", "why"),
    )
)
_WRITTEN = "input_delta"  # a piece of arguments: what is secret in it may begin in the piece before


def answering(endpoint: Endpoint) -> Handler:
    """The route as the framework calls it."""

    @functools.wraps(endpoint.function)
    async def answer(*args: Any, **options: Any) -> Response:
        value = await endpoint.function(*args, **options)
        if isinstance(value, Response):
            return value
        told = told_to(options.get("seen"), value)
        return json_response(told, 201 if endpoint.creates else 200)

    return answer


def json_response(told: object, status: int = 200) -> Response:
    text = json.dumps(told, ensure_ascii=False, separators=(",", ":"), default=str)
    return Response(text.encode(errors="replace"), status, {"cache-control": "no-store"}, "application/json")


def told_to(seen: Seen | None, value: object) -> Any:
    """A value as JSON, as who asks may see it."""
    told = as_json(value)
    return without_secrets(told) if seen is not None and seen.principal.role == "viewer" else told


def without_secrets(told: Any) -> Any:
    if isinstance(told, list):
        return [without_secrets(each) for each in told]
    if isinstance(told, dict):
        redactor = Redactor()
        if told.get("type") == _WRITTEN:
            told = {**told, "text": REDACTED}
        return {
            name: redactor.value(value, "arguments") if name in ARGUMENTS else without_secrets(value)
            for name, value in told.items()
        }
    return told


def success_of(endpoint: Endpoint) -> int:
    """The status of an answer that is no problem."""
    if endpoint.method == "DELETE" and model_of(endpoint) is None:
        return 204
    return 201 if endpoint.creates else 200


def other_answers(endpoint: Endpoint) -> dict[int | str, dict[str, Any]]:
    """For openapi.json: what else may come that is no problem, and in which form."""
    last = endpoint.path.rpartition("/")[2]
    if last in ("stream", "events") and model_of(endpoint) is None:
        frames = {"description": "Server-sent events.", "content": {"text/event-stream": {}}}
        return {200: frames, 204: {"description": "There is nothing after what was seen last."}}
    if last == "export":
        return {200: {"description": "A SQLite file.", "content": {"application/vnd.sqlite3": {}}}}
    if last == "result":
        return {202: {"description": "The run has not ended yet.", "content": {"application/json": {}}}}
    if endpoint.creates:
        again = "The answer to the first request with this Idempotency-Key."
        return {200: {"description": again, "content": {"application/json": {}}}}
    return {}


def model_of(endpoint: Endpoint) -> Any:
    """The type of the answer, for openapi.json."""
    declared = get_type_hints(endpoint.function, include_extras=True).get("return")
    if get_origin(declared) is Page:
        (item,) = get_args(declared)
        return PageOf.__class_getitem__(item)
    return None if declared is Response else declared
