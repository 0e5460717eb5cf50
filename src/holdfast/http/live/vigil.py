"""The vigil over open streams: who may no longer read is dismissed.

Tokens and logins are looked at every second, with one question for all: who is revoked is gone within two. Whom the
host app has let in is asked for again every ten seconds, as if their request had come once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from holdfast.access.access import Access
from holdfast.access.principals import Principal
from holdfast.clock import Clock
from holdfast.errors import HoldfastError

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
