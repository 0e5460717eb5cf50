"""What is live in one process: channels, samples, checkups, the vigil, and how many streams are open."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

from holdfast.agents.api.session import Session
from holdfast.agents.events.topics import newest_cursor
from holdfast.app import Holdfast, core_of
from holdfast.http.live.channels import Channels
from holdfast.http.live.checkup import Checkup
from holdfast.http.live.frames import frame
from holdfast.http.live.responses import LiveResponse
from holdfast.http.live.sampler import Sample, Sampler
from holdfast.http.live.session_news import SessionNews
from holdfast.http.live.vigil import Vigil, WatchedStream
from holdfast.http.live.wanted import EventFilter
from holdfast.http.security.caps import StreamCounts
from holdfast.values import as_json

_ID = re.compile(rb"^id: (\d+)$", re.M)


class Live:
    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._clock = core_of(hf).ports.clock
        self.channels = Channels(lambda id: hf.runs[id])
        self.news = SessionNews(hf)
        self.sampler = Sampler(hf)
        self.checkup = Checkup(hf)
        self.counts = StreamCounts()
        self._vigil = Vigil(hf.access, self._clock)
        self._framed: tuple[Sample, bytes] | None = None

    def respond(self, frames: AsyncIterator[bytes], watched: WatchedStream) -> LiveResponse:
        return LiveResponse(frames, self._clock, watched, self._vigil, self.counts)

    def watch(self, watched: WatchedStream) -> contextlib.AbstractContextManager[asyncio.Event]:
        """Around a stream of another kind: the event is set when its reader may no longer be here."""
        return self._vigil.over(watched)

    def run(self, id: str, after: int) -> AsyncIterator[bytes]:
        return self.channels.follow(id, after)

    async def session(self, session: Session, after: tuple[int, int]) -> AsyncIterator[bytes]:
        """The root runs of a session, one after the other; an event's id is the run's place and its own number."""
        ordinal, seq = after
        following = ordinal - 1 if seq else ordinal
        while True:
            now = await session.refresh()
            run = await session.run_after(following) if now.runs > following else None
            if run is None:
                await self.news.more_than(now.runs, now.id)
                continue
            begin = seq if run.ordinal == ordinal else 0
            marked = b"id: %d.\\1" % run.ordinal
            async with contextlib.aclosing(self.channels.follow(run.id, begin)) as frames:
                async for data in frames:
                    yield _ID.sub(marked, data)
            following = run.ordinal

    async def newest_cursor(self) -> str:
        return await newest_cursor(await core_of(self._hf).opened())

    async def fleet(self, after: str, **filters: str | None) -> AsyncIterator[bytes]:
        """What happens to all runs, and every two seconds a sample of the fleet. A sample has no id."""
        waiting: asyncio.Queue[bytes] = asyncio.Queue(1_000)
        wanted = EventFilter(self._hf.runs.get, **filters)

        async def topics() -> None:
            async for event in self._hf.events(after=after):
                if await wanted.fits(event):
                    await waiting.put(frame(event.cursor, event.topic, as_json(event)))

        async def samples() -> None:
            async for sample in self.sampler.samples():
                await waiting.put(self._sample_frame(sample))

        tasks = [asyncio.create_task(each()) for each in (topics, samples)]
        getting = asyncio.ensure_future(waiting.get())
        try:
            while True:
                await asyncio.wait({getting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    for task in tasks:
                        if task.done():
                            task.result()
                    return
                parts = [getting.result()]
                while not waiting.empty():
                    parts.append(waiting.get_nowait())
                getting = asyncio.ensure_future(waiting.get())
                yield b"".join(parts)
        finally:
            for each in (getting, *tasks):
                each.cancel()
            await asyncio.gather(getting, *tasks, return_exceptions=True)

    def _sample_frame(self, sample: Sample) -> bytes:
        """The frame of a sample, made once for all who read it."""
        if self._framed is None or self._framed[0] is not sample:
            self._framed = sample, frame(None, "sample", as_json(sample))
        return self._framed[1]
