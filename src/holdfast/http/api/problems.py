"""Problems as responses: application/problem+json, with the status that fits the error."""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import (
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
from holdfast.http.security.denials import Denied
from holdfast.models.failures import ModelFailure
from holdfast.problems import members, told
from holdfast.shown_text import shown

log = logging.getLogger("holdfast.http")

_RETRY_AFTER = 5
_FIX = "Correct the request: the same request gets the same answer."


def status_of(problem: HoldfastError) -> int:
    match problem:
        case Denied():
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
    status, said = status_of(problem), told(problem)
    headers: dict[str, str] = {}
    if isinstance(problem, Denied):
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


async def on_refusal(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, HoldfastError)
    return response_to(problem)


async def on_bad_request(_: Request, problem: Exception) -> Response:
    """What does not fit the types of a route: each place, and what is wrong there."""
    assert isinstance(problem, RequestValidationError)
    places = [(".".join(map(str, each["loc"])), each["msg"]) for each in problem.errors()[:5]]
    detail = "; ".join(f"{place}: {shown(said)}" for place, said in places)
    return problem_response(422, members("UsageError", detail, "never", _FIX))


async def on_http(_: Request, problem: Exception) -> Response:
    """What the router says: there is no such path, or not by this method."""
    assert isinstance(problem, HTTPException)
    kind = {404: "NotFound", 405: "MethodNotAllowed"}.get(problem.status_code, "UsageError")
    said = members(kind, str(problem.detail), "never", "Look at openapi.json for what there is.")
    return problem_response(problem.status_code, said, dict(problem.headers or {}))


async def on_fault(request: Request, problem: Exception) -> Response:
    """A fault of ours: logged here, and told without its text."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=problem)
    said = members("Fault", "this failed for a reason that is ours.", "later", "The log of the server says why.")
    return problem_response(500, said)


def _encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
