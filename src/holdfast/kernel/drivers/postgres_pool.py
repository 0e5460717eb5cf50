"""Connections to PostgreSQL, opened when needed, shared by statements and by LISTEN.

asyncpg's own pool resets a connection with an extra round trip at every release and cannot lend one that listens;
this one does neither. One connection is kept, the one that listens; the others close after half a minute without
work. One that does not answer is given up: a network may swallow everything without a word.

Calls that wait for locks may have all connections. What is urgent then goes first, and may open a few more.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg

Connection = Any  # asyncpg's Connection; the library ships without complete types

_IDLE_SECONDS = 30.0
_FOR_URGENT = 2  # connections beyond the size
_CONNECT_SECONDS = 10.0


class PooledConnection:
    """A connection while someone has it."""

    def __init__(self, connection: Connection, patience: float) -> None:
        self.connection = connection
        self._patience = patience
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def ask(self) -> None:
        """Something is asked now: the answer must come within the patience, or the connection ends."""
        loop = asyncio.get_running_loop()
        self._until = loop.time() + self._patience
        if self._timer is None:
            self._timer = loop.call_at(self._until, self._judge)

    def rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _judge(self) -> None:
        """The first question's time is over; what was asked since may have some left."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._until:
            self._timer = loop.call_at(self._until, self._judge)
        else:
            self.connection.terminate()


class ConnectionPool:
    def __init__(self, connect: Callable[[], Awaitable[Connection]], size: int, patience: float) -> None:
        self._connect = connect
        self._size = size
        self._patience = patience
        self.listening: Connection | None = None
        self._idle: list[tuple[Connection, float]] = []
        self._open = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._urgent: deque[asyncio.Future[None]] = deque()
        self._closing = False

    @contextlib.asynccontextmanager
    async def line(self, *, urgent: bool = False) -> AsyncIterator[PooledConnection]:
        line = PooledConnection(await self._acquire(urgent=urgent), self._patience)
        line.ask()
        try:
            yield line
        except asyncio.CancelledError:
            # The server may be about to do what was asked, BEGIN included, and nobody would hear of it: whatever this
            # connection did next would then be part of a transaction that never commits.
            line.connection.terminate()
            raise
        except AttributeError as problem:
            if not line.connection.is_closed():
                raise
            # asyncpg takes its own protocol for granted between two messages, and the connection closed just then.
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation") from problem
        finally:
            line.rest()
            self._release(line.connection)
        self._close_idle()

    async def close(self) -> None:
        self._closing = True
        for connection, _ in self._idle:
            await hang_up(connection)
        self._idle.clear()

    def _close_idle(self) -> None:
        """Close what has had no work for a while, but for one."""
        if len(self._idle) < 2:
            return
        now = asyncio.get_running_loop().time()
        for item in list(self._idle):
            connection, since = item
            if len(self._idle) > 1 and now - since > _IDLE_SECONDS and connection is not self.listening:
                self._idle.remove(item)
                self._open -= 1
                connection.terminate()

    async def _acquire(self, *, urgent: bool) -> Connection:
        most = self._size + (_FOR_URGENT if urgent else 0)
        while True:
            while self._idle and self._busy < most:
                connection, _ = self._idle.pop()
                if not connection.is_closed():
                    return connection
                self._open -= 1
            if self._busy < most and not self._idle:
                self._open += 1
                try:
                    return await self._connect()
                except asyncpg.TooManyConnectionsError:
                    self._open -= 1
                    if not self._open:
                        self._tell()
                        raise
                    # The server has no more, but we have some: one of those will be free.
                except BaseException:
                    self._open -= 1
                    self._tell()
                    raise
                if self._idle:
                    continue
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            (self._urgent if urgent else self._waiting).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._tell()  # it was our turn; now it is the next one's
                raise

    def _release(self, connection: Connection) -> None:
        if connection.is_closed() or connection.is_in_transaction() or self._closing:
            self._open -= 1
            connection.terminate()
        else:
            item = (connection, asyncio.get_running_loop().time())
            last = len(self._idle)
            if last and self._idle[-1][0] is self.listening:
                last -= 1  # that one stays open anyway, so it is the next to be used and the others may close
            self._idle.insert(last, item)
        self._tell()

    @property
    def _busy(self) -> int:
        return self._open - len(self._idle)

    def _tell(self) -> None:
        for waiting, most in ((self._urgent, self._size + _FOR_URGENT), (self._waiting, self._size)):
            while waiting and self._busy < most:
                turn = waiting.popleft()
                if not turn.done():
                    turn.set_result(None)
                    return


async def dial(url: str, name: str, *, cached_statements: int, within: float) -> Connection:
    """A new connection whose silent death is noticed within half a minute. A name in the URL stands."""
    seconds = min(within, _CONNECT_SECONDS)
    parameters = {} if "application_name=" in url else {"application_name": name}
    connection = await asyncpg.connect(
        url, statement_cache_size=cached_statements, timeout=seconds, server_settings=parameters
    )
    _keep_alive(connection)
    return connection


@contextlib.asynccontextmanager
async def visiting(connection: Connection, patience: float) -> AsyncIterator[Connection]:
    """A connection for one question, asked in a transaction, then closed."""
    line = PooledConnection(connection, patience)
    line.ask()
    try:
        async with connection.transaction():
            yield connection
    finally:
        line.rest()
        await hang_up(connection)


async def hang_up(connection: Connection) -> None:
    if connection.is_closed():
        return
    try:
        await connection.close(timeout=2)
    except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()


def _keep_alive(connection: Connection) -> None:
    link = connection._transport.get_extra_info("socket")
    if link is None or link.family not in (socket.AF_INET, socket.AF_INET6):
        return
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000)
