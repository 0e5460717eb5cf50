"""The shield around the whole app, as plain ASGI: hosts, sizes, headers. It looks at no route."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from holdfast.asgi import AsgiApp, Receive, Scope, Send
from holdfast.http.api.problems import response_to
from holdfast.http.security import caps
from holdfast.http.security.browser import HEADERS, host_of
from holdfast.http.security.caps import BODY
from holdfast.http.security.caps import HEADERS as MOST_HEADERS
from holdfast.http.security.denials import Denied, too_large, too_slow

_ADDED = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


_QUICK = 4_096  # bytes of cookies: all that a browser keeps of one
_TWO_LENGTHS = "TwoLengths"


class Shield:
    def __init__(self, app: AsgiApp, hosts: Collection[str] | None) -> None:
        """`hosts` are the names under which this may be asked for; None: the app around it looks."""
        self._app = app
        self._hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        problem = self._problem(scope)
        headers = [(name, quick_cookies(value) if name == b"cookie" else value) for name, value in scope["headers"]]
        scope = {**scope, "headers": headers}
        if scope["type"] == "websocket":
            await (self._app(scope, receive, send) if problem is None else _refuse(receive, send))
            return
        if problem is not None:
            refused = response_to(problem)
            if problem.error == _TWO_LENGTHS:  # what follows may be a part of the body, or another request
                refused.headers["connection"] = "close"
            await refused(scope, receive, _with_headers(send))
            return
        await self._app(scope, _capped(receive), _with_headers(send))

    def _problem(self, scope: Scope) -> Denied | None:
        headers = scope.get("headers") or []
        if sum(len(name) + len(value) for name, value in headers) > MOST_HEADERS:
            return too_large("the headers are too long.", f"Send at most {MOST_HEADERS:,} bytes.", 431)
        named = {name: value.decode("latin-1") for name, value in headers}
        if self._hosts is not None and host_of(named.get(b"host", "")) not in self._hosts:
            return Denied(421, "UnknownHost", "this server does not answer for that host.", "Add it with --host.")
        if b"transfer-encoding" in named and b"content-length" in named:
            return Denied(
                400, _TWO_LENGTHS, "the request says twice how long its body is.", "Send one of the two headers."
            )
        length = named.get(b"content-length", "0")
        if not length.isdigit() or int(length) > BODY:
            return too_large("the body is too large.", f"Send at most {BODY:,} bytes.")
        return None


def quick_cookies(header: bytes) -> bytes:
    """The cookies without those that take long to read, for which nobody need be known.

    Python reads a value with backslashes in the square of its length; the standard of cookies has none in values.
    """
    if len(header) <= _QUICK or b"\\" not in header:
        return header
    return b";".join(each for each in header.split(b";") if b"\\" not in each)


async def _refuse(receive: Receive, send: Send) -> None:
    """A WebSocket that is not opened: its client gets 403."""
    await receive()
    await send({"type": "websocket.close", "code": 1008, "reason": ""})


def _capped(receive: Receive) -> Receive:
    """A body that says nothing of its length is counted, and one that drips is not waited for."""
    seen, whole = 0, False
    until = asyncio.get_running_loop().time() + caps.BODY_SECONDS

    async def received() -> Scope:
        nonlocal seen, whole
        try:
            async with asyncio.timeout_at(None if whole else until):
                message = await receive()
        except TimeoutError:
            raise too_slow() from None
        whole = whole or not message.get("more_body")
        seen += len(message.get("body") or b"")
        if seen > BODY:
            raise too_large("the body is too large.", f"Send at most {BODY:,} bytes.")
        return message

    return received


def _with_headers(send: Send) -> Send:
    async def sent(message: Scope) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message.get("headers") or []}
            added = [(name, value) for name, value in _ADDED if name not in given]
            message = {**message, "headers": [*(message.get("headers") or []), *added]}
        await send(message)

    return sent
