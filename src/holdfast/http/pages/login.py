"""Logging in and out: a browser trades a token, or a link that works once, for a cookie."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast.access.access import LONGEST_US
from holdfast.http.pages.forms import filled
from holdfast.http.pages.layout import bare_values, is_below, links_of
from holdfast.http.pages.rendering import render
from holdfast.http.pages.serving import html, wants_page
from holdfast.http.security.checks import unknown
from holdfast.http.security.gate import Gate, address_of, cookie_name, is_form, short_body
from holdfast.kernel import codec

_LONGEST = 4_096
_LARGEST = 16_384  # bytes of a login: who sends it is not known yet
_WRONG = "This token is not known, or it has ended."
_USED = "This link was used already, or it is too old. Ask for another, or use a token."


def add_logins(app: FastAPI, gate: Gate) -> None:
    async def follow_link(request: Request) -> Response:
        """`GET /login?link=…`: the link that `holdfast serve` prints; without it, the page that asks for a token."""
        link = request.query_params.get("link")
        if link is None and wants_page(request):
            return _asking(request, gate)
        session = await gate.hf.access.logins.use((link or "")[:_LONGEST])
        if session is not None:
            return _with_cookie(request, _onward(request, None), session)
        gate.logins.take(address_of(request))  # of those that are wrong alone: many share an address
        if wants_page(request):
            return _asking(request, gate, _USED)
        raise unknown()

    async def log_in(request: Request) -> Response:
        """`POST /login` with `{"token": …}`, or from the page."""
        gate.check_origin(request)
        await short_body(request, _LARGEST)
        by_form = is_form(request)
        said = dict(await filled(request)) if by_form else await _json(request)
        secret = said.get("token")
        principal = await gate.hf.access.tokens.principal(secret.strip()) if isinstance(secret, str) else None
        if principal is not None:
            gate.rate.take(principal.name)
            onward = _onward(request, said.get("next")) if by_form else Response(status_code=204)
            return _with_cookie(request, onward, await gate.hf.access.logins.begin(principal))
        gate.logins.take(address_of(request))
        if by_form:
            return _asking(request, gate, _WRONG)
        raise unknown()

    async def log_out(request: Request) -> Response:
        gate.check_origin(request)
        cookie = request.cookies.get(cookie_name(request))
        if cookie is not None:
            await gate.hf.access.logins.end(cookie)
        by_form = is_form(request)
        response = RedirectResponse(links_of(request)("/login"), 303) if by_form else Response(status_code=204)
        response.delete_cookie(cookie_name(request), path="/", secure=True, httponly=True, samesite="lax")
        return response

    app.router.add_route("/login", follow_link, methods=["GET"], include_in_schema=False)
    app.router.add_route("/login", log_in, methods=["POST"], include_in_schema=False)
    app.router.add_route("/logout", log_out, methods=["POST"], include_in_schema=False)


async def _json(request: Request) -> dict[str, object]:
    said = codec.decode_foreign(await request.body(), what="a login")
    return said if isinstance(said, dict) else {}


def _asking(request: Request, gate: Gate, problem: str = "") -> Response:
    """The page that asks for a token."""
    wanted = request.query_params.get("next", "")
    values = {**bare_values(request, gate), "problem": problem, "wanted": wanted}
    return html(render("login.html", values), 401 if problem else 200)


def _onward(request: Request, wanted: object) -> Response:
    """To the page that was asked for, if it is one of ours; else to the first."""
    url = links_of(request)
    return RedirectResponse(url.root + wanted if isinstance(wanted, str) and is_below(wanted) else url("/"), 303)


def _with_cookie(request: Request, response: Response, session: str) -> Response:
    response.set_cookie(
        cookie_name(request),
        session,
        max_age=LONGEST_US // 1_000_000,
        path="/",
        secure=True,
        httponly=True,
        samesite="lax",
    )
    response.headers["cache-control"] = "no-store"
    return response
