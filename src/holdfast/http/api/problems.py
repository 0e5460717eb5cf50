"""Problems as responses: application/problem+json, with the status that fits the error."""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from holdfast.app import core_of
from holdfast.errors import (
    STORE_TROUBLE,
    HoldfastError,
    MissingExtra,
    NotFound,
    SchemaTooNew,
    SchemaTooOld,
    StoreRefused,
    StoreUnfit,
    Unavailable,
    UsageError,
)
from holdfast.http.security.checks import RequestDenied
from holdfast.models.failures import ModelFailure
from holdfast.text import members, problem_members, shown

log = logging.getLogger("holdfast.http")

_RETRY_AFTER = 5
_FIX = "Correct the request: the same request gets the same answer."


class Problem(BaseModel):
    """What went wrong: `error` is the class, `retry` whether to ask again, `remedy` what to do about it."""

    type: str
    title: str
    status: int
    error: str
    detail: str
    retry: str
    remedy: str


_CASES = {
    401: "Nobody is known by this token or login.",
    403: "The role or the scope does not allow it, or another site may have sent it.",
    404: "There is no such thing, or not for this principal.",
    405: "Not by this method.",
    408: "The body did not come in time.",
    409: "The store refuses it as things stand.",
    413: "The body is too large.",
    422: "The request is wrong.",
    429: "Too many requests or streams; `Retry-After` says when.",
    431: "The headers are too long.",
    500: "A fault of ours, which the log of the server has.",
    502: "A provider failed.",
    503: "The database is away, or took too long; `Retry-After` says when.",
}
_SHAPE = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": _SHAPE} for status, text in _CASES.items()
}


def status_of(problem: HoldfastError) -> int:
    match problem:
        case RequestDenied():
            return problem.status
        case NotFound():
            return 404
        case MissingExtra() | SchemaTooOld() | SchemaTooNew() | StoreUnfit() | Unavailable():
            return 503
        case UsageError():
            return 422
        case StoreRefused():
            return 409
        case ModelFailure():
            return 502
        case _:
            return 500


def response_to(problem: HoldfastError) -> Response:
    """The problem as a response."""
    status, said = status_of(problem), problem_members(problem)
    headers: dict[str, str] = {}
    if isinstance(problem, RequestDenied):
        said = members(problem.error, str(problem), "later" if problem.retry_after else "never", problem.remedy)
        if problem.retry_after is not None:
            headers["retry-after"] = str(problem.retry_after)
        if status == 401:
            headers["www-authenticate"] = 'Bearer realm="holdfast"'
    elif status == 503:
        headers["retry-after"] = str(_RETRY_AFTER)
    return problem_response(status, said, headers)


def problem_response(status: int, said: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, **said}
    return Response(
        _encoded(body), status, {"cache-control": "no-store", **(headers or {})}, "application/problem+json"
    )


async def on_refusal(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HoldfastError)
    note_outage(request, problem)
    return response_to(problem)


def note_outage(request: Request, problem: HoldfastError) -> None:
    """If the store did not answer, the log says so once: the client asks again."""
    if isinstance(problem, STORE_TROUBLE):
        core_of(request.app.state.gate.hf).ports.try_again(problem)


async def on_bad_request(_: Request, problem: Exception) -> Response:
    """What does not fit the types of a route: each place, and what is wrong there."""
    assert isinstance(problem, RequestValidationError)
    places = [(".".join(map(str, each["loc"])), each["msg"]) for each in problem.errors()[:5]]
    detail = "; ".join(f"{place}: {shown(said)}" for place, said in places)
    return problem_response(422, members("UsageError", detail, "never", _FIX))


async def on_http(request: Request, problem: Exception) -> Response:
    """What the router says: there is no such path, or not by this method."""
    assert isinstance(problem, HTTPException)
    if problem.status_code == 400:  # a body that is not text: as wrong as one that does not fit the types
        return problem_response(422, members("UsageError", str(problem.detail), "never", _FIX))
    kind = {404: "NotFound", 405: "MethodNotAllowed"}.get(problem.status_code, "UsageError")
    said = members(kind, str(problem.detail), "never", "Look at openapi.json for what there is.")
    headers = dict(problem.headers or {})
    if problem.status_code == 405:
        headers = {"allow": ", ".join(sorted(_methods(request)))}
    return problem_response(problem.status_code, said, headers)


def _methods(request: Request) -> set[str]:
    """By which methods this path is served: each has a route of its own."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    there = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return {method for route in there for method in route.methods or ()}


async def on_fault(request: Request, problem: Exception) -> Response:
    """A fault of ours: logged here, and told without its text."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=problem)
    said = members("Fault", "this failed for a reason that is ours.", "later", "The log of the server says why.")
    return problem_response(500, said)


def _encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
