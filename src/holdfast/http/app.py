"""The web: composes routes, gate and shield into one ASGI app. It decides nothing.

The app needs no lifespan and works under any path: what it opens, it opens at the first request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from functools import cache
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from holdfast.app import Holdfast, core_of
from holdfast.asgi import AsgiApp
from holdfast.distribution import VERSION
from holdfast.errors import HoldfastError, UsageError
from holdfast.facades.universal_agent.in_process import InProcessGateway
from holdfast.http.api import problems
from holdfast.http.api.answers import (
    answering,
    dependencies_of,
    json_response,
    model_of,
    other_answers,
    success_of,
)
from holdfast.http.api.nouns import NOUNS
from holdfast.http.api.routes import Endpoint, Routes
from holdfast.http.gateway import routes as gateway_routes
from holdfast.http.gateway.streams import add_gateway
from holdfast.http.hooks import add_hooks
from holdfast.http.metrics import CONTENT_TYPE, exposition
from holdfast.http.pages.login import add_logins
from holdfast.http.pages.serving import add_pages, or_page
from holdfast.http.security.gate import Gate, WebOptions, Who, gate_of
from holdfast.http.security.roles import METRICS, TABLE
from holdfast.http.security.shield import Shield
from holdfast.kernel.bounds import READS, bound


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
        raise UsageError(f'{what}= is a list of keys of metadata: {what}=("customer",).')
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
    told = {
        HoldfastError: problems.on_refusal,
        RequestValidationError: problems.on_bad_request,
        HTTPException: problems.on_http,
        Exception: problems.on_fault,
    }
    for kind, telling in told.items():
        app.add_exception_handler(kind, or_page(gate, telling))
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

    class Guarded(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            answer = super().get_route_handler()

            async def guarded(request: Request) -> Response:
                return await gate_of(request).pass_through(request, endpoint, TABLE.get(endpoint.name), answer)

            return guarded

    return Guarded


def description_of(app: FastAPI) -> dict[str, Any]:
    """openapi.json: with the shape of problems, and by what a request says who asks."""
    told = app.openapi()
    parts = told.setdefault("components", {})
    parts.setdefault("schemas", {}).setdefault("Problem", problems.Problem.model_json_schema())
    parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    told["security"] = [{"token": []}]
    return told


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
