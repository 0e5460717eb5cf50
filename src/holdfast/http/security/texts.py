"""Texts of a request that neither database can store: a NUL character, half of a surrogate pair."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from starlette.requests import HTTPConnection, Request

from holdfast.errors import BadPayload
from holdfast.http.security.denials import too_large

FORM = "application/x-www-form-urlencoded"
_SUSPECT = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")


async def short_body(request: Request, most: int) -> bytes:
    """The body as it was sent, of somebody who is not known yet: `Denied` as soon as it is too long."""
    raw = bytearray()
    async for part in request.stream():
        raw += part
        if len(raw) > most:
            raise too_large("the body is too large.", f"Send at most {most:,} bytes.")
    request._body = body = bytes(raw)  # what Starlette's own `body()` keeps
    return body


def is_form(request: HTTPConnection) -> bool:
    """Whether the body is that of a form, as its type says: `…-urlencoded+json` is JSON."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == FORM


def check_texts(request: Request, body: bytes) -> None:
    """`BadPayload` for a text that cannot be stored, wherever it is."""
    values = [request.url.path, *request.query_params.values(), *map(str, request.path_params.values())]
    if _SUSPECT.search(body):
        values += _texts_in(body)
    for value in values:
        if "\x00" in value or not _is_text(value):
            raise BadPayload("a text contains a NUL character or a lone surrogate.")


def _texts_in(body: bytes) -> Iterator[str]:
    try:
        yield from _texts(json.loads(body))
    except (ValueError, RecursionError):
        return  # which the route will say


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for each in value:
                yield from _texts(each)
        case dict():
            for name, each in value.items():
                yield name
                yield from _texts(each)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
