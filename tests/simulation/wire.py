"""Connections of the simulated cluster: a gateway's real protocol at one end, a client's streams at the other.

What is sent arrives in order. It is late, or it is lost; then the connection is cut, and each end learns of that at its
own time, or never. A process that dies takes its connections along.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from random import Random
from typing import Any

from holdfast.agw.link import Link, Replies
from holdfast.resp.connection import RespConnection
from tests.simulation.store import Store


class Wire:
    """One connection. `noted` is told of each cut."""

    def __init__(self, store: Store, chance: Random, cuts: float, noted: Callable[[str], None]) -> None:
        self.cut = False
        self._store = store
        self._chance = chance
        self._cuts = cuts
        self._noted = noted
        self._next = {"up": 0.0, "down": 0.0}  # when the last bytes of each direction arrive
        self._reader = Replies()
        self._client = copy_context()
        self._server = Context()
        self._near: Near | None = None

    def begin(self, accept: Callable[[], asyncio.BaseProtocol], server: Context, address: str) -> Link:
        """The client's end. The gateway accepts a little later."""
        self._server = server
        self._send("up", self._open, accept, address, context=server)
        return Link(self._reader, Far(self))  # type: ignore[arg-type]  # the part of a writer that it uses

    def _open(self, accept: Callable[[], asyncio.BaseProtocol], address: str) -> None:
        protocol = accept()
        if isinstance(protocol, RespConnection):
            self._near = Near(self, protocol, address)
            protocol.connection_made(self._near)

    def up(self, data: bytes) -> None:
        """A request. It is lost, or it arrives and the client is cut off before the reply."""
        drawn = self._chance.random()
        if not self.cut and not (self._strikes and drawn < self._cuts):
            self._send("up", self._arrive, data, context=self._server)
            if not (self._strikes and drawn < 2 * self._cuts):
                return
        self.break_off("request")

    def down(self, data: bytes) -> None:
        """A reply, after its commit."""
        if not self.cut and not (self._strikes and self._chance.random() < self._cuts):
            self._send("down", self._reader.feed_data, data, context=self._client)
            return
        self.break_off("reply")

    @property
    def _strikes(self) -> bool:
        return not self._store.healed

    def break_off(self, why: str) -> None:
        """Cut it. Either end may think for long that it is there."""
        if self.cut:
            return
        self.cut = True
        self._noted(why)
        self._send("down", self._end_client, context=self._client, after=self._chance.choice((0.0, 0.1, 30.0)))
        self._send("up", self._end_server, context=self._server, after=self._chance.choice((0.0, 0.1, 60.0)))

    def hang_up(self, direction: str) -> None:
        """One end closed it: the other hears of that after what was sent before."""
        if not self.cut:
            self.cut = True
            if direction == "up":
                self._send("up", self._end_server, context=self._server)
            else:
                self._send("down", self._end_client, context=self._client)

    def _end_client(self) -> None:
        if not self._reader.at_eof():
            self._reader.feed_eof()

    def _end_server(self) -> None:
        if self._near is not None:
            self._near.abort()

    def _arrive(self, data: bytes) -> None:
        if self._near is not None:
            self._near.receive(data)

    def _send(self, direction: str, to: Callable[..., Any], *what: Any, context: Context, after: float = 0.0) -> None:
        at = max(self._next[direction], self._store.seconds + after + self._store.delay())
        self._next[direction] = at
        self._store.loop.call_later(
            at - self._store.seconds, self._hand, to, what, context, context=self._store.context
        )

    def _hand(self, to: Callable[..., Any], what: tuple[Any, ...], context: Context) -> None:
        self._store.loop.call_soon(to, *what, context=context)


class Far:
    """Where a client writes."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def write(self, data: bytes) -> None:
        self._wire.up(data)

    async def drain(self) -> None: ...

    def close(self) -> None:
        self._wire.hang_up("up")

    async def wait_closed(self) -> None: ...


class Near(asyncio.Transport):
    """The transport that a gateway's connection is given."""

    def __init__(self, wire: Wire, protocol: RespConnection, address: str) -> None:
        super().__init__({"peername": (address, 1)})
        self._wire = wire
        self._protocol = protocol
        self._closing = False

    def receive(self, data: bytes) -> None:
        while data and not self._closing:
            buffer = self._protocol.get_buffer(len(data))
            some = data[: len(buffer)]
            buffer[: len(some)] = some
            self._protocol.buffer_updated(len(some))
            data = data[len(some) :]

    def write(self, data: Any) -> None:
        if not self._closing:
            self._wire.down(bytes(data))

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            self._wire.hang_up("down")
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...
