"""A process that uses every verb at random on a few shared families: `python -m tests.chaos.mixer URL SEED ROUNDS`.

With `debounced` as a fourth word it plays in lanes alone, and calls take each other's place there all the time.

A refusal that a verb's contract names is an answer. Everything else, above all a deadlock, ends the process with a
traceback. It says as one line of JSON how often each verb was answered and how often it was refused, and which payloads
it was told to have put in the place of others.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from holdfast.clock import Ports
from holdfast.errors import DuplicateWorker, IdempotencyConflict, LeaseLost, NotFound, ParentCancelled
from holdfast.kernel import duties, ids, waiting
from holdfast.kernel.cancel import cancel, cancel_family
from holdfast.kernel.claim import claim, heads
from holdfast.kernel.complete import complete, complete_and_settle, ending, release, repeated
from holdfast.kernel.database import Database, Operation
from holdfast.kernel.drivers import connect
from holdfast.kernel.duties import DutyLost
from holdfast.kernel.enqueue import enqueue, enqueue_children, enqueue_once, enqueue_unique
from holdfast.kernel.lanes import claim_in_lanes, open_lanes
from holdfast.kernel.leases import beat, expire
from holdfast.kernel.queries import list_jobs
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import Ending, Lease, NewJob, Term
from holdfast.kernel.workers import Registration, drain, look, lose_workers, register, unregister
from holdfast.outcomes import Done, Fail, Snooze, TryAgain
from holdfast.settings import Settings
from tests.support.jobs import plain_job

P = ParamSpec("P")
R = TypeVar("R")

KINDS = ("parent", "child", "grandchild", "other")
ROUTES = [route_for("default", kind) for kind in KINDS]
LANED = route_for("default", "laned", laned=True)
ALL = [*ROUTES, LANED]
LANES: dict[str, dict[str, int]] = {
    "narrow": {"concurrency": 1},
    "roomy": {"concurrency": 3},
    "paced": {"interval_us": 10_000, "burst": 2},
    "both": {"concurrency": 2, "interval_us": 5_000},
}
KEYS = 40  # of calls that replace each other, each with a lane of its own
TASKS = 3
TTL_US = 700_000
WORKER_TTL_US = 2_000_000
LEAST_SECONDS = 3.0  # for leases and deadlines to pass
POLICY = RetryPolicy(base="20ms", jitter=0)

REFUSALS = (LeaseLost, ParentCancelled, DutyLost, IdempotencyConflict, NotFound, DuplicateWorker)


class Mixer:
    """One hand on the store. Several share a process and its connections."""

    def __init__(self, database: Database, seed: str) -> None:
        self._database = database
        self._chance = random.Random(seed)
        self._ports = Ports(random=self._chance)
        self.worker = 0
        self._leases: list[Lease] = []
        self._term: Term | None = None
        self._round = 0
        self.answered: Counter[str] = Counter()
        self.replaced: list[tuple[str, str]] = []  # a job, and the payload it was given in the place of its own
        self.refused: Counter[str] = Counter()

    def _in_lanes(self) -> list[Callable[[], Awaitable[object]]]:
        return [
            *[self.debounce] * 4,
            *[self.claim_in_lanes, self.complete] * 3,
            *(self.enqueue_laned, self.open_lanes, self.wake, self.expire, self.cancel, self.beat),
        ]

    async def mix(self, rounds: int, *, debounced: bool = False) -> None:
        verbs: list[Callable[[], Awaitable[object]]] = (
            self._in_lanes()
            if debounced
            else [
                *[self.claim] * 6,
                *[self.claim_in_lanes] * 3,
                *(self.enqueue_laned, self.enqueue_unique, self.replace, self.open_lanes),
                *[self.complete] * 4,
                *[self.enqueue_children] * 3,
                *[self.park, self.cancel_family, self.overdue, self.clean_up] * 2,
                *(
                    self.enqueue,
                    self.enqueue_once,
                    self.beat,
                    self.signal,
                    self.take_signal,
                    self.store_step,
                    self.progress,
                ),
                *(self.cancel, self.wake, self.expire, self.lose_workers, self.duties, self.look, self.drain),
            ]
        )
        await self.register()
        patience = time.monotonic() + LEAST_SECONDS
        while self._round < rounds or (time.monotonic() < patience and self._round < 10 * rounds):
            self._round += 1
            verb = self._chance.choice(verbs)
            name = verb.__name__
            try:
                if await verb():
                    self.answered[name] += 1
            except REFUSALS:
                self.refused[name] += 1

    async def register(self) -> None:
        id = f"mixer-{self._chance.randrange(4)}" if self._chance.random() < 0.3 else ids.new_id(self._ports)
        who = Registration(ids.new_id(self._ports), id, "mixer", "test", os.getpid(), "0", (), None, 10)
        routes = self._chance.sample(ALL, k=len(ALL))
        try:
            self.worker = await self._do(register, who, routes, ttl_us=WORKER_TTL_US, gone=[])
        except DuplicateWorker:
            self.refused["register"] += 1
            await self.register()

    async def enqueue(self) -> int:
        jobs = [self.job(self._chance.choice(("parent", "other"))) for _ in range(self._chance.randint(1, 4))]
        return await self._do(enqueue, jobs, self._chance.sample(ROUTES, k=len(ROUTES)))

    async def enqueue_once(self) -> bool:
        job = self.job("other", payload=str(self._chance.randrange(2)))
        return (await self._do(enqueue_once, job, ROUTES, key=f"key-{self._chance.randrange(20)}")).fresh

    async def enqueue_children(self) -> bool:
        lease = self._pick(kinds=("parent", "child"))
        if lease is None:
            return False
        kind, step = ("child" if lease.kind == "parent" else "grandchild"), self._chance.choice("ab")
        children = [self.job(kind, id=ids.derived_id(lease.id, step, k)) for k in range(self._chance.randint(1, 3))]
        await self._do(enqueue_children, lease, children, self._chance.sample(ROUTES, k=2))
        return True

    async def enqueue_laned(self) -> int:
        jobs = [self.laned() for _ in range(self._chance.randint(1, 3))]
        return await self._do(enqueue, jobs, [LANED])

    async def enqueue_unique(self) -> bool:
        scope = self._chance.choice(("pending", "live", "window"))
        window = {"window_us": 300_000} if scope == "window" else {}
        key = f"{scope} {self._chance.randrange(5)}"
        job = self.job("other", unique_key=key, unique_scope=scope, **window)
        return (await self._do(enqueue_unique, job, ROUTES)).fresh

    async def replace(self) -> bool:
        return await self._replace(self.job("other", **self._unique()))

    async def debounce(self) -> bool:
        """In a lane of its own, now or a little later: often it is blocked there by the one before it."""
        unique = self._unique(KEYS)
        lane = f"of {unique['unique_key']}"
        return await self._replace(self.job("laned", lane=lane, concurrency=1, **unique))

    def _unique(self, keys: int = 10) -> dict[str, Any]:
        key = f"replaced {self._chance.randrange(keys)}"
        return {"unique_key": key, "unique_scope": "pending", "payload": f'"{ids.new_id(self._ports)}"'}

    async def _replace(self, job: NewJob) -> bool:
        job = job._replace(replaces=True)
        accepted = await self._do(enqueue_unique, job, ALL)
        if not accepted.fresh:
            self.replaced.append((accepted.id, job.payload))
        return not accepted.fresh

    async def claim_in_lanes(self) -> int:
        leases = await self._do(claim_in_lanes, self.worker, [LANED.id], self._chance.randint(1, 4), TTL_US)
        self._leases += leases
        return len(leases)

    async def open_lanes(self) -> int:
        return await self._do(open_lanes, limit=3)

    async def claim(self) -> int:
        routes = [route.id for route in self._chance.sample(ROUTES, k=self._chance.randint(1, len(ROUTES)))]
        await self._do(heads, routes)
        leases = await self._do(claim, self.worker, routes, self._chance.randint(1, 6), TTL_US)
        self._leases += leases
        return len(leases)

    async def claim_all(self) -> list[Lease]:
        return await self._do(claim, self.worker, [route.id for route in ROUTES], 100, 60_000_000)

    async def complete(self) -> int:
        """Some of what is held, in any order, as a worker's batch comes."""
        batch = self._chance.sample(self._leases, k=min(len(self._leases), self._chance.randint(1, 5)))
        if not batch:
            return 0
        endings = [self._ending(lease) for lease in batch]
        self._leases = [lease for lease in self._leases if lease not in batch]
        parents = {lease.parent for lease in batch if lease.parent is not None}
        if parents or any(lease.lane is not None for lease in batch):
            ended = await self._do(complete_and_settle, endings, sorted(parents))
        else:
            ended = await self._do(complete, endings)
        if self._chance.random() < 0.2:
            await self._do(repeated, endings)
        return len(ended)

    async def beat(self) -> int:
        held = [lease.held for lease in self._leases]
        answer = await self._do(beat, self.worker, len(held), held, ttl_us=TTL_US, ceiling_us=60_000_000)
        self._leases = [lease for lease in self._leases if lease.held not in answer.lost]
        if not answer.registered:
            await self.register()
        return len(answer.renewed)

    async def park(self) -> bool:
        lease = self._pick()
        if lease is None:
            return False
        self._leases.remove(lease)
        channel = self._chance.choice((None, self._channel(), self._channel()))
        timeout_us = self._chance.choice((None, 200_000)) if channel is None else 200_000
        await self._do(waiting.park, lease, channel=channel, timeout_us=timeout_us)
        return True

    async def signal(self) -> int:
        woken = await self._do(waiting.signal, ids.new_id(self._ports), self._channel(), '"hello"')
        return len(woken)

    async def take_signal(self) -> bool:
        lease = self._pick()
        if lease is None:
            return False
        step = f"wait {self._chance.randrange(3)}"
        taken = await self._do(waiting.take_signal, lease, self._channel(), step)
        return taken.payload is not None

    async def store_step(self) -> bool:
        lease = self._pick()
        if lease is None:
            return False
        await self._do(waiting.store_step, lease, f"step {self._chance.randrange(3)}", "1")
        return True

    async def progress(self) -> bool:
        lease = self._pick()
        if lease is None:
            return False
        await self._do(waiting.report_progress, lease, "50")
        return True

    async def cancel(self) -> bool:
        rows = await self._do(list_jobs, limit=40)
        parents = [row for row in rows if row.open_children]
        if not rows:
            return False
        await self._do(cancel, self._chance.choice(parents or rows).id, reason="chance")
        return True

    async def cancel_family(self) -> bool:
        return await self._do(cancel_family, limit=2)

    async def wake(self) -> int:
        return await self._do(waiting.wake, limit=3)

    async def overdue(self) -> int:
        return len(await self._do(waiting.overdue, limit=3))

    async def expire(self) -> int:
        gone = [self.worker] if self._chance.random() < 0.1 else []
        return len(await self._do(expire, gone=gone, limit=3, backoff_us=20_000, chance=self._chance))

    async def lose_workers(self) -> int:
        gone = [self.worker] if self._chance.random() < 0.3 else []
        return await self._do(lose_workers, gone=gone, reason="chance")

    async def duties(self) -> bool:
        """Hold a duty for a while; half of the time let it run out."""
        if self._term is None:
            self._term = await self._do(duties.acquire, duties.CLEANUP, self.worker, ttl_us=300_000, gone=[self.worker])
        elif not await self._do(duties.renew, self._term, self.worker, ttl_us=300_000):
            self._term = None
        elif self._chance.random() < 0.3:
            await self._do(duties.release, self._term, self.worker)
            self._term = None
        return self._term is not None

    async def clean_up(self) -> bool:
        if self._term is None:
            return False
        await self._do(duties.clean_up, self._term, self.worker, key_age_us=500_000, worker_age_us=500_000)
        return True

    async def look(self) -> bool:
        await self._do(look, self.worker, [route.id for route in ROUTES])
        return True

    async def drain(self) -> bool:
        """Leave with what is held handed back, and come again."""
        await self._do(drain, self.worker)
        batch, self._leases = self._leases, []
        if batch:
            parents = sorted({lease.parent for lease in batch if lease.parent is not None})
            await self._do(complete_and_settle, [release(lease) for lease in batch], parents)
        await self._do(unregister, self.worker, reason="chance")
        await self.register()
        return bool(batch)

    async def _do(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._database.transact(operation, *args, **kwargs)

    def _channel(self) -> str:
        """One of two, others every few rounds: on a channel with an unread signal nobody waits."""
        return f"{self._chance.choice(('left', 'right'))} {self._round // 10}"

    def _pick(self, kinds: tuple[str, ...] = (*KINDS, "laned")) -> Lease | None:
        held = [lease for lease in self._leases if lease.kind in kinds]
        return self._chance.choice(held) if held else None

    def _ending(self, lease: Lease) -> Ending:
        outcome = self._chance.choice(
            (Done(1), Done(2), TryAgain("0s"), TryAgain("20ms"), Fail("chance"), Snooze("10ms"))
        )
        return ending(lease, outcome, policy=POLICY, chance=self._chance, result_cap=99, error_cap=999)

    def job(self, kind: str, **changes: Any) -> NewJob:
        drawn = {
            "priority": self._chance.choice((50, 100)),
            "delay_us": self._chance.choice((None, None, 20_000)),
            "deadline_us": self._chance.choice((None, None, 200_000)),
        }
        route = LANED if kind == "laned" else ROUTES[KINDS.index(kind)]
        return plain_job(ids.new_id(self._ports), kind, route, **{**drawn, "max_rescues": 3, **changes})

    def laned(self) -> NewJob:
        lane = self._chance.choice(sorted(LANES))
        return self.job("laned", lane=lane, **LANES[lane])


async def main(url: str, seed: str, rounds: int, *, debounced: bool) -> None:
    database = connect(url, Settings(url=url), Ports())
    await database.open()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    mixers = [Mixer(database, f"{seed} {number}") for number in range(TASKS)]
    async with asyncio.TaskGroup() as group:
        for mixer in mixers:
            group.create_task(mixer.mix(rounds, debounced=debounced))
    await database.close()
    answered: Counter[str] = sum((mixer.answered for mixer in mixers), Counter())
    refused: Counter[str] = sum((mixer.refused for mixer in mixers), Counter())
    replaced = [pair for mixer in mixers for pair in mixer.replaced]
    print(json.dumps({"answered": answered, "refused": refused, "replaced": replaced}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), debounced="debounced" in sys.argv[4:]))
