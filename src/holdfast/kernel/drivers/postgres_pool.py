"""Connections to PostgreSQL, opened when needed, shared by statements and by LISTEN.

asyncpg's own pool resets a connection with an extra round trip at every release and cannot lend one that listens;
this one does neither. One connection is kept; the others close after half a minute without work.
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
_CONNECT_SECONDS = 10.0


class Pool:
    def __init__(self, connect: Callable[[], Awaitable[Connection]], size: int) -> None:
        self._connect = connect
        self._size = size
        self._idle: list[tuple[Connection, float]] = []
        self._open = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closing = False

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        connection = await self._acquire()
        try:
            yield connection
        finally:
            self._release(connection)

    async def close(self) -> None:
        self._closing = True
        for connection, _ in self._idle:
            await hang_up(connection)
        self._idle.clear()

    def close_idle(self) -> None:
        """Close what has had no work for a while, but for one."""
        now = asyncio.get_running_loop().time()
        while len(self._idle) > 1 and now - self._idle[0][1] > _IDLE_SECONDS:
            connection, _ = self._idle.pop(0)
            self._open -= 1
            connection.terminate()

    async def _acquire(self) -> Connection:
        while True:
            while self._idle:
                connection, _ = self._idle.pop()
                if not connection.is_closed():
                    return connection
                self._open -= 1
            if self._open < self._size:
                self._open += 1
                try:
                    return await self._connect()
                except BaseException:
                    self._open -= 1
                    self._tell()
                    raise
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn

    def _release(self, connection: Connection) -> None:
        if connection.is_closed() or self._closing:
            self._open -= 1
            connection.terminate()
        else:
            self._idle.append((connection, asyncio.get_running_loop().time()))
        self._tell()

    def _tell(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


async def dial(url: str, *, cached_statements: int) -> Connection:
    """A new connection whose silent death is noticed within half a minute."""
    connection = await asyncpg.connect(url, statement_cache_size=cached_statements, timeout=_CONNECT_SECONDS)
    _keep_alive(connection)
    return connection


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
