"""Slots and threads: never more handlers at once than the settings say, and never fewer for long."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support.apps import MakeApp, eventually, happens


class Crowd:
    """Counts who is inside, and lets them out when told."""

    def __init__(self, full: int) -> None:
        self.inside = self.most = 0
        self.full = asyncio.Event()
        self.open = threading.Event()
        self.out = asyncio.Event()
        self._enough = full
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()

    def enter(self) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            if self.inside >= self._enough:
                self._loop.call_soon_threadsafe(self.full.set)

    def leave(self) -> None:
        with self._lock:
            self.inside -= 1

    def release(self) -> None:
        self.open.set()
        self.out.set()


async def test_no_more_handlers_at_once_than_slots(make_app: MakeApp) -> None:
    hf = make_app(concurrency=3)
    crowd = Crowd(full=3)

    @hf.job
    async def work() -> None:
        crowd.enter()
        await crowd.out.wait()
        crowd.leave()

    async with hf:
        jobs = await work.enqueue_many([{}] * 10)
        await happens(crowd.full)
        running = await hf.jobs.list(state="running")
        assert (len(running), crowd.inside) == (3, 3)
        crowd.release()
        for job in jobs:
            await job.result()
        assert crowd.most == 3


@pytest.mark.parametrize("threads", [0, 2])
async def test_no_more_threads_than_the_settings_say(make_app: MakeApp, threads: int) -> None:
    hf = make_app(concurrency=4, threads=threads)
    most = threads or 4
    crowd = Crowd(full=most)

    @hf.job
    def work() -> None:
        crowd.enter()
        crowd.open.wait(60)
        crowd.leave()

    async with hf:
        jobs = await work.enqueue_many([{}] * 10)
        try:
            await happens(crowd.full)
        finally:
            crowd.release()
        for job in jobs:
            await job.result()
        assert crowd.most == most


async def test_a_blocked_thread_does_not_hold_up_async_handlers(make_app: MakeApp) -> None:
    hf = make_app(concurrency=2)
    gate = threading.Event()

    @hf.job
    def stuck() -> None:
        gate.wait(60)

    @hf.job
    async def quick(number: int) -> int:
        return number

    async with hf:
        job = await stuck.enqueue()
        try:
            jobs = await quick.enqueue_many([(n,) for n in range(20)])
            assert [await each.result() for each in jobs] == list(range(20))
        finally:
            gate.set()
        await job.result()


async def test_a_freed_slot_is_filled_at_once(make_app: MakeApp) -> None:
    """Without a poll: the next hint or poll would be minutes away."""
    hf = make_app(concurrency=1, poll_interval="10m", sweep_interval="10m")
    ran: list[int] = []

    @hf.job
    async def work(number: int) -> None:
        ran.append(number)

    async with hf:
        jobs = await work.enqueue_many([(n,) for n in range(30)])
        for job in jobs:
            await job.result()
        assert ran == list(range(30))


async def test_a_worker_says_how_busy_it_is(make_app: MakeApp) -> None:
    hf = make_app(concurrency=5, heartbeat="100ms")
    crowd = Crowd(full=2)

    @hf.job
    async def work() -> None:
        crowd.enter()
        await crowd.out.wait()

    async with hf:
        jobs = await work.enqueue_many([{}] * 2)
        await happens(crowd.full)

        async def busy() -> bool:
            (worker,) = await hf.workers.list()
            return (worker.active, worker.leases, worker.slots) == (2, 2, 5)

        await eventually(busy)
        crowd.release()
        for job in jobs:
            await job.result()
