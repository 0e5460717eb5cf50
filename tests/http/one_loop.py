"""An ASGI app whose calls all happen on one event loop in a thread, whatever loops its callers have."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.asgi import AsgiApp, Receive, Scope, Send

_LOOKS = 50  # at a stream that has begun and says nothing, such as that of a session without runs


class OneLoop:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="one loop")

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """For a thread without a loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def app(self, app: AsgiApp) -> AsgiApp:
        """The same app, for callers on other loops. A stream is cut after its first parts, or if nothing comes."""

        async def called(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                raise NotImplementedError(f"no {scope['type']}")
            body = b""
            while True:
                message = await receive()
                body += message.get("body") or b""
                if not message.get("more_body"):
                    break
            for message in await asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(self._answers(app, scope, body), self._loop)
            ):
                await send(message)

        return called

    async def _answers(self, app: AsgiApp, scope: Scope, body: bytes) -> list[Scope]:
        parts: list[Scope] = []
        given = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Scope:
            for message in given:
                return message
            looks = 0
            while len(parts) < 3 and looks < _LOOKS:  # a stream has begun
                await asyncio.sleep(0.01)
                looks += len(parts) == 2
            return {"type": "http.disconnect"}

        async def send(message: Scope) -> None:
            parts.append(message)

        await app(scope, receive, send)
        if parts and parts[-1].get("more_body"):
            parts.append({"type": "http.response.body", "body": b"", "more_body": False})
        return parts

    async def _end(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    @contextmanager
    def running(self) -> Iterator[OneLoop]:
        self._thread.start()
        try:
            yield self
        finally:
            self.run(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
