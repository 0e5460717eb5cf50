"""The vigil over open streams: who is revoked is dismissed, within two seconds. One question a second for all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.access.access import Access
from holdfast.clock import Clock
from holdfast.errors import HoldfastError

_LOOK = 1.0


@dataclass(frozen=True, slots=True)
class WatchedStream:
    """Whose stream it is, and by what: the id of a token, the secret of a login, or neither."""

    name: str
    token: str | None = None
    login: str | None = None


class Vigil:
    def __init__(self, access: Access, clock: Clock) -> None:
        self._access = access
        self._clock = clock
        self._over: dict[asyncio.Event, WatchedStream] = {}
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def over(self, watched: WatchedStream) -> Iterator[asyncio.Event]:
        """Around a stream: the event is set when its reader may no longer read."""
        dismissed = asyncio.Event()
        self._over[dismissed] = watched
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep(), name="vigil")
        try:
            yield dismissed
        finally:
            del self._over[dismissed]
            if not self._over and self._task is not None:
                self._task.cancel()

    async def _keep(self) -> None:
        while self._over:
            with contextlib.suppress(HoldfastError):  # the store is away: nobody is dismissed for that
                await self._look()
            await self._clock.sleep(_LOOK)

    async def _look(self) -> None:
        tokens = {each.token for each in self._over.values() if each.token is not None}
        logins = {each.login for each in self._over.values() if each.login is not None}
        live_tokens = await self._access.tokens.live(tokens) if tokens else frozenset()
        live_logins = await self._access.logins.live(logins) if logins else frozenset()
        for dismissed, each in list(self._over.items()):
            lost = each.token is not None and each.token not in live_tokens
            if lost or (each.login is not None and each.login not in live_logins):
                dismissed.set()
