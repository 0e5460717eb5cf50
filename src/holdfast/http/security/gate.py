"""The gate: every request passes it before a route is called. It finds out who asks, and denies what no rule allows.

What only reads is done over connections that change nothing. A changing request is written into the audit before it is
done and again with its outcome. One that creates something and names a key is done once.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qs

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from holdfast.access.principals import Principal
from holdfast.app import Holdfast, core_of
from holdfast.errors import BadPayload, HoldfastError, Unavailable, UsageError
from holdfast.facades.universal_agent.in_process import InProcessGateway
from holdfast.http.api.problems import response_to
from holdfast.http.api.seen import PrincipalScope
from holdfast.http.live.live import Live
from holdfast.http.live.responses import WatchedStream
from holdfast.http.security.checks import SAFE, RateCap, absent, forbidden, is_forged, too_large, unknown
from holdfast.http.security.roles import Rule
from holdfast.kernel import codec
from holdfast.kernel.database import READS, Bounds, bound
from holdfast.observe import without_audit

# Texts of a request that neither database can store: a NUL character, half of a surrogate pair.


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


# The reason that somebody gives for a change: a form, a body or an address says it, and the audit keeps it.


LONGEST = 2_000
_LARGEST = 64 * 1024  # bytes of a body that may have one: a reason is typed by a person


def reason_of(request: Request, body: bytes) -> str:
    """Why this is asked for; nothing if nobody says so."""
    given = _in_body(is_form(request), body) or request.query_params.get("reason", "")
    return given.strip()[:LONGEST]


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


# Whether the database answers: asked at most once a second, however many strangers want to know.


log = logging.getLogger("holdfast.http")

_FRESH = 1.0  # seconds


class Readiness:
    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._asking = asyncio.Lock()
        self._ready = False
        self._asked = float("-inf")

    async def is_ready(self) -> bool:
        clock = core_of(self._hf).ports.clock
        async with self._asking:
            if clock.monotonic() - self._asked >= _FRESH:
                self._ready = await self._ask()
                self._asked = clock.monotonic()
            return self._ready

    async def _ask(self) -> bool:
        try:
            with bound(READS):
                await self._hf.queues.list(limit=1)
        except Unavailable as problem:
            core_of(self._hf).ports.try_again(problem)
            return False
        except HoldfastError as problem:
            log.warning("not ready: %s", problem)
            return False
        return True


Who = Callable[[Any], Principal | Awaitable[Principal | None] | None]  # given a request, or a WebSocket
Answering = Callable[[Request], Awaitable[Response]]


class KillableProcesses(Protocol):
    """Processes that a page may kill: a demo has some, which it started itself."""

    def pids(self) -> Collection[int]: ...

    def kill(self, pid: int) -> None:
        """Kill it with -9; `NotFound` if it is none of them."""


class RuledRoute(Protocol):
    """A route or a page: the name of its rule, and whether it creates something."""

    @property
    def name(self) -> str: ...

    @property
    def creates(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WebOptions:
    """How an app is served. `tenant` and `metadata` bind everybody who comes here.

    `columns` and `filters` are keys of metadata that lists show in a column of their own, and choose by.
    """

    who: Who | None = None
    tenant: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    read_only: bool = False
    hosts: tuple[str, ...] | None = None
    gateway: InProcessGateway | None = None
    columns: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    doomed: KillableProcesses | None = None


class Gate:
    def __init__(self, hf: Holdfast, options: WebOptions) -> None:
        self.hf = hf
        self.options = options
        self.live = Live(hf)
        self.readiness = Readiness(hf)
        clock = core_of(hf).ports.clock
        self.rate = RateCap(clock, burst=200, a_second=50, what="requests")
        self.deliveries = RateCap(clock, burst=200, a_second=50, what="deliveries")
        self.logins = RateCap(clock, burst=10, a_second=1 / 6, what="logins")

    async def pass_through(
        self, request: Request, endpoint: RuledRoute, rule: Rule | None, answer: Answering
    ) -> Response:
        """The answer of a route, or why it is not given."""
        principal = await self.admit(request, rule)
        if request.method not in SAFE:
            self.check_change(request)
        request.state.seen = seen = self.seen(principal)
        request.state.live = self.live
        request.state.gateway = self.options.gateway
        request.state.doomed = self.options.doomed
        request.state.columns = self.options.columns, self.options.filters
        if request.method in SAFE:
            check_texts(request, b"")
            return await within(Bounds(reads=True, tenant=seen.tenant), answer)(request)
        bounds = None if seen.tenant is None else Bounds(reads=False, tenant=seen.tenant)
        return await self._changed(request, principal, endpoint, within(bounds, answer))

    async def admit(self, connection: HTTPConnection, rule: Rule | None) -> Principal:
        """Who asks, if they may; `Denied` otherwise."""
        principal = await self.known(connection)
        self.check(principal, rule)
        return principal

    async def known(self, connection: HTTPConnection) -> Principal:
        """Who asks; `Denied` for a stranger. Both may ask so often."""
        watched = await self._watched(connection)
        if watched is None:
            self.logins.take(address_of(connection))
            raise unknown()
        self.rate.take(watched.name)
        connection.state.watched = watched  # by what a stream of this connection is held open
        return watched.principal

    def check(self, principal: Principal, rule: Rule | None) -> None:
        """`Denied` unless the table lets this principal do this."""
        if rule is None:
            raise forbidden("no rule allows this route.", "It is not served.")
        if rule.fleet and (self.tenant_of(principal) is not None or self.options.metadata):
            raise absent()
        if not rule.sessions and self.options.metadata:
            raise absent()
        if not principal.scopes & {rule.scope, "api" if rule.scope == "scale" else rule.scope}:
            raise forbidden(f"this needs the scope {rule.scope}.", "Use a token that has it.")
        if not principal.may(rule.role):
            raise forbidden(
                f"this needs the role {rule.role}, and {principal.name} is {principal.role}.",
                "Ask an admin for a token.",
            )

    def check_change(self, connection: HTTPConnection) -> None:
        """`Denied` for a change that nobody may make here, or that another site may have caused."""
        if self.options.read_only:
            raise forbidden("this is read-only.", "Use another server to change something.")
        self.check_origin(connection)

    def check_origin(self, connection: HTTPConnection) -> None:
        """`Denied` for what another site may have made a browser send."""
        if is_forged(connection.headers, bearer=bearer_of(connection) is not None):
            raise forbidden(
                "this request may come from another site.",
                "Send it from this origin, or with a token and without cookies.",
            )

    def tenant_of(self, principal: Principal) -> str | None:
        return principal.tenant if self.options.tenant is None else self.options.tenant

    def seen(self, principal: Principal) -> PrincipalScope:
        fixed = self.options.tenant
        if fixed is not None and principal.tenant not in (None, fixed):
            raise absent()
        return PrincipalScope(self.hf, principal, self.tenant_of(principal), self.options.metadata)

    async def _watched(self, connection: HTTPConnection) -> WatchedStream | None:
        """Who asks, and how that is known: by a token, by a login, or because the host app says so."""
        secret = bearer_of(connection)
        if secret is not None:
            shown = await self.hf.access.tokens.principal(secret)
            return None if shown is None else WatchedStream(shown, shown.token)
        cookie = connection.cookies.get(cookie_name(connection))
        if cookie is not None and (found := await self.hf.access.logins.principal(cookie)) is not None:
            return WatchedStream(found, found.token, cookie)
        said = await self._of_host(connection)
        return None if said is None else WatchedStream(said, again=lambda: self._of_host(connection))

    async def _of_host(self, connection: HTTPConnection) -> Principal | None:
        if self.options.who is None:
            return None
        said = self.options.who(connection)
        return await said if inspect.isawaitable(said) else said

    async def _changed(self, request: Request, by: Principal, endpoint: RuledRoute, answer: Answering) -> Response:
        body = await request.body()
        if not is_form(request):
            _check_json(body)
        check_texts(request, body)
        digest = hashlib.sha256(body).hexdigest()
        key = request.headers.get("idempotency-key") if endpoint.creates else None
        asked = f"{request.method} {request.url.path}?{request.url.query}"
        owner = self._owner(by)
        if key is not None:
            if not 1 <= len(key) <= 255 or not key.isprintable():
                raise UsageError("an Idempotency-Key has 1 to 255 printable characters.")
            whole = hashlib.sha256(f"{asked}\n{digest}".encode()).hexdigest()
            before = await self.hf.access.requests.take(owner, key, whole)
            if before is not None:
                return Response(before.answer, 200, {"idempotency-replayed": "true"}, "application/json")
        reason = reason_of(request, body)
        detail = {"sha256": digest, "bytes": len(body), **({"reason": reason} if reason else {})}
        response = await self._recorded(request, by, endpoint, answer, detail)
        if key is not None and response.status_code < 300:
            text = bytes(response.body).decode()
            await self.hf.access.requests.answered(owner, key, response.status_code, text)
        elif key is not None:
            await self.hf.access.requests.free(owner, key)
        return response

    def _owner(self, by: Principal) -> str:
        """Whose keys these are: who sees another part of a tenant is another."""
        tenant = self.tenant_of(by) or ""
        if not self.options.metadata:
            return tenant
        pinned = json.dumps([tenant, dict(self.options.metadata)], sort_keys=True, default=str)
        return f"sha256:{hashlib.sha256(pinned.encode(errors='replace')).hexdigest()}"

    async def _recorded(
        self, request: Request, by: Principal, endpoint: RuledRoute, answer: Answering, detail: Mapping[str, Any]
    ) -> Response:
        """The answer, with what was to be done in the audit before it, and what came of it after."""
        audit, path = self.hf.access.audit, request.url.path
        intent = await audit.add(by, endpoint.name, path, phase="intent", detail=detail)
        status = 500
        try:
            with without_audit():
                response = await answer(request)
            status = response.status_code
        except HoldfastError as problem:
            response = response_to(problem)
            status = response.status_code
        finally:
            await audit.add(by, endpoint.name, path, phase="outcome", about=intent, status=status)
        return response


def _check_json(body: bytes) -> None:
    if codec.is_wide(body):
        raise too_large(
            "the body has too many values.", f"Send at most {codec.MOST_VALUES:,} keys, items and values at once."
        )
    if not codec.is_utf8(body):  # else a route would read what was not counted here
        raise BadPayload("the body is not text in UTF-8. Send JSON as UTF-8.")


def gate_of(request: Request) -> Gate:
    """The gate of the app that was asked: routes are shared by all apps of a process."""
    gate: Gate = request.app.state.gate
    return gate


def within(bounds: Bounds | None, answer: Answering) -> Answering:
    """The same route, which keeps within bounds."""

    async def answered(request: Request) -> Response:
        with bound(bounds):
            return await answer(request)

    return answered


def bearer_of(connection: HTTPConnection) -> str | None:
    kind, _, secret = connection.headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" and secret.strip() else None


def address_of(connection: HTTPConnection) -> str:
    return connection.client.host if connection.client is not None else "somewhere"


def cookie_name(connection: HTTPConnection) -> str:
    """A `__Host-` cookie is for a whole host, so its name says under which path this app is mounted."""
    mount = str(connection.scope.get("root_path", ""))
    return f"__Host-holdfast-{hashlib.sha256(mount.encode()).hexdigest()[:8]}"
