"""A connection: bytes in, replies out, in the order of the requests.

What a client sends is stored only up to the limits of `frames`, and what it does not read only up to `output`: a client
that is too slow in either direction waits, and is then closed. Nobody else waits for it.

Closing a socket with unread bytes sends a reset, which can reach the client before the last reply. So the server first
ends only its own direction, and drops what still arrives until the client closes too, for `_LINGER` seconds at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import timedelta

from holdfast.resp import frames
from holdfast.resp.client import Client
from holdfast.resp.dispatch import NOAUTH, dispatch, dispatch_together, is_together, is_waiting
from holdfast.resp.frames import BadFrame, Failure, Frames, Reply, encode, watch_peer
from holdfast.resp.gateway import INLET, RespGateway

log = logging.getLogger("holdfast.resp")

_OTHER_PROTOCOLS = (b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"DELETE", b"CONNECT", b"PATCH", b"HOST:")
_TOGETHER = 200  # requests that are answered together
_LOW, _HIGH = 64 << 10, 256 << 10
_LINGER = 2.0  # seconds


class RespConnection(asyncio.BufferedProtocol):
    def __init__(self, gateway: RespGateway, client: Client, left: Callable[[RespConnection], None]) -> None:
        self._gateway = gateway
        self.client = client
        self._left = left
        self._frames = Frames()
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._ended = False  # the client sends nothing more
        self._lingering = False  # the server sends nothing more, and drops what it gets
        self._paused = False
        self._parked = False  # in a request that may wait long
        self._ahead: list[bytes] | None = None  # the request after the one that is being answered
        self._inline = False  # whether the one that is being answered is a line of words
        self._bad: BadFrame | None = None  # what comes after that one
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._key_until = 0.0  # by the loop's time, when a connection that has shown no key ends
        self._patience_until: float | None = (
            None  # by the loop's time, when it ends if no bytes come; None: it is answered
        )
        self._timer: asyncio.TimerHandle | None = None  # one for all waits: it looks again when bytes have come

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(_HIGH, _LOW)
        watch_peer(transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.client.address = peer[0] if peer else "unix"
        self._key_until = self._in(self._gateway.options.auth_within)
        self._task = asyncio.get_running_loop().create_task(self._serve(transport), name=f"resp-{self.client.id}")

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._gateway.inlet

    def buffer_updated(self, nbytes: int) -> None:
        if self._lingering:
            return
        self._frames.feed(memoryview(self._gateway.inlet)[:nbytes])
        self._arrived.set()
        limits = self._frames.limits
        if self._transport is not None and self._frames.buffered > limits.request + INLET and not self._paused:
            self._paused = True  # until what is here has been answered
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self._ended = True
        self._arrived.set()
        if self._lingering:
            return False  # asyncio closes the transport
        if self._parked and self._transport is not None:
            self._transport.abort()  # it waits for something that it will not hear of
        return True  # what has arrived is still answered

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, problem: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._left(self)

    # What the server calls.

    def close(self) -> None:
        """End it now, without a word."""
        if self._transport is not None:
            self._transport.abort()

    async def finished(self) -> None:
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    # The task.

    async def _serve(self, transport: asyncio.Transport) -> None:
        try:
            await self._answer_all(transport)
        except TimeoutError:
            log.debug("connection %d was idle, or its client does not read", self.client.id)
        except BadFrame as bad:
            self._gateway.counts["bad frames"] += 1
            self._write(transport, Failure(f"Protocol error: {bad}"))
        finally:
            self._gateway.pops.give_back(self.client.unstarted())  # what was claimed for a reply that nobody reads
        self._linger(transport)

    def _linger(self, transport: asyncio.Transport) -> None:
        """Close the connection without a reset, which could overtake the last reply."""
        if self._ended or transport.is_closing() or not transport.can_write_eof():  # TLS cannot
            transport.close()
            return
        self._lingering = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_LINGER, transport.close)
        transport.write_eof()
        if self._paused:
            transport.resume_reading()

    async def _answer_all(self, transport: asyncio.Transport) -> None:
        while not self.client.leaving:
            request = self._next()
            if request is None:
                if self._ended or not await self._more(transport):
                    return
                continue
            if self._inline and not self._takes_words(request, transport):
                return
            self._parked = is_waiting(request)
            if self._parked and self._ended:
                return
            replies = await self._answer(request)
            self._parked = False
            if transport.is_closing():
                return
            self._deliver(transport, replies)
            self._raise_limits()
            if not self._writable.is_set():
                async with asyncio.timeout(self._gateway.options.idle.total_seconds()):
                    await self._writable.wait()

    def _next(self) -> list[bytes] | None:
        """The next request, if it is all there."""
        if self._ahead is None:
            if self._bad is not None:
                raise self._bad
            self._ahead = self._frames.next()
        request, self._ahead, self._inline = self._ahead, None, self._frames.inline
        return request

    async def _answer(self, request: list[bytes]) -> list[Reply]:
        """Its reply, and those of the requests behind it that may be answered together, in their order."""
        requests = [request]
        following = not self._inline and is_together(request, request, self.client)
        while following and len(requests) < _TOGETHER:
            other = self._look_ahead()
            following = other is not None and is_together(request, other, self.client)
            if other is not None and following:
                requests.append(other)
                self._ahead = None
        if len(requests) == 1:
            return [await dispatch(request, self.client, self._gateway)]
        return await dispatch_together(requests, self.client, self._gateway)

    def _look_ahead(self) -> list[bytes] | None:
        """Read the request after this one, which waits for its turn. None: it is not all there, or a line of words."""
        try:
            self._ahead = self._frames.next()
        except BadFrame as bad:
            self._bad = bad
        return None if self._frames.inline else self._ahead

    async def _more(self, transport: asyncio.Transport) -> bool:
        """Wait for bytes; `TimeoutError` after too long without them. Before AUTH all waits share one deadline."""
        self._arrived.clear()
        if self._paused:
            self._paused = False
            transport.resume_reading()
        known = self.client.principal is not None
        self._patience_until = self._in(self._gateway.options.idle) if known else self._key_until
        if self._timer is None or self._timer.when() > self._patience_until:
            self._watch(self._patience_until)
        await self._arrived.wait()
        if self._patience_until is None:
            raise TimeoutError
        self._patience_until = None
        return True

    def _watch(self, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(until, self._look_at_patience)

    def _look_at_patience(self) -> None:
        """The time of an earlier wait is over; the one that is under way may have some left."""
        self._timer = None
        until = self._patience_until
        if until is None:
            return
        if until > asyncio.get_running_loop().time():
            self._watch(until)
            return
        self._patience_until = None
        self._arrived.set()

    @staticmethod
    def _in(span: timedelta) -> float:
        return asyncio.get_running_loop().time() + span.total_seconds()

    def _takes_words(self, request: list[bytes], transport: asyncio.Transport) -> bool:
        """A line of words may be another protocol, by which a browser is used to reach this port: that is closed.
        Before AUTH nothing of it is understood."""
        if request[0].upper() in _OTHER_PROTOCOLS:
            self._gateway.counts["other protocols"] += 1
            return False
        if self.client.principal is None:
            self._write(transport, NOAUTH)
            return False
        return True

    def _deliver(self, transport: asyncio.Transport, replies: list[Reply]) -> None:
        self._write(transport, *replies)
        if self.client.undelivered:
            self._gateway.pops.deliver(self.client.undelivered, self.client)
            self.client.undelivered = []

    def _raise_limits(self) -> None:
        if self.client.principal is not None and self._frames.limits is frames.BEFORE_AUTH:
            self._frames.limits = frames.AFTER_AUTH
        elif self.client.principal is None and self._frames.limits is frames.AFTER_AUTH:  # it was reset
            self._frames.limits = frames.BEFORE_AUTH
            self._key_until = self._in(self._gateway.options.auth_within)

    def _write(self, transport: asyncio.Transport, *replies: Reply) -> None:
        transport.write(b"".join([encode(reply, self.client.protocol) for reply in replies]))
        if transport.get_write_buffer_size() > self._gateway.options.output:
            log.warning("connection %d of %s does not read its replies: closed", self.client.id, self.client.who)
            transport.abort()
