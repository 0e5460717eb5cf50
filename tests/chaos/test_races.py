"""Claims in real processes at the same time: each job once, everybody a fair share, nobody sent away hungry."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from holdfast.clock import Ports
from holdfast.errors import DuplicateWorker
from holdfast.kernel import ids
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import NewJob
from holdfast.kernel.workers import Registration, register
from tests.chaos.crew import Crew
from tests.chaos.watch import Watch
from tests.support.jobs import plain_job

PROCESSES = 8
JOBS = 8_000
ROUTES = [route_for(f"queue-{number}", "work") for number in range(25)]


@pytest.mark.long
@pytest.mark.sample(1)
@pytest.mark.parametrize(("size", "count"), [(1, JOBS // 8), (10, JOBS)])
async def test_eight_claimers_share_all_jobs_and_none_twice(
    url: str, watch: Watch, crew: Crew, size: int, count: int
) -> None:
    await enqueue_spread(watch, count)
    routes = json.dumps([route.id for route in ROUTES])
    claimers = [crew.script("claimer", url, routes, size) for _ in range(PROCESSES)]
    await asyncio.gather(*(claimer.says("ready") for claimer in claimers))
    for claimer in claimers:
        claimer.say("go")
    assert await asyncio.gather(*(claimer.leaves() for claimer in claimers)) == [0] * PROCESSES

    reports = [json.loads(claimer.output.splitlines()[-1]) for claimer in claimers]
    attempts = await watch.attempts()
    assert await watch.states() == {"succeeded": count}
    assert len(attempts) == len({attempt.job for attempt in attempts}) == count
    assert {attempt.token for attempt in attempts} == {1}
    assert Counter(a.worker for a in attempts) == {r["worker"]: r["taken"] for r in reports}
    assert sum(report["wrong"] for report in reports) == 0, "an empty answer while there was work"
    assert min(report["taken"] for report in reports) >= count / PROCESSES / 3
    waits = [report["longest"] for report in reports]
    assert max(waits) <= 1 + 5 * statistics.median(waits), "one process waited while the others were served"


async def test_of_several_workers_with_one_id_one_registers(url: str, watch: Watch) -> None:
    async with AsyncExitStack() as stack:
        rivals = [await stack.enter_async_context(Watch(url)) for _ in range(4)]
        for number in range(20):
            answers = await asyncio.gather(
                *(rival.do(register, pod(number), ROUTES, ttl_us=60_000_000, gone=[]) for rival in rivals),
                return_exceptions=True,
            )
            refused = [answer for answer in answers if isinstance(answer, DuplicateWorker)]
            assert len(refused) == 3, answers
    assert sorted(worker.id for worker in await watch.workers()) == sorted(f"pod-{number}" for number in range(20))


def pod(number: int) -> Registration:
    incarnation = ids.new_id(Ports())
    return Registration(incarnation, f"pod-{number}", "pod", "test", os.getpid(), "0", (), None, 10)


async def enqueue_spread(watch: Watch, count: int) -> None:
    """Jobs over all routes in turn."""
    ports = Ports()
    jobs = [new_job(ports, number) for number in range(count)]
    for begin in range(0, count, 1_000):
        await watch.do(enqueue, jobs[begin : begin + 1_000], ROUTES if begin == 0 else [])


def new_job(ports: Ports, number: int) -> NewJob:
    return plain_job(ids.new_id(ports), "work", ROUTES[number % len(ROUTES)])
