"""The reason that somebody gives for a change: a form, a body or an address says it, and the audit keeps it."""

from __future__ import annotations

import json
from urllib.parse import parse_qs

from starlette.requests import Request

from holdfast.http.security.texts import is_form

LONGEST = 2_000
_LARGEST = 64 * 1024  # bytes of a body that may have one: a reason is typed by a person


def reason_of(request: Request, body: bytes) -> str:
    """Why this is asked for; nothing if nobody says so."""
    told = _in_body(is_form(request), body) or request.query_params.get("reason", "")
    return told.strip()[:LONGEST]


def _in_body(by_form: bool, body: bytes) -> str:
    if b"reason" not in body or len(body) > _LARGEST:
        return ""
    try:
        if by_form:
            return parse_qs(body.decode())["reason"][-1]
        given = json.loads(body)
    except (ValueError, KeyError, RecursionError):
        return ""  # which the route will say
    said = given.get("reason") if isinstance(given, dict) else None
    return said if isinstance(said, str) else ""
