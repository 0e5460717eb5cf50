"""A WebSocket of an app, without a network: messages in, and what is said until enough has come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.http.client import Client
from tests.support.apps import PATIENCE

ENDS = ('"type":"query_complete"', '"type":"error"', '"type":"pong"', '"status":"accepted"')


async def talk(client: Client, path: str, messages: Sequence[str]) -> str:
    """Say all messages, and listen until something has ended or a turn has begun. What was said, and the close code."""
    said: list[str] = []
    enough = asyncio.Event()
    headers = [(name.encode(), value.encode()) for name, value in {"host": "localhost", **client.headers}.items()]
    scope = {"type": "websocket", "path": path, "root_path": "", "headers": headers, "query_string": b""}
    coming = iter([{"type": "websocket.connect"}, *({"type": "websocket.receive", "text": each} for each in messages)])

    async def receive() -> Any:
        for message in coming:
            return message
        await enough.wait()
        return {"type": "websocket.disconnect", "code": 1000}

    async def send(message: Any) -> None:
        said.append(str(message.get("text", message.get("code", ""))))
        if message["type"] == "websocket.close" or any(end in said[-1] for end in ENDS):
            enough.set()

    async with asyncio.timeout(PATIENCE):
        await client.app({**scope, "client": (client.address, 1), "subprotocols": []}, receive, send)
    return "\n".join(said)
