"""Apps on a fresh database of each kind, and an HTTP server on loopback that serves what a test gives it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import uvicorn

from tests.http.site import chromium, heard, page, seen
from tests.support.apps import eventually
from tests.workers.conftest import hf, live_database, make_app, place

__all__ = ["chromium", "heard", "hf", "live_database", "make_app", "page", "place", "seen"]

Serve = Callable[[Any], Awaitable[int]]


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="warning"))
        task = asyncio.create_task(server._serve([listener]))

        async def started() -> bool:
            return server.started

        await eventually(started)
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = server.force_exit = True
            await task


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Serve an ASGI app; the answer is the port."""
    async with AsyncExitStack() as stack:

        async def begin(app: Any) -> int:
            return await stack.enter_async_context(serving(app))

        yield begin
