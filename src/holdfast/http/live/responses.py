"""A stream of frames as a response: closed when its reader leaves, is too slow or may no longer read, and when
its server stops.

What waits is sent in one piece. A send that takes more than five seconds ends the stream; the reader comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from holdfast.access.access import Access
from holdfast.access.principals import Principal
from holdfast.asgi import Receive, Scope, Send
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, Unavailable
from holdfast.http.security.checks import StreamCounts
from holdfast.http.sse import BEGIN, SERVER_STOPS, STILL_HERE, server_stopping
from holdfast.kernel.database import bound, bounds_now
from holdfast.text import shown

# The vigil over open streams: who may no longer read is dismissed.
#
# Tokens and logins are looked at every second, with one question for all: who is revoked is gone within two. Whom the
# host app has let in is asked for again every ten seconds, as if their request had come once more.


log = logging.getLogger("holdfast.http")

ASKED_AGAIN = 10.0
_LOOK = 1.0


@dataclass(frozen=True, slots=True)
class WatchedStream:
    """Whose stream it is, and by what: the id of a token, the secret of a login, or what the host app says `again`."""

    principal: Principal
    token: str | None = None
    login: str | None = None
    again: Callable[[], Awaitable[Principal | None]] | None = None

    @property
    def name(self) -> str:
        """By what its requests and streams are counted: names of two tenants are not the same."""
        tenant = self.principal.tenant
        return self.principal.name if tenant is None else f"{self.principal.name} of {tenant}"


class IdleWatch:
    def __init__(self, access: Access, clock: Clock) -> None:
        self._access = access
        self._clock = clock
        self._over: dict[asyncio.Event, WatchedStream] = {}
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def over(self, watched: WatchedStream) -> Iterator[asyncio.Event]:
        """Around a stream: the event is set when its reader may no longer read."""
        dismissed = asyncio.Event()
        asking = None if watched.again is None else asyncio.create_task(self._ask(watched, watched.again, dismissed))
        self._over[dismissed] = watched
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep(), name="vigil")
        try:
            yield dismissed
        finally:
            del self._over[dismissed]
            if asking is not None:
                asking.cancel()
            if not self._over and self._task is not None:
                self._task.cancel()

    async def _keep(self) -> None:
        while self._over:
            with contextlib.suppress(HoldfastError):  # the store is away: nobody is dismissed for that
                await self._look()
            await self._clock.sleep(_LOOK)

    async def _look(self) -> None:
        asked = list(self._over.items())  # a stream that begins meanwhile is not asked about
        tokens = {each.token for _, each in asked if each.token is not None}
        logins = {each.login for _, each in asked if each.login is not None}
        live_tokens = await self._access.tokens.live(tokens) if tokens else frozenset()
        live_logins = await self._access.logins.live(logins) if logins else frozenset()
        for dismissed, each in asked:
            lost = each.token is not None and each.token not in live_tokens
            if lost or (each.login is not None and each.login not in live_logins):
                dismissed.set()

    async def _ask(
        self, watched: WatchedStream, again: Callable[[], Awaitable[Principal | None]], dismissed: asyncio.Event
    ) -> None:
        """Until the host app says something else. If it fails, the reader comes back and is judged again."""
        try:
            while True:
                await self._clock.sleep(ASKED_AGAIN)
                async with asyncio.timeout(ASKED_AGAIN):
                    if await again() != watched.principal:
                        break
        except Exception:  # of the host app
            log.warning("a stream of %s is closed: who= failed.", watched.name, exc_info=True)
        dismissed.set()


SLOWEST_SEND = 5.0
_KEEP_ALIVE = 15.0
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class LiveResponse(Response):
    media_type = "text/event-stream"

    def __init__(
        self, frames: AsyncIterator[bytes], clock: Clock, watched: WatchedStream, vigil: IdleWatch, counts: StreamCounts
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
