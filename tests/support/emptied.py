"""Labs on PostgreSQL without a new database for each: one that was used is emptied, and used again."""

from __future__ import annotations

import asyncio

from holdfast.settings import Settings
from holdfast.testing.databases import FreshDatabase, PostgresServer
from tests.support.stores import SharedDatabase

SCHEMA = Settings().schema


class EmptiedDatabases:
    """A server whose databases go from lab to lab, as those of `PostgresServer` do not."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._all: list[EmptiedDatabase] = []
        self._free: list[EmptiedDatabase] = []

    async def make(self, settings: Settings) -> FreshDatabase:
        if settings.schema != SCHEMA:
            return await self._server.make(settings)
        if not self._free:
            self._all.append(EmptiedDatabase(await self._server.make(settings), self._free))
            self._free.append(self._all[-1])
        return self._free.pop()

    async def close(self) -> None:
        for each in self._all:
            each.shared.close()
        await self._server.close()


class EmptiedDatabase:
    longest_step_us: int | None = None

    def __init__(self, made: FreshDatabase, free: list[EmptiedDatabase]) -> None:
        self.url = made.url
        self.shared = SharedDatabase(made.url, f"insert into {SCHEMA}.lab_clock values (0)")
        self._made = made
        self._free = free

    async def follow(self, us: int) -> None:
        await self._made.follow(us)

    async def remove(self) -> None:
        await asyncio.to_thread(self.shared.take_back)
        self._free.append(self)

    def abandon(self) -> None:
        """Its connections may outlive their loop, so no other lab gets it."""
        self._made.abandon()
