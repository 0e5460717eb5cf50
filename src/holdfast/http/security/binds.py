"""Where a server may listen: on loopback with a login, elsewhere only with a token and behind TLS or a proxy."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import NamedTuple

from holdfast.asgi import AsgiApp, Receive, Scope, Send
from holdfast.errors import UsageError

LOCAL = ("localhost", "127.0.0.1", "[::1]")


class Bind(NamedTuple):
    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def shown(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def read_bind(text: str) -> Bind:
    """`HOST:PORT`; an IPv6 address stands in brackets."""
    host, separator, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdigit() or int(port) > 65_535:
        raise UsageError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:8000.")
    return Bind(host, int(port))


def check_bind(bind: Bind, *, login: bool, protected: bool, tokens: bool) -> None:
    """`UsageError` for a server that strangers could reach. `protected`: by TLS or a proxy."""
    if not login and not bind.is_loopback:
        raise UsageError(f"--no-login is for loopback alone, and {bind.host} is not: leave it out.")
    if not login and protected:
        raise UsageError("--no-login behind a proxy lets everybody in: requests of strangers come from loopback too.")
    if bind.is_loopback:
        return
    if not tokens:
        raise UsageError(
            f"{bind.host} can be reached from elsewhere, and there is no token: `holdfast tokens create NAME` first."
        )
    if not protected:
        raise UsageError(
            f"{bind.host} can be reached from elsewhere, where tokens would travel in the clear: "
            "add --tls-cert and --tls-key, or --proxy ADDRESS of the proxy that does TLS."
        )


# The prefix under which a proxy serves this app. Only a proxy that is believed may say one.


_HEADER = b"x-forwarded-prefix"
_LONGEST = 200


class PathPrefix:
    """`prefix` is fixed, and holds whether the proxy keeps it in paths or strips it. Otherwise these proxies say it."""

    def __init__(self, app: AsgiApp, *, prefix: str = "", proxies: Collection[str] = ()) -> None:
        self._app = app
        self._prefix = "/" + prefix.strip("/") if prefix.strip("/") else ""
        self._proxies = frozenset(proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            prefix = self._prefix or self._told(scope)
            path = str(scope["path"])
            kept = path == prefix or path.startswith(f"{prefix}/")
            scope = {**scope, "root_path": prefix, "path": path if kept else prefix + path}
        await self._app(scope, receive, send)

    def _told(self, scope: Scope) -> str:
        """What a proxy that is believed says; a browser could say anything."""
        client = scope.get("client")
        if client is None or not ({client[0], "*"} & self._proxies):
            return ""
        said = dict(scope.get("headers") or []).get(_HEADER, b"").decode("latin-1").strip("/ ")
        safe = said.isascii() and said.isprintable() and "//" not in said and "\\" not in said and len(said) < _LONGEST
        return f"/{said}" if said and safe else ""
