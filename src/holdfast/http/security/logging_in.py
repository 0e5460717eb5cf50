"""Logging in and out: a browser trades a token, or a link that works once, for a cookie."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast.access.logins import LONGEST_US
from holdfast.errors import UsageError
from holdfast.http.security.denials import unknown
from holdfast.http.security.gate import Gate, address_of, cookie_name

_LONGEST = 4_096


def add_logins(app: FastAPI, gate: Gate) -> None:
    async def follow_link(request: Request) -> Response:
        """`GET /login?link=…`: the link that `holdfast serve` prints."""
        gate.logins.take(address_of(request))
        session = await gate.hf.access.logins.use(request.query_params.get("link", "")[:_LONGEST])
        if session is None:
            raise unknown()
        return _with_cookie(request, RedirectResponse(f"{request.scope.get('root_path', '')}/", 303), session)

    async def log_in(request: Request) -> Response:
        """`POST /login` with `{"token": …}`."""
        gate.logins.take(address_of(request))
        gate.check_origin(request)
        try:
            said = await request.json()
        except ValueError:
            raise UsageError("send the token as JSON.") from None
        secret = said.get("token") if isinstance(said, dict) else None
        principal = await gate.hf.access.tokens.principal(secret) if isinstance(secret, str) else None
        if principal is None:
            raise unknown()
        return _with_cookie(request, Response(status_code=204), await gate.hf.access.logins.begin(principal))

    async def log_out(request: Request) -> Response:
        gate.check_origin(request)
        cookie = request.cookies.get(cookie_name(request))
        if cookie is not None:
            await gate.hf.access.logins.end(cookie)
        response = Response(status_code=204)
        response.delete_cookie(cookie_name(request), path="/", secure=True, httponly=True, samesite="lax")
        return response

    app.router.add_route("/login", follow_link, methods=["GET"], include_in_schema=False)
    app.router.add_route("/login", log_in, methods=["POST"], include_in_schema=False)
    app.router.add_route("/logout", log_out, methods=["POST"], include_in_schema=False)


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
