"""News of sessions: whether there are more runs, looked up for all that are followed in this process at once."""

from __future__ import annotations

import asyncio

from holdfast.agents import queries
from holdfast.app import Holdfast, core_of
from holdfast.errors import HoldfastError, NotFound, Unavailable
from holdfast.kernel.bounds import READS, bound

_LOOK = 0.5  # seconds between two looks


class FollowedSession:
    """What is known of one session, and who waits for more."""

    def __init__(self) -> None:
        self.readers = 0
        self.runs: int | None = 0  # that it has had; None: it is gone
        self._news = asyncio.Event()

    def tell(self, runs: int | None) -> None:
        if runs != self.runs:
            self.runs = runs
            news, self._news = self._news, asyncio.Event()
            news.set()

    async def news(self) -> None:
        await self._news.wait()


class SessionNews:
    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self.followed: dict[str, FollowedSession] = {}
        self.looks = 0
        self._task: asyncio.Task[None] | None = None

    async def more_than(self, runs: int, session: str) -> None:
        """Return when the session has had more runs than these; `NotFound` when it is removed."""
        followed = self.followed.setdefault(session, FollowedSession())
        followed.readers += 1
        if self._task is None or self._task.done():
            with bound(READS):  # the look is for all who follow, of any tenant
                self._task = asyncio.create_task(self._keep(), name="news of sessions")
        try:
            while followed.runs is not None and followed.runs <= runs:
                await followed.news()
        finally:
            self._leave(session, followed)
        if followed.runs is None:
            raise NotFound(f"there is no session {session} in this database.")

    def _leave(self, session: str, followed: FollowedSession) -> None:
        followed.readers -= 1
        if not followed.readers and self.followed.get(session) is followed:
            del self.followed[session]
        if not self.followed and self._task is not None:
            self._task.cancel()

    async def _keep(self) -> None:
        core = core_of(self._hf)
        while self.followed:
            await core.ports.clock.sleep(_LOOK)
            self.looks += 1
            asked = list(self.followed.items())
            try:
                found = await core.runtime().transact(queries.runs_had, [session for session, _ in asked])
            except HoldfastError as problem:  # there is no news
                if isinstance(problem, Unavailable):
                    core.ports.try_again(problem)
                continue
            for session, followed in asked:
                followed.tell(found.get(session))
