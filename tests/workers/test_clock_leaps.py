"""The store's clock leaps by an hour under live workers: nothing is taken, lanes go on, every job ends once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import pytest

from holdfast import Holdfast
from holdfast.clock import Ports, SystemClock
from holdfast.observe import Event
from tests.conftest import fresh_file
from tests.support.apps import PATIENCE, attempts, eventually, happens, in_state, outcomes, settings_with, working

HOUR = 3_600
JOBS = 300  # three seconds at the rate of the lane: time enough to set the clock meanwhile
QUICK: dict[str, Any] = {
    "heartbeat": "300ms",
    "poll_interval": "50ms",
    "sweep_interval": "50ms",
    "drain_grace": "5s",
}
# As the migration has it, but for the offset.
NOW = """
create table holdfast.test_offset (us bigint not null);
insert into holdfast.test_offset values (0);
create or replace function holdfast.now_us() returns bigint language sql stable parallel safe as
$$ select cast(extract(epoch from statement_timestamp()) * 1000000 as bigint) + (select us from holdfast.test_offset) $$
"""


@dataclass
class LeapingClock(SystemClock):
    """The wall clock of a machine that somebody sets."""

    offset_us: int = 0

    def wall_us(self) -> int:
        return super().wall_us() + self.offset_us


class Site(NamedTuple):
    """A database, the clock of whoever uses it, and a way to set the database's clock."""

    url: str
    ports: Ports
    leap: Callable[[int], Awaitable[None]]

    def app(self, **settings: Any) -> Holdfast:
        chosen = settings_with(**{**QUICK, **settings})
        return Holdfast(self.url, settings=chosen, embedded=False, ports=self.ports)


@pytest.fixture
def site(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> Site:
    if dialect == "sqlite":
        clock = LeapingClock()

        async def set_wall(seconds: int) -> None:
            clock.offset_us += seconds * 1_000_000

        return Site(fresh_file(tmp_path, request).url, Ports(clock), set_wall)
    url: str = request.getfixturevalue("postgres_url")

    async def set_server(seconds: int) -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(f"update holdfast.test_offset set us = us + {seconds * 1_000_000}")
        await connection.close()

    async def replace() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(NOW)
        await connection.close()

    asyncio.run(replace())
    return Site(url, Ports(), set_server)


class Beats:
    """Waits until every worker has beaten a few times more: they have all seen the new time then, and looked."""

    def __init__(self, site: Site, workers: int) -> None:
        self._counts: Counter[int] = Counter()
        self._workers = workers
        site.ports.events.listen(self._heard, ["heartbeat.done"])

    def _heard(self, event: Event) -> None:
        self._counts[event.metadata["incarnation"]] += 1

    async def some(self) -> None:
        before = Counter(self._counts)

        async def reached() -> bool:
            return sum(count >= before[seq] + 4 for seq, count in self._counts.items()) >= self._workers

        await eventually(reached)


@pytest.mark.long
@pytest.mark.parametrize("seconds", [HOUR, -HOUR], ids=["forward", "back"])
async def test_live_workers_keep_their_leases_over_a_leap(site: Site, seconds: int) -> None:
    apps = [site.app(), site.app()]
    gate = asyncio.Event()

    async def work() -> str:
        await gate.wait()
        return "done"

    task, _ = [app.job(name="work")(work) for app in apps]
    first = apps[0]
    async with AsyncExitStack() as stack:
        for app in apps:
            stack.push_async_callback(app.close)
        workers = [await stack.enter_async_context(working(app)) for app in apps]
        beats = Beats(site, len(apps))
        jobs = [await task.enqueue() for _ in range(20)]
        for job in jobs:
            await in_state(first, job.id, "running")
        await beats.some()
        await site.leap(seconds)
        await beats.some()
        later = await task.enqueue()
        await in_state(first, later.id, "running")
        await beats.some()
        assert {row.seq for row in await first.workers.list()} == {worker.seq for worker in workers}
        gate.set()
        for job in [*jobs, later]:
            async with asyncio.timeout(PATIENCE):
                assert await job.result() == "done"
            row = await job.refresh()
            assert (row.rescues, row.attempts) == (0, 1)
            assert await outcomes(first, job.id) == ["succeeded"]


async def shows_presence(app: Holdfast) -> bool:
    return all(row.presence for row in await app.workers.list())


async def test_a_worker_that_comes_after_a_leap_takes_nothing_from_those_that_live(site: Site) -> None:
    """It has no time of before to compare with; but it sees others that show their presence and look dead."""
    before, after = site.app(heartbeat="20s"), site.app()
    begun, gate = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        begun.set()
        await gate.wait()
        return "done"

    task, _ = [app.job(name="work")(work) for app in (before, after)]
    async with AsyncExitStack() as stack:
        for app in (before, after):
            stack.push_async_callback(app.close)
        worker = await stack.enter_async_context(working(before))
        job = await task.enqueue()
        await happens(begun)
        await eventually(lambda: shows_presence(before))  # a worker says so a moment after it has registered
        await site.leap(HOUR)
        beats = Beats(site, 1)
        await stack.enter_async_context(working(after))
        await beats.some()
        assert worker.seq in {row.seq for row in await after.workers.list()}
        gate.set()
        async with asyncio.timeout(PATIENCE):
            assert await job.result() == "done"
        assert await outcomes(after, job.id) == ["succeeded"]


@pytest.mark.long
@pytest.mark.parametrize("seconds", [HOUR, -HOUR], ids=["forward", "back"])
async def test_a_lane_goes_on_at_its_rate_over_a_leap(site: Site, seconds: int) -> None:
    app = site.app()
    begun: list[int] = []
    halfway = asyncio.Event()

    @app.job(name="work", rate="100/s")
    async def work(number: int) -> None:
        begun.append(number)
        if len(begun) == 20:
            halfway.set()

    async with AsyncExitStack() as stack:
        stack.push_async_callback(app.close)
        await stack.enter_async_context(working(app))
        jobs = await work.enqueue_many([(number,) for number in range(JOBS)])
        await happens(halfway)
        await site.leap(seconds)
        for job in jobs:
            async with asyncio.timeout(PATIENCE):
                await job.result()
        claims = sorted([(await attempts(app, job.id))[0].started_at for job in jobs])
    assert sorted(begun) == list(range(JOBS))
    gap = max(range(1, len(claims)), key=lambda place: claims[place] - claims[place - 1])
    sides = (claims[:gap], claims[gap:])
    assert all(len(side) > 1 for side in sides)
    for side in sides:  # on either side of the leap no more start than the rate allows
        assert side[-1] - side[0] >= (len(side) - 1) * timedelta(milliseconds=10)
