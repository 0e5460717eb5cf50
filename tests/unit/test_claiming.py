"""Claiming by itself: when the other routes get their look, and what a note of a look changes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.clock import Ports
from holdfast.kernel.claim import SharedLook, heads, looked_note
from holdfast.kernel.rows import Route
from holdfast.settings import Settings
from holdfast.workers.claims import MOST_HOT, ClaimLoop, RouteTable

JOBS, TOOLS = 1, 2  # a route of each line
POLL = Settings().poll_interval.total_seconds()


def route(id: int, capability: str) -> Route:
    return Route(id, "default", json.dumps([capability]))


class OurClock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall_us(self) -> int:
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Taken(NamedTuple):
    route: int


class Claimer:
    """Claims of two lines with one slot each, from a store that is two numbers."""

    def __init__(self) -> None:
        self.clock = OurClock()
        self.ready: Counter[int] = Counter()
        self.slots = {"jobs": 1, "tools": 1}
        self.probes = 0
        self.claimed: Counter[int] = Counter()
        self.routing = RouteTable(None, ["a", "b"], lambda capabilities: "tools" if "b" in capabilities else "jobs")
        self.routing.learn([route(JOBS, "a"), route(TOOLS, "b")])
        fake: Any = self
        ports = Ports(self.clock, Random(1))
        self.claims = ClaimLoop(fake, ports, Settings(), self.routing, fake)

    async def transact(self, operation: Any, *args: Any) -> Any:
        if operation is heads:
            self.probes += 1
            return [route for route in args[0] if self.ready[route]]
        _, routes, most, _ = args
        taken = [Taken(route) for route in routes for _ in range(self.ready[route])][:most]
        self.ready.subtract(one.route for one in taken)
        return taken

    def timed(self, *args: Any, **details: Any) -> None:
        """A claim was made."""

    async def claim(self) -> None:
        self.claims.again = True
        while self.claims.again:
            await self.claims.take(1, self.slots.__getitem__, self.hold)

    def hold(self, claimed: Any) -> None:
        self.slots[claimed.slots] -= len(claimed.leases)
        self.claimed.update(one.route for one in claimed.leases)


async def test_a_full_line_does_not_keep_another_from_its_work() -> None:
    claimer = Claimer()
    claimer.ready[JOBS] = 50
    claimer.routing.heat([JOBS])
    await claimer.claim()
    assert (claimer.claimed[JOBS], claimer.slots["jobs"], claimer.claims.full) == (1, 0, True)
    claimer.ready[TOOLS] = 1  # nobody hints at it
    claimer.clock.now += POLL
    await claimer.claim()
    assert claimer.claimed == {JOBS: 1, TOOLS: 1}


async def test_while_a_line_is_full_the_others_are_asked_for_once_in_a_poll() -> None:
    claimer = Claimer()
    claimer.ready[JOBS] = 50
    claimer.routing.heat([JOBS])
    await claimer.claim()
    before = claimer.probes
    for _ in range(8):
        claimer.clock.now += POLL / 4
        await claimer.claim()
    assert claimer.probes - before == 2


async def test_what_somebody_else_saw_is_asked_for_at_once() -> None:
    claimer = Claimer()
    claimer.ready[JOBS] = 50
    claimer.routing.heat([JOBS])
    await claimer.claim()
    claimer.ready[TOOLS] = 1
    await claimer.claim()
    assert claimer.claimed[TOOLS] == 0
    claimer.claims.look_around()
    await claimer.claim()
    assert claimer.claimed[TOOLS] == 1


async def test_a_note_of_a_look_does_not_change_the_order_of_the_hot_routes(tmp_path: Path) -> None:
    """What is hot is the best first; a note names routes by their numbers."""
    worker = core_of(Holdfast(f"sqlite:///{tmp_path}/unused.db", embedded=False)).make_worker(None)
    routing = worker._routing
    ids = list(range(101, 101 + 2 * MOST_HOT))
    routing.offer(["a"])
    routing.learn([route(id, "a") for id in ids])
    best_first = ids[::-1]
    routing.cool(best_first)
    hot = routing.hot
    assert hot == best_first[:MOST_HOT]
    worker._hints.take(looked_note(SharedLook(1, leased=True), ids))
    assert routing.hot == hot
    assert worker._work.is_set(), "it asks which are the best now"


async def test_where_nothing_is_hot_a_note_of_a_look_says_what_to_claim(tmp_path: Path) -> None:
    worker = core_of(Holdfast(f"sqlite:///{tmp_path}/unused.db", embedded=False)).make_worker(None)
    worker._routing.offer(["a"])
    worker._routing.learn([route(JOBS, "a"), route(TOOLS, "b")])
    worker._hints.take(looked_note(SharedLook(1, leased=False), [JOBS, TOOLS]))
    assert worker._routing.hot == [JOBS]
    assert worker._work.is_set()
