"""What is live in one process: channels, samples, checkups, the vigil, and how many streams are open."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.agents import queries
from holdfast.agents.api.run import Run
from holdfast.agents.api.session import Session
from holdfast.agents.doctor import examine_app
from holdfast.agents.events.reader import TopicEvent, newest_cursor
from holdfast.agents.overviews import AgentNow, fleet_now
from holdfast.agents.values import RunRecord
from holdfast.app import Holdfast, core_of
from holdfast.errors import HoldfastError, NotFound, StoreUnavailable, Unavailable
from holdfast.events import Event, EventsPruned, RunEnded
from holdfast.http.live.responses import IdleWatch, LiveResponse, WatchedStream
from holdfast.http.security.checks import StreamCounts
from holdfast.http.sse import frame, frame_of
from holdfast.kernel import watch
from holdfast.kernel.database import READS, Bounds, bound, bounds_now
from holdfast.kernel.doctor import Finding
from holdfast.values import Quantiles, as_json, quantiles
from holdfast.values.queues import QueueCounts

# Checkups: what the doctor says of the store, one look every half minute for all who watch, in this process.


CHECKUP_EVERY = 30.0


class Checkup:
    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._last: Sequence[Finding] | None = None
        self._looked = float("-inf")
        self._looking = asyncio.Lock()

    async def findings(self) -> Sequence[Finding]:
        """What the doctor says, or said less than half a minute ago."""
        clock = core_of(self._hf).ports.clock
        async with self._looking:
            if self._last is None or clock.monotonic() - self._looked >= CHECKUP_EVERY:
                self._last = await examine_app(core_of(self._hf))
                self._looked = clock.monotonic()
        return self._last


# Samples of the fleet: one look every two seconds for all who watch, in this process.


SAMPLE_EVERY = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The fleet at one moment. What ended is of the last minute, and so are the times."""

    at: datetime
    queues: list[QueueCounts]
    agents: list[AgentNow]
    inquiries: int
    workers: int
    slots: int
    active: int
    closed_lanes: int
    lapsed_leases: int
    oldest_pending: dict[str, float]  # seconds, by queue
    waiting_behind: dict[str, int]  # runs, by the closed lane
    wait_seconds: dict[str, Quantiles]  # from enqueuing to the first claim, by queue
    duration_seconds: dict[str, Quantiles]  # of the attempts that ended jobs, by queue
    turn_seconds: dict[str, Quantiles]  # by model


class Sampler:
    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._last: Sample | None = None
        self._looked = float("-inf")
        self._looking = asyncio.Lock()

    async def sample(self) -> Sample:
        """The fleet as it is, or was less than two seconds ago."""
        clock = core_of(self._hf).ports.clock
        async with self._looking:
            if self._last is None or clock.monotonic() - self._looked >= SAMPLE_EVERY:
                self._last = await self._look()
                self._looked = clock.monotonic()
        return self._last

    async def samples(self) -> AsyncIterator[Sample]:
        """One now, and then one every two seconds; none while the store is away."""
        while True:
            try:
                yield await self.sample()
            except HoldfastError as problem:
                if isinstance(problem, Unavailable):
                    core_of(self._hf).ports.try_again(problem)
            await core_of(self._hf).ports.clock.sleep(SAMPLE_EVERY)

    async def _look(self) -> Sample:
        hf, transact = self._hf, core_of(self._hf).runtime().transact
        now = await transact(fleet_now)
        workers = [each for each in await hf.workers.list(limit=1_000) if not each.silent]
        queues = list(await hf.queues.stats())
        busy = [each.name for each in queues if each.succeeded or each.failed or each.cancelled]
        times = await transact(watch.latencies, busy)
        lanes = await hf.lanes.list()
        return Sample(
            at=now.at,
            queues=queues,
            agents=now.agents,
            inquiries=now.inquiries,
            workers=len(workers),
            slots=sum(each.slots for each in workers),
            active=sum(each.active for each in workers),
            closed_lanes=len(lanes),
            lapsed_leases=now.lapsed,
            oldest_pending=now.oldest_pending,
            waiting_behind={each.name: each.waiting for each in lanes},
            wait_seconds={name: quantiles(*each[:3]) for name, each in times.items()},
            duration_seconds={name: quantiles(*each[3:]) for name, each in times.items()},
            turn_seconds=now.turn_seconds,
        )


# News of sessions: whether there are more runs, looked up for all that are followed in this process at once.


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


# What a reader of the fleet wants to hear of: an agent, a session, one run, or a run and all runs below it.


_REMEMBERED = 10_000  # runs that one reader knows


@dataclass(frozen=True, slots=True)
class RunLinks:
    """What a run belongs to."""

    agents: frozenset[str]  # its agent's id and name
    session: str
    root: str


_NOTHING = RunLinks(frozenset(), "", "")


class EventFilter:
    """Not every topic says what its run belongs to: then the run is looked up, once."""

    def __init__(
        self,
        look: Callable[[str], Awaitable[RunRecord]],
        *,
        agent: str | None = None,
        session: str | None = None,
        run: str | None = None,
        root: str | None = None,
    ) -> None:
        self._look = look
        self._agent = agent
        self._session = session
        self._run = run
        self._root = root
        self._known: dict[str, RunLinks] = {}

    async def fits(self, event: TopicEvent) -> bool:
        if self._run not in (None, event.run):
            return False
        if self._session is not None and event.payload.get("session_id", self._session) != self._session:
            return False
        if (self._agent, self._session, self._root) == (None, None, None):
            return True
        about = await self._about(event)
        return (
            (self._agent is None or self._agent in about.agents)
            and self._session in (None, about.session)
            and self._root in (None, about.root)
        )

    async def _about(self, event: TopicEvent) -> RunLinks:
        known = self._known.get(event.run)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[event.run] = await self._found(event)
        return known

    async def _found(self, event: TopicEvent) -> RunLinks:
        said = event.payload
        if event.topic == "run_created" and said.get("parent_run_id") is None:
            return RunLinks(frozenset({said["agent_id"], said["agent_name"]}), said["session_id"], event.run)
        try:
            run = await self._look(event.run)
        except NotFound:
            return _NOTHING
        return RunLinks(frozenset({run.agent, run.agent_name}), run.session, run.root)


# Channels: the events of one run for all who follow it in this process.
#
# A channel reads the run once and encodes each event once, and keeps the last of them as bytes. Who asks for earlier
# ones
# pages alone until it has caught up. A reader that had caught up and then falls out of what is kept is let go: it
# comes
# back with its last number, and misses nothing.


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
        self._vigil = IdleWatch(hf.access, self._clock)
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
