"""The web: composes routes, gate and shield into one ASGI app. It decides nothing.

The app needs no lifespan and works under any path: what it opens, it opens at the first request.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from functools import cache
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from holdfast.access.principals import Principal
from holdfast.access.webhooks import LARGEST, BadSignature, Delivery, DeliveryOutcome, Webhook
from holdfast.app import Holdfast, core_of
from holdfast.asgi import AsgiApp, Receive, Scope, Send
from holdfast.errors import VERSION, HoldfastError, UsageError
from holdfast.facades.universal_agent.in_process import InProcessGateway
from holdfast.http import gateway
from holdfast.http import gateway as gateway_routes
from holdfast.http.api import (
    agents,
    fleet,
    inquiries,
    jobs,
    machines,
    money,
    plans,
    problems,
    runs,
    sessions,
    streams,
    system,
    tools,
    triggers,
)
from holdfast.http.api.answers import answering, dependencies_of, json_response, model_of, other_answers, success_of
from holdfast.http.api.problems import response_to, status_of
from holdfast.http.api.routes import Endpoint, Routes
from holdfast.http.gateway import add_gateway
from holdfast.http.metrics import CONTENT_TYPE, exposition
from holdfast.http.pages.login import add_logins
from holdfast.http.pages.serving import add_pages, or_page
from holdfast.http.security import checks
from holdfast.http.security.checks import (
    BODY,
    BROWSER_HEADERS,
    RequestDenied,
    absent,
    forbidden,
    host_of,
    too_large,
    too_slow,
)
from holdfast.http.security.checks import HEADERS as MOST_HEADERS
from holdfast.http.security.gate import Gate, WebOptions, Who, address_of, check_texts, gate_of, short_body
from holdfast.http.security.roles import METRICS, TABLE
from holdfast.kernel.database import READS, bound
from holdfast.observe import without_audit

# Every noun of the API. A new noun is a module, and a line here.


NOUNS: Sequence[Routes] = (
    runs.routes,
    sessions.routes,
    agents.routes,
    jobs.routes,
    inquiries.routes,
    tools.routes,
    tools.tools,
    machines.machines,
    machines.routes,
    triggers.routes,
    plans.plans,
    plans.actions,
    tools.pools,
    fleet.queues,
    fleet.lanes,
    fleet.workers,
    fleet.schedules,
    fleet.batches,
    fleet.scale,
    money.usage,
    money.budgets,
    tools.tenants,
    system.routes,
    streams.routes,
    gateway.routes,
)


# The shield around the whole app, as plain ASGI: hosts, sizes, headers. It looks at no route.


_ADDED = [(name.encode(), value.encode()) for name, value in BROWSER_HEADERS.items()]


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

    def _problem(self, scope: Scope) -> RequestDenied | None:
        headers = scope.get("headers") or []
        if sum(len(name) + len(value) for name, value in headers) > MOST_HEADERS:
            return too_large("the headers are too long.", f"Send at most {MOST_HEADERS:,} bytes.", 431)
        named = {name: value.decode("latin-1") for name, value in headers}
        if self._hosts is not None and host_of(named.get(b"host", "")) not in self._hosts:
            return RequestDenied(
                421, "UnknownHost", "this server does not answer for that host.", "Add it with --host."
            )
        if b"transfer-encoding" in named and b"content-length" in named:
            return RequestDenied(
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
    until = asyncio.get_running_loop().time() + checks.BODY_SECONDS

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


# `POST /hooks/{name}`: deliveries of other systems. Their signature is judged, and nothing else of who sends them.


async def take_delivery(request: Request, gate: Gate) -> Response:
    """Take a signed delivery for the webhook of this name: 202, and 200 for one that was delivered before."""
    gate.deliveries.take(address_of(request))
    hook = gate.hf.access.webhooks.find(request.path_params["name"])
    if hook is None or gate.options.tenant not in (None, hook.tenant) or gate.options.metadata:
        raise absent()  # what it enqueues belongs to no session, so it is not there where metadata are pinned
    if gate.options.read_only:
        raise forbidden("this is read-only.", "Use another server to change something.")
    raw = await short_body(request, LARGEST)
    delivery = _read(hook, request, raw, core_of(gate.hf).ports.clock.wall_us())
    check_texts(request, raw)
    taken = await _recorded(gate, hook, delivery, request, raw)
    return json_response(taken, 200 if taken["fresh"] is False else 202)


HOOK = Endpoint("hooks", "POST", "/hooks/{name}", take_delivery, root="")


def _read(hook: Webhook, request: Request, raw: bytes, now_us: int) -> Delivery:
    try:
        return hook.read(request.headers, raw, now_us)
    except BadSignature as problem:
        remedy = "Sign id, time and body with the secret of this webhook, as Standard Webhooks says."
        raise RequestDenied(401, "BadSignature", str(problem), remedy) from None


async def _recorded(gate: Gate, hook: Webhook, delivery: Delivery, request: Request, raw: bytes) -> DeliveryOutcome:
    """What became of it, with what was to be done in the audit before it, and what came of it after."""
    audit, path = gate.hf.access.audit, request.url.path
    by = Principal(f"webhook {hook.name}", "operator", hook.tenant or None)
    detail = {"sha256": hashlib.sha256(raw).hexdigest(), "bytes": len(raw), "delivery": delivery.id}
    intent = await audit.add(by, HOOK.name, path, phase="intent", detail=detail)
    status = 500
    try:
        with without_audit():
            taken = await hook.take(delivery)
        status = 202
    except HoldfastError as problem:
        status = status_of(problem)
        raise
    finally:
        await audit.add(by, HOOK.name, path, phase="outcome", about=intent, status=status)
    return taken


def add_hooks(app: FastAPI, gate: Gate) -> None:
    async def deliver(request: Request) -> Response:
        return await take_delivery(request, gate)

    app.router.add_route(HOOK.place, deliver, methods=["POST"], include_in_schema=False)


def web(  # noqa: PLR0913  how it is served
    hf: Holdfast,
    *,
    who: Who | None = None,
    tenant: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    read_only: bool = False,
    gateway: InProcessGateway | str | None = None,
    hosts: Collection[str] | None = None,
    columns: Collection[str] = (),
    filters: Collection[str] = (),
) -> AsgiApp:
    """The pages and the JSON API as an ASGI app: `app.mount("/ops", hf.web(who=current_user))`.

    `who` is given a request and returns a `Principal`, or None for nobody; without it only tokens and logins count.
    `tenant` binds everybody who comes here to one tenant, `metadata` to sessions that have these. `read_only` refuses
    every change. `gateway` serves Universal Agent's gateway at `/gateway`: one of yours, or the name of the agent that
    answers. `hosts` are the names under which it answers; None leaves that to the app around it. `columns` are keys of
    metadata that lists of runs and sessions show in a column of their own, `filters` keys that one can choose by there.
    """
    allowed = None if hosts is None else tuple(hosts)
    options = WebOptions(
        who=who,
        tenant=tenant,
        metadata=metadata or {},
        read_only=read_only,
        hosts=allowed,
        gateway=InProcessGateway(hf, agent=gateway, confined=True) if isinstance(gateway, str) else gateway,
        columns=_keys(columns, "columns"),
        filters=_keys(filters, "filters"),
    )
    return served(hf, options)


def _keys(given: Collection[str], what: str) -> tuple[str, ...]:
    if isinstance(given, str) or not all(given):
        raise UsageError(f'{what}= must be a list of keys of metadata: {what}=("customer",).')
    return tuple(dict.fromkeys(given))


def served(hf: Holdfast, options: WebOptions) -> AsgiApp:
    """The app that these options describe."""
    return Shield(framework(Gate(hf, options)), options.hosts)


def framework(gate: Gate) -> FastAPI:
    """The routes in FastAPI, without its own pages: those load scripts from elsewhere."""
    app = FastAPI(
        title="Holdfast", version=VERSION, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    app.state.gate = gate
    for noun in NOUNS:
        if noun is not gateway_routes.routes or gate.options.gateway is not None:
            app.router.routes += _routes_of(noun)
    add_logins(app, gate)
    add_hooks(app, gate)
    if gate.options.gateway is not None:
        add_gateway(app, gate, gate.options.gateway)
    _add_descriptions(app, gate)
    handlers = {
        HoldfastError: problems.on_refusal,
        RequestValidationError: problems.on_bad_request,
        HTTPException: problems.on_http,
        Exception: problems.on_fault,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, or_page(gate, handler))
    return app


@cache
def _routes_of(noun: Routes) -> tuple[BaseRoute, ...]:
    """All apps of a process share them: FastAPI needs most of a second to make those of the API."""
    router = APIRouter()
    for endpoint in noun.endpoints:
        _serve(router, endpoint)
    return tuple(router.routes)


def _serve(router: APIRouter, endpoint: Endpoint) -> None:
    router.add_api_route(
        endpoint.place,
        answering(endpoint),
        methods=[endpoint.method],
        tags=[endpoint.noun],
        dependencies=dependencies_of(endpoint),
        status_code=success_of(endpoint),
        response_model=model_of(endpoint),
        responses={**problems.RESPONSES, **other_answers(endpoint)},
        name=endpoint.name,
        summary=(endpoint.function.__doc__ or "").partition(".")[0],
        operation_id=endpoint.function.__name__,
        route_class_override=_guarded(endpoint),
    )


def _guarded(endpoint: Endpoint) -> type[APIRoute]:
    """A route that answers who passes the gate of the app that was asked."""

    class GuardedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            answer = super().get_route_handler()

            async def guarded(request: Request) -> Response:
                return await gate_of(request).pass_through(request, endpoint, TABLE.get(endpoint.name), answer)

            return guarded

    return GuardedRoute


def description_of(app: FastAPI) -> dict[str, Any]:
    """openapi.json: with the shape of problems, and by what a request says who asks."""
    schema = app.openapi()
    parts = schema.setdefault("components", {})
    parts.setdefault("schemas", {}).setdefault("Problem", problems.Problem.model_json_schema())
    parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    schema["security"] = [{"token": []}]
    return schema


def _add_descriptions(app: FastAPI, gate: Gate) -> None:
    """What there is: the description of the API for who is known, and whether we live for everybody."""

    async def described(request: Request) -> Response:
        await gate.known(request)
        return json_response(description_of(app))

    async def alive(_: Request) -> Response:
        return json_response({"ok": True})

    async def ready(_: Request) -> Response:
        fit = await gate.readiness.is_ready()
        return json_response({"ok": fit}, 200 if fit else 503)

    async def measured(request: Request) -> Response:
        """For Prometheus: a principal with the scope metrics, and no tenant."""
        gate.check(await gate.known(request), METRICS)
        with bound(READS):
            sample = await gate.live.sampler.sample()
        text = exposition(sample, gate.live.counts.open, core_of(gate.hf).ports.events.counted)
        return Response(text, media_type=CONTENT_TYPE)

    plain: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/metrics": measured,
        "/openapi.json": described,
        "/healthz": alive,
        "/readyz": ready,
    }
    add_pages(app, gate, _told_to_programs)
    for path, function in plain.items():
        app.router.add_route(path, function, methods=["GET"], include_in_schema=False)


async def _told_to_programs(request: Request) -> Response:
    """What `/` says to who does not ask for a page."""
    principal = await gate_of(request).known(request)
    return json_response({"name": "holdfast", "version": VERSION, "api": "api/v1", "you": principal.name})
