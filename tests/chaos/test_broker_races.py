"""Brokers of many processes and threads want the same jobs: each job goes to one of them."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.kernel.brokers import take
from holdfast.kernel.ids import JobId
from holdfast.kernel.owners import register_owner
from tests.support.commands import start
from tests.support.stores import TTL_US, owner_named
from tests.support.warm import WarmProcess

ROOT = Path(__file__).parents[2]


def racer(url: str, *arguments: str) -> WarmProcess:
    pipe = subprocess.PIPE
    return start("-m", "tests.chaos.broker_racer", url, *arguments, cwd=ROOT, text=True, stdin=pipe, stdout=pipe)


def last_words(process: WarmProcess, typed: str = "") -> str:
    """What it says after it has read what is typed."""
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        process.stdin.write(typed)
        process.stdin.close()
        return str(process.stdout.read())


async def jobs(url: str, n: int, kinds: int) -> list[str]:
    async with Holdfast(url, embedded=False) as hf:
        return [(await hf.enqueue(f"kind{number % kinds}", number)).id for number in range(n)]


@pytest.mark.chaos
@pytest.mark.parametrize("processes", [2, pytest.param(8, marks=pytest.mark.long)])
def test_of_processes_that_take_one_job_one_gets_it(url: str, processes: int) -> None:
    (job,) = asyncio.run(jobs(url, 1, 1))
    racers = [racer(url, "take", job) for _ in range(processes)]
    for each in racers:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    answers = [last_words(each, "go\n").strip() for each in racers]
    assert sorted(answers) == sorted(["token 1.1", *["nothing"] * (processes - 1)])


@pytest.mark.parametrize("threads", [8, pytest.param(50, marks=pytest.mark.long)])
def test_of_threads_that_take_one_job_for_an_owner_each_one_gets_it(url: str, threads: int) -> None:
    (job,) = asyncio.run(jobs(url, 1, 1))
    hf = Holdfast(url, embedded=False)
    start = threading.Barrier(threads)

    async def acquire(name: str) -> bool:
        database = await core_of(hf).opened()
        owner = await database.transact(register_owner, owner_named(name), ttl_us=TTL_US)
        return await database.transact(take, owner.seq, JobId(job), TTL_US) is not None

    def thread(number: int) -> bool:
        start.wait()
        return hf.sync(acquire(f"owner-{number}"))

    with ThreadPoolExecutor(threads) as pool:
        won = list(pool.map(thread, range(threads)))
    hf.sync.close()
    assert sum(won) == 1


@pytest.mark.chaos
def test_the_jobs_of_a_process_that_is_killed_go_to_other_brokers_long_before_their_leases_end(url: str) -> None:
    asyncio.run(jobs(url, 3, 1))
    holder = racer(url, "hold", "3")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "holds 3\n"

    async def taken_over() -> list[int]:
        async with Holdfast(url, embedded=False) as hf, hf.broker(queues=["default"]) as broker:
            holder.kill()
            begun = asyncio.get_running_loop().time()
            got = [await broker.claim(block="50s") for _ in range(3)]  # leases hold for 60 s
            assert asyncio.get_running_loop().time() - begun < 50
            return [lease.attempt for lease in got if lease is not None]

    assert asyncio.run(taken_over()) == [1, 1, 1]
    last_words(holder)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("processes", "n"), [(2, 100), pytest.param(8, 1_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_brokers_of_many_processes_do_each_job_once(url: str, processes: int, n: int) -> None:
    asyncio.run(jobs(url, n, 25))
    racers = [racer(url, "drain", "4") for _ in range(processes)]
    said = [last_words(each).split() for each in racers]
    assert all(lines[-1] == "end" for lines in said)
    done = Counter(int(line) for lines in said for line in lines[:-1])
    assert done == Counter(range(n))
