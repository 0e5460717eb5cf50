"""`holdfast serve`: the pages and the JSON API of a store, on loopback unless it is protected."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from holdfast.access.principals import Principal
from holdfast.app import Holdfast, core_of
from holdfast.asgi import AsgiApp
from holdfast.cli.target import app_argument, app_for, app_with_code, url_option
from holdfast.errors import MissingExtra, UsageError
from holdfast.http.security.binds import LOCAL, Bind, PathPrefix, check_bind, read_bind
from holdfast.kernel.database import ignore_change
from holdfast.text import plural
from holdfast.threads import StopNotice, StopWait, again

if TYPE_CHECKING:
    import uvicorn

_LAST_WORDS = 5  # seconds that open streams have when the server stops
_LOCAL_USER = Principal("local", "admin")


@click.command()
@click.argument("target", metavar="[MODULE:APP]", required=False)
@click.option("--bind", default="127.0.0.1:8000", show_default=True, help="Where to listen; port 0 takes a free one.")
@click.option("--host", "hosts", multiple=True, help="A name under which it is asked for, besides loopback and --bind.")
@click.option("--no-login", is_flag=True, help="Let everybody in who can reach loopback, as admin.")
@click.option("--read-only", is_flag=True, help="Refuse every change.")
@click.option("--tenant", help="Show this tenant alone.")
@click.option("--gateway", metavar="AGENT", help="Serve Universal Agent's gateway at /gateway; this agent answers.")
@click.option("--no-worker", is_flag=True, help="Play no turns of the gateway here: workers elsewhere do.")
@click.option("--proxy", "proxies", multiple=True, metavar="ADDRESS", help="A proxy that does TLS, and is believed.")
@click.option("--prefix", default="", metavar="PATH", help="The path under which a proxy serves it, kept or stripped.")
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False), help="The certificate, as PEM.")
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="Its key, as PEM.")
@url_option
def command(target: str | None, bind: str, url: str | None, no_worker: bool, **given: Any) -> None:
    """Serve the pages and the JSON API of MODULE:APP, or of a store alone; Ctrl-C stops it.

    Open the link that it prints in a browser: it logs you in, once. Programs send a token of `holdfast tokens create`.
    With --gateway, a worker of MODULE:APP is part of it; otherwise workers are processes of their own.
    """
    place = read_bind(bind)
    has_code = bool(target or app_argument())
    app = app_with_code(target, url, answers=False) if has_code else app_for(url)
    plays = given["gateway"] is not None and not given["read_only"] and not no_worker
    core_of(app).binding.embedded = has_code and plays
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(app, place, **given))


async def _serve(  # noqa: PLR0913  options of the command
    app: Holdfast,
    bind: Bind,
    *,
    no_login: bool,
    proxies: tuple[str, ...],
    tls_cert: str | None,
    tls_key: str | None,
    hosts: tuple[str, ...],
    prefix: str,
    **options: Any,
) -> None:
    try:
        from holdfast.http.server import server_for
    except ModuleNotFoundError:
        raise MissingExtra("http", "`holdfast serve`") from None
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key belong together.")
    await core_of(app).awaited_store()
    async with app:
        tokens, protected = await app.access.tokens.any_live(), bool(tls_cert or proxies)
        check_bind(bind, login=not no_login, protected=protected, tokens=tokens)
        names = {*LOCAL, bind.shown, *hosts}
        web = app.web(who=(lambda _: _LOCAL_USER) if no_login else None, hosts=names, **options)
        tls = {"ssl_certfile": tls_cert, "ssl_keyfile": tls_key}
        server = server_for(_behind(web, proxies, prefix), timeout_graceful_shutdown=_LAST_WORDS, **tls)
        family = socket.AF_INET6 if ":" in bind.host else socket.AF_INET
        with listen_on(bind, family) as listener:
            place = f"{'https' if tls_cert else 'http'}://{bind.shown}:{listener.getsockname()[1]}"
            await _greet(app, place + prefix.rstrip("/"), no_login)
            core_of(app).here().hurried_by = "press Ctrl-C again"
            stop_on_signals(server, _LAST_WORDS, core_of(app).hurry)
            await server._serve([listener])


def stop_on_signals(server: uvicorn.Server, within: float, hurry: Callable[[], None] = ignore_change) -> None:
    """Stop the server at a signal, when the requests under way are answered; at a second one without that.

    `hurry` is called at the second one too, for what drains after the server.
    """

    def under_way() -> StopWait:
        count = len(server.server_state.tasks)
        words, are = plural(count, "request"), "is" if count == 1 else "are"
        return StopWait(count, words, "stop at once", f"{words} {are} cut off")

    def stop(number: int) -> None:
        if server.should_exit:
            notice.hurry()
            server.force_exit = True
            hurry()
        else:
            notice.begin(again(number), within)
            server.should_exit = True

    notice = StopNotice(under_way, repeats=False, say=partial(click.echo, err=True))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)


def _behind(web: AsgiApp, proxies: tuple[str, ...], prefix: str) -> AsgiApp:
    """The app as proxies reach it: they are believed who asks, how, and under which prefix."""
    from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

    believed: Any = ProxyHeadersMiddleware(web, list(proxies)) if proxies else web  # type: ignore[arg-type]
    return PathPrefix(believed, prefix=prefix, proxies=proxies)


def listen_on(bind: Bind, family: int) -> socket.socket:
    """A socket whose connections send at once: asyncio sees to that only for sockets that it has opened itself."""
    try:
        listener = socket.create_server((bind.host, bind.port), family=family)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as problem:
        raise UsageError(f"{bind.host}:{bind.port} cannot be listened on: {problem.strerror}.") from problem


async def _greet(app: Holdfast, place: str, no_login: bool) -> None:
    if no_login:
        click.echo(f"{place}/ without a login")
        click.echo("open it in a browser; the API is below api/v1", err=True)
        return
    link = await app.access.logins.link(_LOCAL_USER)
    click.echo(f"{place}/login?link={link}")
    click.echo("open it in a browser: the link works once, for 15 minutes; the API is below api/v1", err=True)
