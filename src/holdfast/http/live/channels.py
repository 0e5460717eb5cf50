"""Channels: the events of one run for all who follow it in this process.

A channel reads the run once and encodes each event once, and keeps the last of them as bytes. Who asks for earlier ones
pages alone until it has caught up. A reader that had caught up and then falls out of what is kept is let go: it comes
back with its last number, and misses nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any

from holdfast.agents.api.run import Run
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.events import Event, EventsPruned, RunEnded
from holdfast.http.live.frames import frame_of
from holdfast.kernel.bounds import Bounds, bounds_now

KEPT_BYTES = 1_048_576
_KEPT_BEFORE = 200  # events before the present one with which a channel begins
_PAGE = 500

ChannelPlace = tuple[str, Bounds | None]  # a run, and the bounds of those who follow it


class Channel:
    def __init__(self, run: Run[Any], begin: int) -> None:
        self._run = run
        self._kept: deque[tuple[int, bytes]] = deque()
        self._size = 0
        self.gone = begin  # the number of the last event that is not kept
        self.last = begin
        self.ended = False
        self.problem: HoldfastError | None = None
        self.readers = 0
        self.encoded = 0
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._follow(), name=f"channel {run.id}")

    async def _follow(self) -> None:
        try:
            async for event in self._run.stream(self.last):
                self._keep(event)
        except HoldfastError as problem:
            self.problem = problem
        finally:
            self.ended = True
            self._tell()

    def _keep(self, event: Event) -> None:
        self.encoded += 1
        data = frame_of(event)
        self._kept.append((event.seq, data))
        self._size += len(data)
        while self._size > KEPT_BYTES and len(self._kept) > 1:
            self.gone, old = self._kept.popleft()
            self._size -= len(old)
        self.last = event.seq
        self.ended = isinstance(event, RunEnded)
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def since(self, after: int) -> bytes:
        """All that is kept behind an event, in one piece."""
        found: list[bytes] = []
        for seq, data in reversed(self._kept):
            if seq <= after:
                break
            found.append(data)
        return b"".join(reversed(found))

    async def news(self) -> None:
        await self._news.wait()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class Channels:
    """The channels of one event loop, by run and by the bounds of those who follow it.

    What is refused to one tenant ends the streams of that tenant alone.
    """

    def __init__(self, run_of: Callable[[str], Run[Any]]) -> None:
        self._run_of = run_of
        self.open: dict[ChannelPlace, Channel] = {}

    def of(self, run: str) -> Channel:
        """The channel that follows a run within the present bounds."""
        return self.open[run, bounds_now()]

    async def follow(self, run: str, after: int) -> AsyncGenerator[bytes, None]:
        """The frames of a run behind an event, as many at once as there are, until the run has ended."""
        place = run, bounds_now()
        channel = await self._join(place, after)
        caught_up = False
        try:
            while True:
                if after < channel.gone:
                    if caught_up:
                        raise StoreUnavailable(
                            f"a reader of run {run} is too far behind: come back with its last number."
                        )
                    after, data = await self._page(run, after, channel.gone)
                    yield data
                    continue
                data, last, ended = channel.since(after), channel.last, channel.ended
                if data:
                    after, caught_up = last, True
                    yield data
                elif ended:
                    break
                else:
                    await channel.news()
            if channel.problem is not None:
                raise channel.problem
        finally:
            await self._leave(place, channel)

    async def _join(self, place: ChannelPlace, after: int) -> Channel:
        run, channel = place[0], self.open.get(place)
        if channel is None or (channel.ended and channel.problem is not None):
            now = await self._run_of(run).refresh()
            channel = self.open.get(place)
            if channel is None or channel.problem is not None:
                channel = self.open[place] = Channel(
                    self._run_of(run), min(max(after, now.events - _KEPT_BEFORE), now.events)
                )
        channel.readers += 1
        return channel

    async def _page(self, run: str, after: int, upto: int) -> tuple[int, bytes]:
        """The number of its last event, and a page of what comes before what a channel keeps."""
        events = [event for event in await self._run_of(run).events(after, limit=_PAGE) if event.seq <= upto]
        last = max((_last_of(event) for event in events), default=upto)
        return last, b"".join(map(frame_of, events))

    async def _leave(self, place: ChannelPlace, channel: Channel) -> None:
        channel.readers -= 1
        if not channel.readers:
            if self.open.get(place) is channel:
                del self.open[place]
            await channel.close()


def _last_of(event: Event) -> int:
    return event.last if isinstance(event, EventsPruned) else event.seq
