"""`holdfast serve`: the JSON API of a store, on loopback unless it is protected."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from typing import Any

import click

from holdfast.access.principals import Principal
from holdfast.app import Holdfast, core_of
from holdfast.cli.target import app_argument, app_for, app_with_code, url_option
from holdfast.errors import MissingExtra, UsageError
from holdfast.http.security import caps
from holdfast.http.security.binds import LOCAL, Bind, check_bind, read_bind

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
@click.option("--proxy", "proxies", multiple=True, metavar="ADDRESS", help="A proxy that does TLS, and is believed.")
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False), help="The certificate, as PEM.")
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="Its key, as PEM.")
@url_option
def command(target: str | None, bind: str, url: str | None, **given: Any) -> None:
    """Serve the JSON API of MODULE:APP, or of a store alone; Ctrl-C stops it.

    It prints a link that logs a browser in, once. Programs send a token of `holdfast tokens create`.
    """
    place = read_bind(bind)
    app = app_with_code(target, url, answers=False) if target or app_argument() else app_for(url)
    core_of(app).binding.embedded = False  # workers are processes of their own
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(app, place, **given))


async def _serve(
    app: Holdfast,
    bind: Bind,
    *,
    no_login: bool,
    proxies: tuple[str, ...],
    tls_cert: str | None,
    tls_key: str | None,
    hosts: tuple[str, ...],
    **options: Any,
) -> None:
    try:
        import uvicorn
    except ModuleNotFoundError:
        raise MissingExtra("http", "`holdfast serve`") from None
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key belong together.")
    async with app:
        tokens, protected = await app.access.tokens.any_live(), bool(tls_cert or proxies)
        check_bind(bind, login=not no_login, protected=protected, tokens=tokens)
        names = {*LOCAL, bind.shown, *hosts}
        web = app.web(who=(lambda _: _LOCAL_USER) if no_login else None, hosts=names, **options)
        config = uvicorn.Config(
            web,
            lifespan="off",
            log_level="warning",
            server_header=False,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=list(proxies),
            ssl_certfile=tls_cert,
            ssl_keyfile=tls_key,
            timeout_graceful_shutdown=_LAST_WORDS,
            h11_max_incomplete_event_size=caps.HEADERS,
        )
        family = socket.AF_INET6 if ":" in bind.host else socket.AF_INET
        with _listener(bind, family) as listener:
            place = f"{'https' if tls_cert else 'http'}://{bind.shown}:{listener.getsockname()[1]}"
            await _greet(app, place, no_login)
            server = uvicorn.Server(config)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, lambda: setattr(server, "should_exit", True))
            await server._serve([listener])


def _listener(bind: Bind, family: int) -> socket.socket:
    try:
        return socket.create_server((bind.host, bind.port), family=family)
    except OSError as problem:
        raise UsageError(f"{bind.host}:{bind.port} cannot be listened on: {problem.strerror}.") from problem


async def _greet(app: Holdfast, place: str, no_login: bool) -> None:
    if no_login:
        click.echo(f"{place}/ without a login")
        return
    link = await app.access.logins.link(_LOCAL_USER)
    click.echo(f"{place}/login?link={link}")
    click.echo("the link works once, for 15 minutes", err=True)
