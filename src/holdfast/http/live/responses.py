"""A stream of frames as a response: closed when its reader leaves, is too slow, or may no longer read.

What waits is sent in one piece. A send that takes more than five seconds ends the stream; the reader comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response

from holdfast.asgi import Receive, Scope, Send
from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.http.live.frames import BEGIN, STILL_HERE
from holdfast.http.live.vigil import Vigil, WatchedStream
from holdfast.http.security.caps import StreamCounts
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
        with self._counts.one(self._watched.name), self._vigil.over(self._watched) as dismissed:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            gone = asyncio.ensure_future(_left(receive))
            over: asyncio.Future[Any] = asyncio.ensure_future(dismissed.wait())
            try:
                await self._write(send, gone, over)
            except (TimeoutError, OSError):
                log.info("a stream of %s was closed: its reader is too slow, or gone.", self._watched.name)
                return
            finally:
                for each in (gone, over):
                    each.cancel()
                await asyncio.gather(gone, over, return_exceptions=True)
            with contextlib.suppress(OSError):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send, gone: asyncio.Future[None], over: asyncio.Future[Any]) -> None:
        await _part(send, BEGIN)
        coming = asyncio.ensure_future(self._next())
        quiet = asyncio.ensure_future(self._clock.sleep(_KEEP_ALIVE))
        try:
            while not gone.done() and not over.done():
                waited: set[asyncio.Future[Any]] = {coming, quiet, gone, over}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if coming.done():
                    data = coming.result()
                    if data is None:
                        return
                    await _part(send, data)
                    coming = asyncio.ensure_future(self._next())
                elif quiet.done():
                    await _part(send, STILL_HERE)
                if quiet.done():
                    quiet = asyncio.ensure_future(self._clock.sleep(_KEEP_ALIVE))
        except HoldfastError as problem:  # the reader comes back and continues where it was
            log.warning("a stream of %s was cut off: %s", self._watched.name, shown(problem))
        finally:
            coming.cancel()
            quiet.cancel()
            await asyncio.gather(coming, quiet, return_exceptions=True)
            close = getattr(self._frames, "aclose", None)
            if close is not None:
                await close()

    async def _next(self) -> bytes | None:
        with bound(self._bounds):
            return await anext(self._frames, None)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _part(send: Send, body: bytes) -> None:
    async with asyncio.timeout(SLOWEST_SEND):
        await send({"type": "http.response.body", "body": body, "more_body": True})
