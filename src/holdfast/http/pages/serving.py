"""Serving: gives every page and action to the framework, behind the gate that the API has.

A problem is told to a browser as a page, and who is not known is sent to the login.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute

from holdfast.errors import HoldfastError, UsageError
from holdfast.http.api.answers import ARGUMENTS, without_fleet
from holdfast.http.api.fleet import show_worker
from holdfast.http.api.problems import note_outage, on_bad_request, response_to
from holdfast.http.api.seen import PrincipalScope, RequestScope
from holdfast.http.pages import (
    administration,
    agents,
    chat,
    failures,
    inbox,
    jobs,
    machines,
    money,
    now,
    queues,
    run,
    runs,
    sessions,
    tools,
    workers,
)
from holdfast.http.pages.layout import bare_values, links_of, values_for
from holdfast.http.pages.rendering import PATH, render, serve_asset
from holdfast.http.pages.routes import PageRoute, Pages, Redirect
from holdfast.http.security.gate import Gate, KillableProcesses, gate_of
from holdfast.http.security.roles import TABLE
from holdfast.text import Redactor, shown
from holdfast.values import Page, as_json

# What a viewer sees of a view: the same records, with secrets taken out of what programs and models were given.


def redacted(value: Any) -> Any:
    """The value, as the API would tell it to a viewer, still in its own types."""
    match value:
        case Page():
            return Page(map(redacted, value), next=value.next, looked=value.looked)
        case list():
            return [redacted(each) for each in value]
        case tuple() if hasattr(value, "_replace"):
            return type(value)(*map(redacted, value))
        case tuple():
            return tuple(redacted(each) for each in value)
        case Mapping():
            return {name: _field(str(name), each) for name, each in value.items()}
        case _ if is_dataclass(value) and not isinstance(value, type):
            given = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
            changed = {name: _field(name, each) for name, each in given.items()}
            return replace(value, **changed)
        case _:
            return value


def _field(name: str, value: Any) -> Any:
    if name in ARGUMENTS and value is not None:
        plain = Redactor().value(as_json(value), "arguments")
        return tuple(plain) if isinstance(value, tuple) and isinstance(plain, list) else plain
    return redacted(value)


# The button that kills a worker with -9. It is there only where a demo serves pages, for processes that it started.


pages = Pages()


@pages.action("/workers/{id}/kill", like="POST /workers/{id}/drain")
async def kill_worker(seen: RequestScope, request: Request, id: str) -> Redirect:
    doomed: KillableProcesses = request.state.doomed
    doomed.kill((await show_worker(seen, id)).pid)
    return Redirect("/workers")


# Every subject that has pages. A new one is a module, and a line here.


PAGES: Sequence[Pages] = (
    now.pages,
    inbox.pages,
    runs.pages,
    run.pages,
    jobs.pages,
    failures.pages,
    sessions.pages,
    chat.pages,
    agents.pages,
    tools.pages,
    queues.pages,
    workers.pages,
    queues.pages,
    queues.pages,
    workers.pages,
    machines.pages,
    machines.pages,
    machines.pages,
    money.pages,
    administration.pages,
    administration.pages,
)


Answering = Callable[[Request], Awaitable[Response]]
Told = Callable[[Request, Exception], Awaitable[Response]]

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {"content-security-policy": CSP, "cache-control": "no-store", "vary": "cookie, accept"}
ROUTES: tuple[PageRoute, ...] = tuple(route for pages in PAGES for route in pages.routes)
SERVED = frozenset(route.path for route in ROUTES if route.method == "GET")


class ViewResponse(Response):
    """What a page's function returned, on its way through the framework."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class AnyNameConvertor(Convertor[str]):
    """A name in a path: it may have a slash, or the end of a line."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("any", AnyNameConvertor())


def add_pages(app: FastAPI, gate: Gate, for_programs: Answering) -> None:
    """Serve all pages. `/` answers programs as before."""
    app.router.routes += _page_routes(for_programs, killing=gate.options.doomed is not None)
    app.router.add_route(PATH, serve_asset, methods=["GET"], include_in_schema=False)


@functools.cache
def _page_routes(for_programs: Answering, *, killing: bool) -> tuple[BaseRoute, ...]:
    """All apps of a process share them, as the routes of the API."""
    router = APIRouter()
    for route in (*ROUTES, *pages.routes) if killing else ROUTES:
        router.add_api_route(
            route.path.replace("{name}", "{name:any}"),
            _viewing(route),
            methods=[route.method],
            include_in_schema=False,
            response_model=None,
            name=f"page {route.method} {route.path}",
            route_class_override=_paged(route, for_programs),
        )
    return tuple(router.routes)


def _viewing(route: PageRoute) -> Callable[..., Awaitable[Response]]:
    @functools.wraps(route.function)
    async def answer(*args: Any, **options: Any) -> Response:
        try:
            value = await route.function(*args, **options)
        except ValidationError as problem:
            raise UsageError(_misfit(problem)) from None
        return value if isinstance(value, Response) else ViewResponse(value)

    return answer


def _misfit(problem: ValidationError) -> str:
    """What was written in a form and does not fit what the API takes."""
    places = [(".".join(map(str, each["loc"])), each["msg"]) for each in problem.errors()[:5]]
    return "; ".join(f"{place}: {shown(said)}" for place, said in places) + "."


def _paged(route: PageRoute, for_programs: Answering) -> type[APIRoute]:
    """A route that shows its page to who passes the gate, and to others why it does not."""

    class HtmlRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            answer = super().get_route_handler()

            async def rendered(request: Request) -> Response:
                return await _rendered(request, gate_of(request), route, await answer(request))

            async def guarded(request: Request) -> Response:
                gate = gate_of(request)
                if route.path == "/" and not wants_page(request):
                    return await for_programs(request)
                try:
                    response = await gate.pass_through(request, route, TABLE.get(route.name), rendered)
                except HoldfastError as problem:
                    note_outage(request, problem)
                    response = response_to(problem)
                except RequestValidationError as problem:
                    response = await on_bad_request(request, problem)
                return problem_page(request, gate, response)

            return guarded

    return HtmlRoute


async def _rendered(request: Request, gate: Gate, route: PageRoute, response: Response) -> Response:
    if not isinstance(response, ViewResponse):
        return response
    view = response.value
    if isinstance(view, Redirect):
        return RedirectResponse(links_of(request)(view.path, *view.parts, **view.query), 303)
    values = await values_for(request, gate, SERVED)
    text = await asyncio.to_thread(_written, route.template, values, view, request.state.seen)
    return html(text)


def _written(template: str, values: dict[str, Any], view: Any, seen: PrincipalScope) -> str:
    """The page, made beside the event loop: what it shows may be long."""
    if not seen.sees_fleet:
        view = without_fleet(view)
    if seen.principal.role == "viewer":
        view = redacted(view)
    return render(template, values | {each.name: getattr(view, each.name) for each in fields(view)})


def html(text: str, status: int = 200) -> Response:
    return Response(text.encode(errors="replace"), status, _HEADERS, "text/html; charset=utf-8")


def wants_page(request: Request) -> bool:
    """Whether a browser asks for something to show."""
    return "text/html" in request.headers.get("accept", "")


def or_page(gate: Gate, handler: Told) -> Told:
    """A problem outside of any page: a browser gets it as a page, a program as before."""

    async def page_handler(request: Request, problem: Exception) -> Response:
        response = await handler(request, problem)
        below = links_of(request).place_of(request)
        return response if below.startswith("/api/") else problem_page(request, gate, response)

    return page_handler


def problem_page(request: Request, gate: Gate, response: Response) -> Response:
    """A problem that was told as JSON, as a page for a browser. Who is not known is sent to the login."""
    if response.media_type != "application/problem+json" or not (wants_page(request) or _is_swap(request)):
        return response
    if response.status_code == 401 and links_of(request).place_of(request) != "/login":
        return _to_login(request)
    said = json.loads(bytes(response.body))
    values = {**bare_values(request, gate), "problem": said, "title": HTTPStatus(response.status_code).phrase}
    page = html(render("problem.html", values), response.status_code)
    if "retry-after" in response.headers:
        page.headers["retry-after"] = response.headers["retry-after"]
    return page


def _to_login(request: Request) -> Response:
    url = links_of(request)
    below = url.place_of(request)
    wanted = quote(below) + (f"?{request.url.query}" if request.url.query else "")
    place = url("/login", next=wanted if request.method == "GET" and below != "/" else None)
    if _is_swap(request):
        return Response(status_code=204, headers={"hx-redirect": url("/login"), "cache-control": "no-store"})
    return RedirectResponse(place, 303, {"cache-control": "no-store"})


def _is_swap(request: Request) -> bool:
    return request.headers.get("hx-request") == "true"
