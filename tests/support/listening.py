"""A listener outside of any app: what PostgreSQL notifies, in order, up to a word of our own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from tests.support.apps import PATIENCE

HINTS = "holdfast.hint"
LAST = "the last note of this test"


class Outside:
    def __init__(self, connection: asyncpg.Connection, channel: str) -> None:
        self._connection = connection
        self._channel = channel
        self._notes: asyncio.Queue[str] = asyncio.Queue()

    def hear(self, *call: object) -> None:
        self._notes.put_nowait(str(call[-1]))

    async def so_far(self) -> list[str]:
        """What was notified before now, and has not been asked for before."""
        await self.say(LAST)
        heard: list[str] = []
        async with asyncio.timeout(PATIENCE):
            while (note := await self._notes.get()) != LAST:
                heard.append(note)
        return heard

    async def say(self, note: str) -> None:
        await self._connection.execute("select pg_notify($1, $2)", self._channel, note)


@asynccontextmanager
async def listening(url: str, channel: str = HINTS) -> AsyncIterator[Outside]:
    connection = await asyncpg.connect(url)
    try:
        outside = Outside(connection, channel)
        await connection.add_listener(channel, outside.hear)
        yield outside
    finally:
        await connection.close()
