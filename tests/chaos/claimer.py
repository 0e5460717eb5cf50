"""A process that claims and completes until nothing is left: `python -m tests.chaos.claimer URL ROUTES SIZE`.

Every job was enqueued before it begins and none comes back. So an empty answer that is followed by a full one was
wrong: there was work, and nobody held it. It says what it saw as one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time

from holdfast.clock import Ports
from holdfast.kernel import ids
from holdfast.kernel.claim import claim, heads
from holdfast.kernel.complete import complete, ending
from holdfast.kernel.database import Database
from holdfast.kernel.drivers import connect
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.rows import Ending, Lease
from holdfast.kernel.workers import Registration, register
from holdfast.outcomes import Done
from holdfast.settings import Settings

TTL_US = 60_000_000


async def main(url: str, routes: list[int], size: int) -> None:
    ports = Ports()
    database = connect(url, Settings(url=url), ports)
    await database.open()
    worker = await database.transact(register, _self(ports), [], ttl_us=TTL_US, gone=[])
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    seen = await take_all(database, worker, routes, size)
    await database.close()
    print(json.dumps({"worker": worker, **seen}), flush=True)


async def take_all(database: Database, worker: int, routes: list[int], size: int) -> dict[str, float]:
    taken = wrong = empty = 0
    longest, last = 0.0, time.monotonic()
    while True:
        leases = await database.transact(claim, worker, routes, size, TTL_US)
        if leases:
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            taken, wrong, empty = taken + len(leases), wrong + empty, 0
            await database.transact(complete, [_done(lease) for lease in leases])
        elif not await database.transact(heads, routes):
            return {"taken": taken, "wrong": wrong, "longest": longest}
        else:
            empty += 1


def _done(lease: Lease) -> Ending:
    return ending(lease, Done(None), policy=RetryPolicy(), chance=random.Random(0), result_cap=99, error_cap=99)


def _self(ports: Ports) -> Registration:
    id = ids.new_id(ports)
    return Registration(id, id, "claimer", "test", os.getpid(), "0", (), None, 10)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])))
