"""The virtual-time loop: a seed replays exactly, time only jumps, and what crashed stays dead."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from random import Random
from typing import Any

import pytest

from holdfast.clock import Clock
from tests.support.virtual_time import (
    WALL_EPOCH_US,
    Deadlock,
    Livelock,
    Node,
    NodeDown,
    OutsideWorld,
    VirtualLoop,
    current_node,
)


@contextmanager
def simulation(seed: int = 1) -> Iterator[VirtualLoop]:
    loop = VirtualLoop(Random(seed))
    try:
        yield loop
    finally:
        loop.close()
    assert loop.failures == []


def simulate(main: Callable[[VirtualLoop], Coroutine[Any, Any, object]], seed: int = 1) -> VirtualLoop:
    with simulation(seed) as loop:
        loop.run_until_complete(main(loop))
    return loop


async def forever() -> None:
    await asyncio.sleep(math.inf)


async def chatter() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


class TestTime:
    def test_a_day_passes_at_once(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            await asyncio.sleep(86_400)

        assert simulate(main).time() == 86_400.0

    def test_many_small_sleeps_do_not_drift(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            for _ in range(1_000):
                await asyncio.sleep(0.1)

        assert simulate(main).now_us == 100_000_000

    def test_timers_run_in_order_of_time_then_of_arming(self) -> None:
        ran: list[str] = []
        with simulation() as loop:
            loop.call_later(2, ran.append, "c")
            loop.call_later(1, ran.append, "a")
            loop.call_at(1, ran.append, "b")
            loop.call_later(-1, ran.append, "now")
            loop.run_until_complete(asyncio.sleep(3))
        assert ran == ["now", "a", "b", "c"]

    def test_the_shortest_sleep_moves_time(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            deadline = loop.time() + 0.1 + 0.2
            while loop.time() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(deadline - loop.time())

        assert simulate(main).now_us in (300_000, 300_001)

    def test_cancelled_timers_neither_fire_nor_move_time(self) -> None:
        ran: list[int] = []

        async def main(loop: VirtualLoop) -> None:
            timers = [loop.call_later(1 + n, ran.append, n) for n in range(1_000)]
            for n, timer in enumerate(timers):
                if n % 100:
                    timer.cancel()
                    assert timer.cancelled()
            await asyncio.sleep(5_000)

        simulate(main)
        assert ran == list(range(0, 1_000, 100))

        with simulation() as loop:
            loop.call_later(50, ran.append, 1).cancel()
            with pytest.raises(Deadlock):
                loop.run_forever()
            assert loop.now_us == 0

    def test_a_timer_knows_when(self) -> None:
        with simulation() as loop:
            assert loop.call_later(1.5, print).when() == 1.5
            assert loop.call_at(2.5, print).when() == 2.5


class TestOrder:
    @staticmethod
    def _run(seed: int) -> tuple[str, str]:
        order: list[str] = []

        async def say(letter: str) -> None:
            for _ in range(3):
                order.append(letter)
                await asyncio.sleep(0)

        async def main(loop: VirtualLoop) -> None:
            nodes = [loop.create_node(letter) for letter in "abc"]
            await asyncio.gather(*[node.spawn(say(node.name)) for node in nodes])
            loop.trace("".join(order))

        digest = simulate(main, seed).trace_hash()
        return "".join(order), digest

    def test_the_same_seed_replays_exactly(self) -> None:
        assert [self._run(seed) for seed in range(20)] == [self._run(seed) for seed in range(20)]

    def test_other_seeds_explore_other_orders(self) -> None:
        runs = [self._run(seed) for seed in range(50)]
        assert len({order for order, _ in runs}) > 20
        assert len({digest for _, digest in runs}) > 20

    def test_plain_callbacks_of_a_node_keep_their_order(self) -> None:
        ran: list[int] = []

        async def call() -> None:
            for n in range(20):
                asyncio.get_running_loop().call_soon(ran.append, n)

        async def main(loop: VirtualLoop) -> None:
            loop.create_node("other").spawn(chatter)
            await loop.create_node("caller").spawn(call)
            await asyncio.sleep(1)

        for seed in range(30):
            simulate(main, seed)
        assert ran == list(range(20)) * 30

    def test_tasks_of_a_node_sometimes_change_places(self) -> None:
        orders = set[str]()

        async def main(loop: VirtualLoop) -> None:
            order: list[str] = []

            async def step(letter: str) -> None:
                order.append(letter)

            await asyncio.gather(*[step(letter) for letter in "abc"])
            orders.add("".join(order))

        for seed in range(50):
            simulate(main, seed)
        assert "abc" in orders
        assert len(orders) > 1

    def test_the_trace_tells_events_times_and_nodes_apart(self) -> None:
        def digest(event: str, delay: float, node: str) -> str:
            async def speak(loop: VirtualLoop) -> None:
                await asyncio.sleep(delay)
                loop.trace(event)

            async def main(loop: VirtualLoop) -> None:
                await loop.create_node(node).spawn(speak(loop))

            return simulate(main).trace_hash()

        digests = [digest("e", 1, "n"), digest("f", 1, "n"), digest("e", 2, "n"), digest("e", 1, "m")]
        assert len(set(digests)) == 4
        assert digests[0] == digest("e", 1, "n")

    def test_the_trace_has_the_time_of_every_callback(self) -> None:
        one, two = simulate(lambda _: asyncio.sleep(1)), simulate(lambda _: asyncio.sleep(2))
        assert one.trace_hash() != two.trace_hash()


FROZEN = """
import asyncio, gc, random
from tests.support.virtual_time import VirtualLoop

# others
print(gc.get_freeze_count() > 0)
loop = VirtualLoop(random.Random(7))
loop.run_until_complete(asyncio.sleep(1))
loop.close()
print(gc.get_freeze_count() > 0)
"""

REPLAY = """
import asyncio, gc, random, sys
from tests.support.virtual_time import VirtualLoop

class Cycle:
    def __init__(self, loop):
        self.me, self.loop = self, loop
    def __del__(self):
        if not self.loop.is_closed():
            self.loop.trace("collected")

async def work(loop, n):
    try:
        for _ in range(n % 7 + 1):
            Cycle(loop)
            await asyncio.sleep(n % 3)
    except asyncio.CancelledError:
        loop.trace(f"cancelled {n}")
        raise
    if n == 3:
        raise ValueError

async def main(loop):
    for round in range(300):
        try:
            async with asyncio.TaskGroup() as group:
                for n in range(10):
                    group.create_task(work(loop, n))
        except ExceptionGroup:
            pass
        futures = [loop.create_future() for _ in range(10)]
        for future in futures:
            loop.call_later(round % 2, future.set_result, None)
        done, _ = await asyncio.wait(futures, return_when="FIRST_COMPLETED")
        for future in done:
            loop.trace(str(futures.index(future)))

def run(ballast):
    kept = [object() for _ in range(ballast)]
    loop = VirtualLoop(random.Random(7))
    loop.run_until_complete(main(loop))
    loop.close()
    return loop.trace_hash()

print(run(0), run(12345))
"""


@pytest.mark.long
def test_neither_hash_seed_nor_address_nor_garbage_collection_alters_a_run() -> None:
    digests = set[str]()
    for hash_seed, gc_threshold in (("0", 700), ("1", 50), ("2", 100_000)):
        done = subprocess.run(
            [sys.executable, "-c", f"import gc; gc.set_threshold({gc_threshold})\n{REPLAY}"],
            env={
                **os.environ,
                "PYTHONHASHSEED": hash_seed,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
            capture_output=True,
            text=True,
            check=True,
        )
        digests.update(done.stdout.split())
    assert len(digests) == 1


class TestAsyncio:
    def test_timeout(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(5):
                    await forever()
            assert loop.time() == 5.0
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(forever(), 2)
            async with asyncio.timeout(100):
                await asyncio.sleep(1)
            assert loop.time() == 8.0

        simulate(main)

    def test_task_group_cancels_the_siblings_of_a_failure(self) -> None:
        ended: list[str] = []

        async def patient(name: str) -> None:
            try:
                await forever()
            finally:
                ended.append(name)

        async def together(*works: Coroutine[Any, Any, None]) -> None:
            async with asyncio.TaskGroup() as group:
                for work in works:
                    group.create_task(work)

        async def hasty() -> None:
            await asyncio.sleep(1)
            raise KeyError("x")

        async def main(loop: VirtualLoop) -> None:
            with pytest.raises(ExceptionGroup):
                await together(patient("a"), patient("b"), hasty())

        simulate(main)
        assert sorted(ended) == ["a", "b"]

    def test_gather_wait_and_shield(self) -> None:
        async def after(seconds: float) -> float:
            await asyncio.sleep(seconds)
            return seconds

        async def main(loop: VirtualLoop) -> None:
            assert await asyncio.gather(*[after(n) for n in (3, 1, 2)]) == [3, 1, 2]
            tasks = [loop.create_task(after(n)) for n in (5, 6)]
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            assert done == {tasks[0]}
            assert pending == {tasks[1]}
            inner = asyncio.create_task(after(10))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(inner), 1)
            assert await inner == 10
            assert await tasks[1] == 6

        simulate(main)

    @pytest.mark.parametrize("seed", range(5))
    def test_queue_event_condition_semaphore(self, seed: int) -> None:
        async def main(loop: VirtualLoop) -> None:
            queue: asyncio.Queue[int] = asyncio.Queue(2)
            taken: list[int] = []
            event, condition, semaphore = asyncio.Event(), asyncio.Condition(), asyncio.Semaphore(2)
            inside = most = 0

            async def produce() -> None:
                for n in range(50):
                    await queue.put(n)

            async def consume() -> None:
                while True:
                    taken.append(await queue.get())
                    queue.task_done()
                    if len(taken) == 50:
                        event.set()

            async def enter() -> None:
                nonlocal inside, most
                async with semaphore:
                    inside += 1
                    most = max(most, inside)
                    await asyncio.sleep(1)
                    inside -= 1
                async with condition:
                    condition.notify_all()

            consumer = asyncio.create_task(consume())
            await asyncio.gather(produce(), event.wait(), *[enter() for _ in range(6)])
            await queue.join()
            consumer.cancel()
            assert taken == list(range(50))
            assert most == 2
            waiter = asyncio.create_task(_wait_for(condition))
            await asyncio.sleep(1)
            await enter()
            assert await waiter == "notified"

        simulate(main, seed)

    def test_task_names_do_not_depend_on_earlier_runs(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            unnamed = asyncio.create_task(asyncio.sleep(0))
            assert unnamed.get_name() == "Task-2"
            named = asyncio.create_task(asyncio.sleep(0), name="mine")
            assert named.get_name() == "mine"
            assert asyncio.current_task() in asyncio.all_tasks()
            await asyncio.gather(unnamed, named)

        simulate(main)
        simulate(main)

    def test_an_abandoned_generator_is_closed_in_its_node(self) -> None:
        closed_in: list[Node | None] = []

        async def numbers() -> AsyncIterator[int]:
            try:
                yield 1
                yield 2
            finally:
                await asyncio.sleep(1)
                closed_in.append(current_node())

        async def take_one() -> None:
            async for _ in numbers():
                break
            await asyncio.sleep(5)

        async def tie_up() -> None:
            knot: list[object] = [generator := numbers()]
            knot.append(knot)
            await anext(generator)

        async def main(loop: VirtualLoop) -> None:
            node = loop.create_node("a")
            await node.spawn(take_one)
            await take_one()
            await node.spawn(tie_up)
            gc.collect()
            await asyncio.sleep(5)
            assert closed_in == [node, None, node]

        simulate(main)

    def test_runner_runs_it_even_when_a_node_has_crashed(self) -> None:
        async def main() -> str:
            node = loop.create_node("a")
            node.spawn(forever)
            await asyncio.sleep(1)
            node.crash()
            asyncio.create_task(forever())  # noqa: RUF006 - the runner is to cancel it
            return "done"

        loop = VirtualLoop(Random(1))
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            assert runner.run(main()) == "done"
        assert loop.is_closed()


async def _wait_for(condition: asyncio.Condition) -> str:
    async with condition:
        await condition.wait()
    return "notified"


class TestNodes:
    def test_everything_a_node_starts_belongs_to_it(self) -> None:
        seen: list[Node | None] = []

        async def look() -> None:
            seen.append(current_node())

        async def member(gate: asyncio.Future[None]) -> None:
            await gate
            await look()
            await asyncio.create_task(look())
            await asyncio.gather(look(), look())
            async with asyncio.TaskGroup() as group:
                group.create_task(look())
            asyncio.get_running_loop().call_soon(lambda: seen.append(current_node()))
            asyncio.get_running_loop().call_later(1, lambda: seen.append(current_node()))
            await asyncio.sleep(2)
            await look()

        async def main(loop: VirtualLoop) -> None:
            node = loop.create_node("a")
            gate = loop.create_future()
            task = node.spawn(member(gate), name="member")
            gate.set_result(None)
            await task
            assert task.get_name() == "member"
            assert seen == [node] * 8
            assert current_node() is None

        simulate(main)

    def test_a_process_inherits_no_context(self) -> None:
        secret: ContextVar[str] = ContextVar("secret", default="unset")

        async def read() -> str:
            return secret.get()

        async def main(loop: VirtualLoop) -> None:
            secret.set("mine")
            assert await loop.create_node("a").spawn(read) == "unset"
            assert await asyncio.create_task(read()) == "mine"

        simulate(main)

    def test_a_name_belongs_to_one_living_node(self) -> None:
        with simulation() as loop:
            first = loop.create_node("a")
            with pytest.raises(ValueError, match="'a'"):
                loop.create_node("a")
            first.crash()
            assert loop.create_node("a") is not first
            with pytest.raises(NodeDown):
                first.spawn(forever)
            with pytest.raises(NodeDown):
                first.spawn(forever())


class TestCrash:
    def test_nothing_of_it_ever_runs_again(self) -> None:
        ran: list[str] = []
        at_close: list[str] = []
        loop = VirtualLoop(Random(1))

        def leave(mark: str) -> None:
            (at_close if loop.is_closed() else ran).append(mark)

        async def numbers() -> AsyncIterator[int]:
            try:
                yield 1
                await forever()
            finally:
                leave("generator")

        async def member() -> None:
            loop.call_later(20, leave, "timer")
            asyncio.create_task(forever()).add_done_callback(lambda _: leave("callback"))
            try:
                async for _ in numbers():
                    pass
            except BaseException:
                leave("except")
                raise
            finally:
                leave("finally")

        async def main() -> None:
            node = loop.create_node("a")
            task = node.spawn(member)
            task.add_done_callback(lambda _: leave("done"))
            await asyncio.sleep(10)
            node.crash()
            node.crash()
            node.resume()
            task.cancel()
            del task
            await asyncio.sleep(100)
            gc.collect()
            assert ran == []
            assert len(asyncio.all_tasks()) == 1

        loop.run_until_complete(main())
        digest = loop.trace_hash()
        loop.close()
        assert ran == []
        assert set(at_close) <= {"generator", "except", "finally"}
        assert (loop.trace_hash(), loop.failures) == (digest, [])

    def test_a_lock_it_held_stays_held(self) -> None:
        async def hold(lock: asyncio.Lock) -> None:
            async with lock:
                await forever()

        async def want(lock: asyncio.Lock) -> str:
            try:
                async with asyncio.timeout(60), lock:
                    return "got it"
            except TimeoutError:
                return "timed out"

        async def main(loop: VirtualLoop) -> None:
            lock = asyncio.Lock()
            holder, other = loop.create_node("holder"), loop.create_node("other")
            holder.spawn(hold(lock))
            await asyncio.sleep(1)
            wanting = other.spawn(want(lock))
            await asyncio.sleep(1)
            holder.crash()
            assert await wanting == "timed out"
            assert lock.locked()

        simulate(main)

    def test_callbacks_that_were_ready_do_not_run(self) -> None:
        ran: list[str] = []

        async def member(gate: asyncio.Future[None]) -> None:
            try:
                await gate
            except KeyError:
                ran.append("went on")

        async def main(loop: VirtualLoop) -> None:
            node, gate = loop.create_node("a"), loop.create_future()
            node.spawn(member(gate))
            await asyncio.sleep(1)
            gate.set_exception(KeyError("nobody left to read this"))
            node.crash()
            await asyncio.sleep(1)

        simulate(main)
        assert ran == []

    def test_code_that_crashes_its_own_node_stops_at_its_next_suspension(self) -> None:
        ran: list[str] = []

        async def member(loop: VirtualLoop, node: Node) -> None:
            try:
                node.crash()
                ran.append("same step")
                loop.call_soon(ran.append, "callback")
                asyncio.create_task(forever())  # noqa: RUF006
                await loop.create_future()
            finally:
                if not loop.is_closed():
                    ran.append("finally")

        async def main(loop: VirtualLoop) -> None:
            node = loop.create_node("a")
            node.spawn(member(loop, node))
            await asyncio.sleep(1)

        simulate(main)
        assert ran == ["same step"]

    def test_its_timers_do_not_move_time(self) -> None:
        with simulation() as loop:
            node = loop.create_node("a")
            node.spawn(asyncio.sleep(1_000))
            loop.call_later(1, node.crash)
            with pytest.raises(Deadlock):
                loop.run_forever()
            assert loop.time() == 1.0

    def test_what_runs_at_close_can_reach_nothing_and_is_not_heard(
        self, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
    ) -> None:
        refusals: list[str] = []

        async def cleanup(loop: VirtualLoop) -> None:
            await loop.create_future()

        async def member(loop: VirtualLoop, lock: asyncio.Lock) -> None:
            try:
                async with lock:
                    await forever()
            finally:
                node = current_node()
                assert node is not None
                assert node.crashed
                for reach in (lambda: loop.call_soon(print), lambda: loop.create_task(cleanup(loop))):
                    try:
                        reach()
                    except RuntimeError as refusal:
                        refusals.append(str(refusal))
                try:
                    await cleanup(loop)
                finally:
                    await cleanup(loop)

        async def generate(loop: VirtualLoop, lock: asyncio.Lock) -> AsyncIterator[int]:
            await member(loop, lock)
            yield 1

        async def iterate(loop: VirtualLoop, lock: asyncio.Lock) -> None:
            async for _ in generate(loop, lock):
                pass

        tasks: list[asyncio.Task[None]] = []

        async def main(loop: VirtualLoop) -> None:
            node, lock = loop.create_node("a"), asyncio.Lock()
            tasks.append(node.spawn(member(loop, lock)))
            tasks.append(node.spawn(member(loop, lock)))
            node.spawn(iterate(loop, asyncio.Lock()))
            await asyncio.sleep(1)
            node.spawn(forever, name="never begun")
            node.crash()
            loop.create_task(forever())

        simulate(main)
        tasks.clear()
        gc.collect()
        assert set(refusals) == {"the simulation is over: its loop is closed."}
        assert caplog.records == []
        assert capsys.readouterr().err == ""


class TestPause:
    def test_callbacks_and_due_timers_wait_and_come_in_order(self) -> None:
        ran: list[tuple[str, float]] = []

        def note(what: str) -> None:
            ran.append((what, asyncio.get_running_loop().time()))

        async def member(loop: VirtualLoop) -> None:
            for n in (3, 1, 2):
                loop.call_later(n, note, f"timer {n}")
            loop.call_later(30, note, "later")

        async def main(loop: VirtualLoop) -> None:
            node = loop.create_node("a")
            await node.spawn(member(loop))
            node.pause()
            node.pause()
            task = node.spawn(asyncio.sleep(0, "woke"))
            await asyncio.sleep(10)
            assert ran == []
            assert not task.done()
            node.resume()
            assert await task == "woke"
            await asyncio.sleep(50)

        simulate(main)
        assert ran == [("timer 1", 10.0), ("timer 2", 10.0), ("timer 3", 10.0), ("later", 30.0)]

    def test_others_go_on_meanwhile(self) -> None:
        async def beat(loop: VirtualLoop, beats: list[float]) -> None:
            while True:
                beats.append(loop.time())
                await asyncio.sleep(1)

        async def main(loop: VirtualLoop) -> None:
            stopped, going = list[float](), list[float]()
            node = loop.create_node("stopped")
            node.spawn(beat(loop, stopped))
            loop.create_node("going").spawn(beat(loop, going))
            await asyncio.sleep(2.5)
            node.pause()
            await asyncio.sleep(10)
            node.resume()
            await asyncio.sleep(1)
            assert stopped == [0.0, 1.0, 2.0, 12.5, 13.5][: len(stopped)]
            assert 12.5 in stopped
            assert going == [float(n) for n in range(14)]

        simulate(main)


class TestSkew:
    def test_a_fast_clock_makes_sleeps_and_timeouts_short(self) -> None:
        async def member(loop: VirtualLoop, node: Node) -> None:
            clock: Clock = node.clock
            assert loop.time() == clock.monotonic() == 100.0
            await clock.sleep(10)
            assert loop.time() == clock.monotonic() == 110.0
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(10):
                    await forever()
            assert loop.time() == 120.0
            assert clock.wall_us() == WALL_EPOCH_US + 120_000_000

        async def main(loop: VirtualLoop) -> None:
            node = loop.create_node("fast")
            node.set_skew(100.0, 2.0)
            await node.spawn(member(loop, node))
            assert loop.time() == 10.0

        simulate(main)

    def test_a_change_of_rate_goes_on_from_the_time_shown(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            node = loop.create_node("a")
            await asyncio.sleep(10)
            node.set_skew(rate=0.5)
            assert node.clock.monotonic() == 10.0
            await asyncio.sleep(10)
            assert node.clock.monotonic() == 15.0
            node.set_skew(100.0)
            assert node.clock.monotonic() == 120.0

        simulate(main)

    @pytest.mark.parametrize(("offset_s", "rate"), [(-1.0, 1.0), (0.0, 0.5), (None, 0.0)])
    def test_a_monotonic_clock_neither_stops_nor_goes_back(self, offset_s: float | None, rate: float) -> None:
        async def main(loop: VirtualLoop) -> None:
            node = loop.create_node("a")
            await asyncio.sleep(10)
            with pytest.raises(ValueError, match="'a'"):
                node.set_skew(offset_s, rate)

        simulate(main)


class TestFindings:
    def test_a_deadlock_names_who_waits_and_where(self) -> None:
        async def inner(event: asyncio.Event) -> None:
            await event.wait()

        async def main(loop: VirtualLoop) -> None:
            paused, dead = loop.create_node("stopped"), loop.create_node("dead")
            paused.spawn(asyncio.sleep(1), name="sleeper")
            dead.spawn(forever, name="ghost")
            await asyncio.sleep(0.5)
            paused.pause()
            dead.crash()
            await asyncio.create_task(inner(asyncio.Event()), name="waiter")

        with simulation() as loop:
            with pytest.raises(Deadlock) as found:
                loop.run_until_complete(main(loop))
            report = str(found.value)
            assert "main: 'waiter' in inner (" in report
            assert "test_virtual_time.py:" in report
            assert "> wait (" in report
            assert "node 'stopped' (paused): 'sleeper'" in report
            assert "ghost" not in report
            assert "at 1.0 s" in report

    def test_polling_without_waiting_is_a_livelock(self) -> None:
        async def poll() -> None:
            while True:  # noqa: ASYNC110
                await asyncio.sleep(0)

        loop = VirtualLoop(Random(1), spin_limit=1_000)
        with pytest.raises(Livelock, match=r"1000 callbacks in one instant.*(?s:.*)poll"):
            loop.run_until_complete(poll())
        loop.close()

    @pytest.mark.parametrize("shape", ["callback", "task", "future"])
    def test_an_unhandled_exception_is_recorded(self, shape: str, caplog: pytest.LogCaptureFixture) -> None:
        error = KeyError("lost")

        async def fail() -> None:
            raise error

        def fail_now() -> None:
            raise error

        async def member(loop: VirtualLoop) -> None:
            if shape == "callback":
                loop.call_soon(fail_now)
            elif shape == "task":
                asyncio.create_task(fail())  # noqa: RUF006
            else:
                loop.create_future().set_exception(error)

        async def main(loop: VirtualLoop) -> None:
            await loop.create_node("a").spawn(member(loop))
            await asyncio.sleep(1)

        loop = VirtualLoop(Random(1))
        loop.run_until_complete(main(loop))
        loop.close()
        assert [failure.error for failure in loop.failures] == [error]
        assert loop.failures[0].node == ("" if shape == "future" else "a")
        assert len(caplog.records) == 1

    def test_many_finished_tasks_do_not_hide_a_failed_one(self) -> None:
        async def fail() -> None:
            raise KeyError

        failed: list[asyncio.Task[None]] = []

        async def main(loop: VirtualLoop) -> None:
            failed.append(asyncio.create_task(fail()))
            for _ in range(1_000):
                await asyncio.create_task(asyncio.sleep(0))

        loop = VirtualLoop(Random(1))
        heard: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _loop, context: heard.append(context))
        loop.run_until_complete(main(loop))
        loop.close()
        assert len(loop.failures) == len(heard) == 1

    def test_failures_of_a_crashed_node_are_nobodys(self) -> None:
        async def fail() -> None:
            raise KeyError

        async def member() -> None:
            task = asyncio.create_task(fail())
            await asyncio.sleep(10)
            await task

        async def main(loop: VirtualLoop) -> None:
            node = loop.create_node("a")
            node.spawn(member)
            await asyncio.sleep(5)
            node.crash()

        simulate(main)


class TestOutsideWorld:
    def test_threads_and_sockets_are_refused(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            with pytest.raises(OutsideWorld, match="threads"):
                await asyncio.to_thread(time.monotonic)
            with pytest.raises(OutsideWorld, match="sockets"):
                await asyncio.open_connection("localhost", 1)
            with pytest.raises(OutsideWorld):
                await asyncio.create_subprocess_exec("true")
            with socket.socket() as connection, pytest.raises(OutsideWorld):
                await loop.sock_recv(connection, 1)
            with pytest.raises(OutsideWorld):
                loop.call_soon_threadsafe(print)

        simulate(main)

    def test_no_method_of_the_interface_is_left_undecided(self) -> None:
        undecided = [
            name
            for name, method in vars(asyncio.AbstractEventLoop).items()
            if callable(method) and not name.startswith("_") and getattr(VirtualLoop, name) is method
        ]
        assert undecided == []


class TestLifeOfTheLoop:
    def test_it_returns_and_raises_what_main_does(self) -> None:
        async def fail() -> None:
            raise KeyError("x")

        async def exit_now() -> None:
            raise KeyboardInterrupt

        with simulation() as loop:
            assert loop.run_until_complete(asyncio.sleep(1, "result")) == "result"
            with pytest.raises(KeyError):
                loop.run_until_complete(fail())
            with pytest.raises(KeyboardInterrupt):
                loop.run_until_complete(exit_now())

    def test_stop_leaves_the_rest_for_the_next_run(self) -> None:
        ran: list[int] = []
        with simulation() as loop:
            loop.call_soon(ran.append, 1)
            loop.call_soon(loop.stop)
            loop.call_soon(ran.append, 2)
            loop.run_forever()
            assert ran == [1]
            loop.call_soon(loop.stop)
            loop.run_forever()
            assert ran == [1, 2]

    def test_it_neither_nests_nor_runs_when_closed(self) -> None:
        async def nest(loop: VirtualLoop) -> None:
            assert loop.is_running()
            with pytest.raises(RuntimeError):
                loop.run_forever()
            with pytest.raises(RuntimeError):
                loop.close()

        with simulation() as loop:
            loop.run_until_complete(nest(loop))
            assert not loop.is_running()
        loop.close()
        assert loop.is_closed()
        with pytest.raises(RuntimeError, match="over"):
            loop.run_until_complete(forever())
        with pytest.raises(RuntimeError, match="closed"):
            loop.run_forever()

    def test_it_leaves_the_interpreter_as_it_found_it(self) -> None:
        before = (gc.isenabled(), sys.get_asyncgen_hooks(), sys.unraisablehook)
        simulate(lambda _: asyncio.sleep(1))
        assert (gc.isenabled(), sys.get_asyncgen_hooks(), sys.unraisablehook) == before
        assert asyncio._get_running_loop() is None

    @pytest.mark.parametrize("by_others", [True, False])
    def test_it_keeps_frozen_what_others_have_frozen_and_no_more(self, by_others: bool) -> None:
        told = FROZEN.replace("# others", "gc.freeze()" if by_others else "")
        done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [str(by_others)] * 2


def test_throughput() -> None:
    """No limit, for machines differ; run with -s to see the figure."""

    async def talk(inbox: asyncio.Queue[int], outbox: asyncio.Queue[int]) -> None:
        for n in range(3_000):
            outbox.put_nowait(n)
            async with asyncio.timeout(30):
                await inbox.get()
            await asyncio.sleep(0.01)

    async def main(loop: VirtualLoop) -> None:
        tasks = []
        for pair in range(5):
            there, back = asyncio.Queue[int](), asyncio.Queue[int]()
            tasks.append(loop.create_node(f"{pair}a").spawn(talk(there, back)))
            tasks.append(loop.create_node(f"{pair}b").spawn(talk(back, there)))
        await asyncio.gather(*tasks)

    began = time.perf_counter()
    loop = simulate(main)
    rate = loop.executed / (time.perf_counter() - began)
    print(f"{loop.executed} callbacks, {rate:,.0f} per second")
    assert loop.executed > 60_000
    assert loop.time() == 30.0
