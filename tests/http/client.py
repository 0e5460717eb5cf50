"""An HTTP client that calls an ASGI app in its own event loop, without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from holdfast.asgi import AsgiApp


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    """`await client.get("/api/v1/runs", limit=2)`."""

    app: AsgiApp
    token: str = ""
    root: str = ""
    address: str = "127.0.0.1"
    headers: dict[str, str] = field(default_factory=dict)

    async def get(self, path: str, **query: Any) -> Answer:
        return await self.call("GET", path, query=query)

    async def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return await self.call("POST", path, body, headers=headers)

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Answer:
        content = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        sent = {"host": "localhost", "content-length": str(len(content)), **self.headers}
        if content:
            sent["content-type"] = "application/json"
        if self.token:
            sent["authorization"] = f"Bearer {self.token}"
        sent |= {name.replace("_", "-"): value for name, value in (headers or {}).items()}
        given = {name: value for name, value in (query or {}).items() if value is not None}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": self.root + path,
            "raw_path": quote(self.root + path).encode(),
            "root_path": self.root,
            "query_string": urlencode(given, doseq=True).encode(),
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in sent.items()],
            "client": (self.address, 1),
            "server": ("localhost", 80),
        }
        return await self._called(scope, content)

    async def _called(self, scope: dict[str, Any], content: bytes) -> Answer:
        parts: list[Any] = []
        asked = iter([True])

        async def receive() -> Any:
            if not next(asked, False):
                await asyncio.Event().wait()  # who waits for an answer says no more
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Any) -> None:
            parts.append(message)

        await self.app(scope, receive, send)
        begin = parts[0]
        headers = {name.decode().lower(): value.decode() for name, value in begin["headers"]}
        return Answer(begin["status"], headers, b"".join(part.get("body", b"") for part in parts[1:]))
