"""The server under `holdfast serve`: uvicorn, with the limits that it lacks.

A client that sends its headers byte by byte, or says nothing, keeps a connection for some seconds and no longer. A
client that takes nothing of its answer does not either. h11 reads requests, also where a faster parser is installed:
that one has no cap on headers.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from holdfast.asgi import AsgiApp
from holdfast.http.api.problems import problem_response
from holdfast.http.security import checks
from holdfast.text import members

_REMEDY = f"Speak HTTP/1.1, with headers of at most {checks.HEADERS:,} bytes."
_M_MMAP_THRESHOLD, _LARGE = -3, 1024 * 1024  # bytes; the number is that of mallopt in glibc
_FILES = 16_384  # connections, at least: far more than streams, so that the one too many is told so


class PunctualProtocol(H11Protocol):
    """A connection of which nothing is expected for long: neither headers, nor a body that nobody reads any more."""

    _late: asyncio.TimerHandle | None = None
    _upgraded = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._plain = transport
        self._taking = _ReadWatch(transport, self.loop)
        self.transport = _LimitedTransport(transport, self._taking)  # type: ignore[assignment]
        self._expect()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_waiting:
            self._expect()
        else:
            self._relax()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taking.begin()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._taking.end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._relax()
        self._taking.end()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._upgraded = True
        self._relax()
        self.transport = self._plain  # the protocol of WebSockets closes it in time
        super().handle_websocket_upgrade(event)
        # What it does not take for a handshake (a body, a line of 8 KB) it neither answers nor closes.
        if not getattr(self._plain.get_protocol(), "handshake_initiated", True):
            self.send_400_response("this is no handshake of a WebSocket.")

    def send_400_response(self, msg: str) -> None:
        """Say that this is not a request, as a problem; the connection is closed behind it."""
        said = problem_response(400, members("NotHttp", msg, "never", _REMEDY))
        headers = [*said.raw_headers, (b"connection", b"close")]
        parts = (h11.Response(status_code=400, headers=headers), h11.Data(data=bytes(said.body)), h11.EndOfMessage())
        for part in parts:
            self.transport.write(self.conn.send(part) or b"")
        self.transport.close()

    @property
    def _is_waiting(self) -> bool:
        """Whether the client has to say something before anything is done for it."""
        cycle: RequestResponseCycle | None = self.cycle
        return not self._upgraded and (cycle is None or cycle.response_complete)

    def _expect(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(checks.HEADER_SECONDS, self._give_up)

    def _relax(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        self._late = None
        if self._is_waiting:
            self.transport.abort()


class _ReadWatch:
    """Looks whether a client takes what waits for it. One that takes nothing is cut off."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._left = 0
        self._look: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        if self._look is None:
            self._left = self._transport.get_write_buffer_size()
            self._look = self._loop.call_later(checks.TAKE_SECONDS, self._judge)

    def end(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _judge(self) -> None:
        self._look = None
        if self._transport.get_write_buffer_size() > max(0, self._left - checks.TAKE_BYTES):
            self._transport.abort()
        else:
            self.begin()


class _LimitedTransport:
    """A transport that is gone some time after it is closed, if its client does not take the rest."""

    def __init__(self, transport: asyncio.Transport, taking: _ReadWatch) -> None:
        self._transport = transport
        self._taking = taking

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        if not self._transport.is_closing():
            self._transport.close()
            self._taking.begin()


def server_for(app: AsgiApp, **options: Any) -> uvicorn.Server:
    """A server for this app; `options` are uvicorn's."""
    _make_room()
    _give_memory_back()
    config = uvicorn.Config(
        app,
        http=PunctualProtocol,
        lifespan="off",
        log_level="warning",
        server_header=False,
        proxy_headers=False,  # who is believed is decided elsewhere
        h11_max_incomplete_event_size=checks.HEADERS,
        ws_max_size=checks.BODY,
        **options,
    )
    return uvicorn.Server(config)


def _give_memory_back() -> None:
    """Have memory of a megabyte and more returned when it is free.

    glibc begins to keep such pieces after the first: one prompt of 8 MB made a server 260 MB larger for good.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE)


def _make_room() -> None:
    """Let this process have more files open, as far as it may: each connection is one."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
