"""A stream of frames as a response: closed when its reader leaves, is too slow or may no longer read, and when
its server stops.

What waits is sent in one piece. A send that takes more than five seconds ends the stream; the reader comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.responses import Response

from holdfast.asgi import Receive, Scope, Send
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, Unavailable
from holdfast.http.live.frames import BEGIN, SERVER_STOPS, STILL_HERE
from holdfast.http.live.vigil import Vigil, WatchedStream
from holdfast.http.security.caps import StreamCounts
from holdfast.http.sse import server_stopping
from holdfast.kernel.bounds import bound, bounds_now
from holdfast.shown_text import shown

log = logging.getLogger("holdfast.http")

SLOWEST_SEND = 5.0
_KEEP_ALIVE = 15.0
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class LiveResponse(Response):
    media_type = "text/event-stream"

    def __init__(
        self, frames: AsyncIterator[bytes], clock: Clock, watched: WatchedStream, vigil: Vigil, counts: StreamCounts
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._frames = frames
        self._clock = clock
        self._watched = watched
        self._vigil = vigil
        self._counts = counts
        self._bounds = bounds_now()  # those of the request, which has ended when this is sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = self._watched.name
        with self._counts.one(name), self._vigil.over(self._watched) as dismissed, server_stopping() as stopping:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            writer = _Writer(send)
            tasks: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(each)
                for each in (self._write(writer), self._keep_alive(writer), _left(receive), dismissed.wait())
            ]
            try:
                await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in tasks:
                    each.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
            if self._is_cut_off(ended):
                return
            with contextlib.suppress(OSError):
                if stopping.done():
                    await writer.write(SERVER_STOPS)
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _is_cut_off(self, ended: Sequence[object]) -> bool:
        """Whether the reader does not read; any other failure is the server's own, and raised."""
        for each in ended:
            if isinstance(each, (TimeoutError, OSError)):
                log.info("a stream of %s was closed: its reader is too slow, or gone.", self._watched.name)
                return True
            if isinstance(each, Exception):
                raise each
        return False

    async def _write(self, writer: _Writer) -> None:
        """One task for all frames, because a stream with many readers makes thousands of them a second."""
        try:
            await writer.write(BEGIN)
            with bound(self._bounds):
                async for data in self._frames:
                    await writer.write(data)
        except HoldfastError as problem:  # the reader comes back and continues where it was
            level = logging.INFO if isinstance(problem, Unavailable) else logging.WARNING
            log.log(level, "a stream of %s was cut off: %s", self._watched.name, shown(problem))
        finally:
            close = getattr(self._frames, "aclose", None)
            if close is not None:
                await close()

    async def _keep_alive(self, writer: _Writer) -> None:
        while True:
            written = writer.written
            await self._clock.sleep(_KEEP_ALIVE)
            if writer.written == written:
                await writer.write(STILL_HERE)


class _Writer:
    """What is sent to one reader, one piece after the other. It counts them."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._one = asyncio.Lock()
        self.written = 0

    async def write(self, body: bytes) -> None:
        self.written += 1
        async with self._one, asyncio.timeout(SLOWEST_SEND):
            await self._send({"type": "http.response.body", "body": body, "more_body": True})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
