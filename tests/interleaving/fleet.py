"""What a fleet of workers does to a store until nothing is left to do, and what must hold all the while.

It uses the operations that workers use at their polls and nothing else. When nothing moves it lets time pass, and after
a bounded time every job must have ended: one that has not will never run.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

from holdfast.kernel.cancel import cancel_family
from holdfast.kernel.claim import claim
from holdfast.kernel.complete import complete, complete_and_settle
from holdfast.kernel.database import Transaction
from holdfast.kernel.enqueue import AcceptedJob, enqueue
from holdfast.kernel.ids import JobId
from holdfast.kernel.lanes import claim_in_lanes, open_lanes
from holdfast.kernel.leases import expire
from holdfast.kernel.queries import list_jobs
from holdfast.kernel.queues import list_queues, resume_queue
from holdfast.kernel.routes import is_laned, route_for
from holdfast.kernel.rows import JobRow, Lease, NewJob
from holdfast.kernel.states import State
from holdfast.kernel.waiting import list_steps, overdue, signal, take_signal, wake
from holdfast.kernel.watch import ahead_of_clock, bring_back
from holdfast.kernel.workers import list_routes, register
from holdfast.outcomes import Done
from tests.interleaving.pausing import Call
from tests.interleaving.scene import SECOND, TTL_US, Scene
from tests.support.jobs import plain_job

ROUNDS = 14
_PROBE = "holdfast.test.probe"


class Fleet:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._store = scene.store
        self._tokens: dict[str, tuple[int, int]] = {}
        self._ran: dict[str, list[str]] = defaultdict(list)  # payloads of the leases of each job
        self._accepted: list[tuple[JobId, str]] = []  # a job and the payload that a call said it has now
        self._owners: dict[str, JobId] = {}  # by idempotency key
        self._signals: Counter[str] = Counter()
        self._sent: list[str] = []
        self._worker = 0
        self._routes: dict[bool, list[int]] = {False: [], True: []}  # those without lanes and those with
        self.problems: list[str] = []

    async def heard(self, said: Call, answer: Any) -> None:
        """One of the operations under test was answered."""
        name = getattr(said.operation, "__name__", "")
        if isinstance(answer, list):
            self._note_leases([lease for lease in answer if isinstance(lease, Lease)])
        asked = said.args[0] if said.args else None
        if isinstance(answer, AcceptedJob) and isinstance(asked, NewJob) and _took_its_place(asked, answer):
            self._accepted.append((answer.id, asked.payload))
        if isinstance(answer, AcceptedJob) and (key := said.options.get("key")) is not None:
            owner = self._owners.setdefault(key, answer.id)
            if owner != answer.id:
                self.problems.append(f"key {key!r} names job {owner} and job {answer.id}")
        if name == "signal" and not isinstance(answer, Exception):
            self._sent.append(said.args[2])
        if not self.problems:
            await self.watch()

    async def watch(self) -> list[JobRow]:
        """What must hold at every moment: lanes are not too full, a unique key has one holder, a family stays whole."""
        jobs: list[JobRow] = await self._store.do(list_jobs, limit=1_000)
        running: Counter[str] = Counter()
        keys: Counter[tuple[str, str]] = Counter()
        there = {row.seq for row in jobs}
        for row in jobs:
            if row.parent is not None and row.parent not in there and row.finished_at is None:
                self.problems.append(f"job {row.id} is {row.state}, and its parent was removed")
            job = self._scene.submitted.get(row.id) or self._scene.submitted.get(row.retry_of or row.id)
            if job is None:
                continue
            if job.lane is not None and row.state == State.RUNNING:
                running[job.lane] += 1
            if job.unique_key is not None and row.retry_of is None and _holds_key(job.unique_scope, row):
                keys[job.unique_scope or "", job.unique_key] += 1
        if self._scene.limit is not None:
            lane, limit = self._scene.limit
            if running[lane] > limit:
                self.problems.append(f"{running[lane]} jobs run in lane {lane!r}, which has room for {limit}")
        self.problems += [f"{n} jobs hold the unique key {key}" for key, n in keys.items() if n > 1]
        return jobs

    async def rest(self) -> None:
        """Work until everything has ended, then check what was promised on the way."""
        who = self._scene.who("the fleet")
        self._worker = await self._store.do(register, who, [], ttl_us=3_600 * SECOND, gone=[])
        if any(await self._store.do(ahead_of_clock, lease_ttl_us=TTL_US)):
            await self._store.do(bring_back, lease_ttl_us=TTL_US, duty_ttl_us=TTL_US, limit=100)
        await self._check_waits()
        for queue in await self._store.do(list_queues):
            if queue.paused_at is not None:
                await self._store.do(resume_queue, queue.name)
        for route in await self._store.do(list_routes, since=0):
            if _PROBE not in route.capabilities:
                self._routes[is_laned(route)].append(route.id)
        for _ in range(ROUNDS):
            while await self._work() or await self._store.do(_sweep):
                pass
            jobs = await self.watch()
            if self.problems or all(job.finished_at is not None for job in jobs):
                break
            await self._let_go(jobs)
            await self._store.advance("61s")
        await self._check_ends()

    async def _work(self) -> bool:
        """Claim what can be claimed and end it; True when there was something."""
        leases: list[Lease] = []
        for operation, routes in ((claim, self._routes[False]), (claim_in_lanes, self._routes[True])):
            if routes:
                leases += await self._store.do(operation, self._worker, routes, 100, TTL_US)
        if not leases:
            return False
        self._note_leases(leases)
        await self.watch()
        parents = sorted({lease.parent for lease in leases if lease.parent is not None})
        endings = [self._scene.ending(lease, self._scene.outcome(lease)) for lease in leases]
        await self._store.do(complete_and_settle, endings, parents)
        return not self.problems

    def _note_leases(self, leases: list[Lease]) -> None:
        for lease in leases:
            last = self._tokens.get(lease.id, (0, 0))
            if lease.fence <= last:
                self.problems.append(f"job {lease.id} was claimed under token {lease.fence} after {last}")
            self._tokens[lease.id] = lease.fence
            self._ran[lease.id].append(lease.payload)

    async def _let_go(self, jobs: list[JobRow]) -> None:
        """What waits for a signal gets one: nobody else is there to send it."""
        for channel in sorted({job.channel for job in jobs if job.state == State.WAITING and job.channel}):
            await self._store.do(signal, self._scene.id("let go", channel), channel, '"let go"')

    async def _check_waits(self) -> None:
        """Nobody waits on a channel where a signal lies that nobody has read."""
        if not self._scene.channels:
            return
        waits = {job.channel for job in await self._store.do(list_jobs, limit=1_000) if job.state == State.WAITING}
        probe = await self._probe()
        for channel in self._scene.channels:
            unread = 0
            while (taken := await self._store.do(take_signal, probe, channel, f"{channel} {unread}")).payload:
                self._signals[taken.payload] += 1
                unread += 1
            if unread and channel in waits:
                self.problems.append(f"a job waits on channel {channel!r}, where {unread} signals were unread")
        await self._store.do(complete, [self._scene.ending(probe, Done(None))])

    async def _probe(self) -> Lease:
        route = route_for(_PROBE, "other", [_PROBE])
        job = plain_job(self._scene.id(_PROBE), "other", route)
        await self._store.do(enqueue, [job], [route])
        (lease,) = await self._store.do(claim, self._worker, [route.id], 1, TTL_US)
        return lease

    async def _check_ends(self) -> None:
        if self.problems:
            return
        jobs: list[JobRow] = await self._store.do(list_jobs, limit=1_000)
        for job in jobs:
            if job.finished_at is None:
                what = job.payload if job.id in self._scene.submitted else job.id
                self.problems.append(f"job {what} is stranded: {job.state}, gate {job.gate}, channel {job.channel}")
            if job.id != self._scene.id(_PROBE):
                for step in await self._store.do(list_steps, job.seq):
                    self._signals[step.result] += step.result in self._scene.sent
        self.problems += await self._scene.ended()
        for payload in self._sent:
            if self._signals[payload] != 1:
                self.problems.append(f"signal {payload} was taken {self._signals[payload]} times")
        ended = {job.id: job for job in jobs}
        for number, (id, payload) in enumerate(self._accepted):
            later = [other for job, other in self._accepted[number + 1 :] if job == id]
            cancelled = id in ended and ended[id].state != State.SUCCEEDED
            if payload not in self._ran[id] and not later and not cancelled:
                self.problems.append(f"payload {payload} was accepted for job {id}, which ran with {self._ran[id]}")


async def _sweep(tx: Transaction) -> bool:
    """What each worker does at its poll; True when something moved."""
    chance = random.Random(0)
    moved = bool(await wake(tx, limit=100))
    moved = bool(await overdue(tx, limit=100)) or moved
    moved = bool(await expire(tx, gone=[], limit=100, backoff_us=SECOND, chance=chance)) or moved
    await open_lanes(tx, limit=100)
    while await cancel_family(tx, limit=100):
        moved = True
    return moved


def _took_its_place(asked: NewJob, answer: AcceptedJob) -> bool:
    """Whoever has been claimed no longer holds a key of that scope, so the holder must have been replaced."""
    return asked.replaces and asked.unique_scope == "pending" and not answer.fresh


def _holds_key(scope: str | None, row: JobRow) -> bool:
    match scope:
        case "pending":
            return row.token == 0 and row.state in (State.SCHEDULED, State.PENDING)
        case "live":
            return row.finished_at is None
        case _:
            return True
