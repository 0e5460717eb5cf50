"""A process that goes on after its leases are over: `python -m tests.chaos.zombie URL [in-transaction]`.

It claims one job for each kind of write, takes a duty, says so, and waits to be told; then it tries to write as if
nothing had happened, and says what became of each write as one line of JSON. With `in-transaction` it stops itself
in the middle of a transaction that has locked its rows.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping

from holdfast.clock import Ports
from holdfast.errors import StoreRefused
from holdfast.kernel import duties, ids, waiting
from holdfast.kernel.claim import claim
from holdfast.kernel.complete import complete, ending, release
from holdfast.kernel.database import Database, Transaction
from holdfast.kernel.drivers import connect
from holdfast.kernel.enqueue import enqueue_children
from holdfast.kernel.leases import beat
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.rows import Lease, NewJob
from holdfast.kernel.statements import WaitingSql, WorkersSql
from holdfast.kernel.workers import Registration, register
from holdfast.outcomes import Done
from tests.chaos.jobs import quick
from tests.support.apps import settings_with
from tests.support.jobs import plain_job

TTL_US = 1_500_000
WRITES = 8


class Zombie:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._ports = Ports()

    async def live(self) -> None:
        id = ids.new_id(self._ports)
        who = Registration(id, id, "zombie", "test", os.getpid(), "0", (), None, 10)
        self._worker = await self._database.transact(register, who, [], ttl_us=TTL_US, gone=[])
        route = quick.definition.route.id
        self._leases = await self._database.transact(claim, self._worker, [route], WRITES, TTL_US)
        assert len(self._leases) == WRITES
        taken = await self._database.transact(duties.acquire, duties.CLEANUP, self._worker, ttl_us=TTL_US, gone=[])
        assert taken is not None
        self._term = taken

    async def write(self) -> dict[str, str]:
        completed, released, stepped, reporting, parked, taking, starting, beating = self._leases
        done = ending(
            completed, Done("late"), policy=RetryPolicy(), chance=self._ports.random, result_cap=99, error_cap=99
        )
        do = self._database.transact
        tries: Mapping[str, Callable[[], Awaitable[object]]] = {
            "complete": lambda: do(complete, [done]),
            "release": lambda: do(complete, [release(released)]),
            "store_step": lambda: do(waiting.store_step, stepped, "late", "1"),
            "progress": lambda: do(waiting.report_progress, reporting, "1"),
            "park": lambda: do(waiting.park, parked, channel="late", timeout_us=None),
            "take_signal": lambda: do(waiting.take_signal, taking, "late", "late"),
            "enqueue_children": lambda: do(enqueue_children, starting, [child_of(starting)], []),
            "renew": lambda: self._renew(beating),
            "heartbeat": self._heartbeat,
            "renew_duty": lambda: do(duties.renew, self._term, self._worker, ttl_us=TTL_US),
            "clean_up": lambda: do(duties.clean_up, self._term, self._worker, key_age_us=0, worker_age_us=0),
        }
        return {name: await attempt(write) for name, write in tries.items()}

    async def freeze_in_transaction(self) -> None:
        await self._database.transact(locked_and_frozen, self._worker, self._leases)

    async def _renew(self, lease: Lease) -> bool:
        answer = await self._database.transact(
            beat, self._worker, 1, [lease.held], ttl_us=TTL_US, ceiling_us=60_000_000
        )
        assert answer.lost == [lease.held]
        return bool(answer.renewed)

    async def _heartbeat(self) -> bool:
        return (await self._database.transact(beat, self._worker, 1, [], ttl_us=TTL_US, ceiling_us=0)).registered


async def attempt(write: Callable[[], Awaitable[object]]) -> str:
    try:
        answer = await write()
    except StoreRefused as problem:
        return type(problem).__name__
    return "written" if answer else "nothing"


async def locked_and_frozen(tx: Transaction, worker: int, leases: list[Lease]) -> None:
    await tx.one(WorkersSql.heartbeat, seq=worker, active=1)
    for lease in leases:
        await tx.one(WaitingSql.hold, **lease.held._asdict())
    os.kill(os.getpid(), signal.SIGSTOP)


def child_of(parent: Lease) -> NewJob:
    return plain_job(ids.derived_id(parent.id, "late", 0), "quick", quick.definition.route)


async def main(url: str, how: str) -> None:
    database = connect(url, settings_with(url=url, lease_ttl="1500ms", heartbeat="300ms"), Ports())
    await database.open()
    zombie = Zombie(database)
    await zombie.live()
    print("holding", flush=True)
    if how == "in-transaction":
        await zombie.freeze_in_transaction()
    await asyncio.to_thread(sys.stdin.readline)
    print(json.dumps(await zombie.write()), flush=True)
    await database.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
