"""The prefix under which a proxy serves this app. Only a proxy that is believed may say one."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.asgi import AsgiApp, Receive, Scope, Send

_HEADER = b"x-forwarded-prefix"
_LONGEST = 200


class Prefixed:
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
