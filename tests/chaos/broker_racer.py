"""A process of brokers that race: `python -m tests.chaos.broker_racer URL take JOB` or `… URL drain BROKERS`,
or `… URL hold JOBS`, which claims so many and keeps them.

It says what it got, one line each: the token of the lease, or the payload of each job that it completed.
"""

from __future__ import annotations

import asyncio
import sys

from holdfast import Holdfast
from holdfast.brokers.broker import Broker


async def take(hf: Holdfast, job: str) -> None:
    async with hf.broker(queues=["default"], renewal="manual", lease_ttl="1h") as broker:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        lease = await broker.take(job)
        print(f"token {lease.token}" if lease is not None else "nothing", flush=True)


async def hold(hf: Holdfast, jobs: int) -> None:
    async with hf.broker(queues=["default"]) as broker:
        leases = await broker.claim(jobs)
        print(f"holds {len(leases)}", flush=True)
        await asyncio.to_thread(sys.stdin.readline)


async def drain(hf: Holdfast, brokers: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        for _ in range(brokers):
            tasks.create_task(work(hf.broker(queues=["default"])))
    print("end", flush=True)


async def work(opening: Broker) -> None:
    async with opening as broker:
        while leases := await broker.claim(5):
            for lease in leases:
                await lease.complete()
                print(lease.payload, flush=True)


async def main(url: str, what: str, argument: str) -> None:
    hf = Holdfast(url, embedded=False)
    try:
        match what:
            case "take":
                await take(hf, argument)
            case "hold":
                await hold(hf, int(argument))
            case _:
                await drain(hf, int(argument))
    finally:
        await hf.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
