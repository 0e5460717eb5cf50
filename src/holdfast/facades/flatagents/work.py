"""Pools of work: `SQLiteWorkBackend` and its siblings, which differ in where they keep their rows.

Each call returns what it says; its form for async code ends in `_async`. `complete` and `fail` name no worker: a pool
remembers the claims that were made through it. Code that claimed elsewhere gives `fence` or `worker_id`, and in the
hooks of a machine the worker is known. What comes too late is ignored, logged, and answered with False.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from holdfast import validation
from holdfast.errors import BadSetting, NotFound, UsageError
from holdfast.facades.flatagents import registration
from holdfast.facades.flatagents.records import MAX_RETRIES, WorkerRegistration, WorkItem
from holdfast.facades.flatagents.registration import (
    DEFAULT_PATH,
    MEMORY,
    Store,
    StoreBackend,
    check_id,
    registration_of,
    sqlite_url,
)
from holdfast.kernel import brokers, codec, demand, queries
from holdfast.kernel.brokers import LostAnswers
from holdfast.kernel.complete import RELEASED, complete_and_settle, error_json, repeated
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import JobId, is_id, new_id
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import Ending, JobRow, Lease, LeaseRef, NewJob, Route
from holdfast.kernel.states import State, WorkerState
from holdfast.kernel.workers import Registration

# What happens to a work item in one transaction: the kernel's operations on its job.
#
# A pool is a queue, an item is a job in it. Who may end a claim is the kernel's to say: every end names the claim's
# token, so what a worker says after its item was taken back changes nothing.


KIND = "flatagents.work"
QUEUE = "flatagents."
_STATUSES = {
    State.RUNNING: "claimed",
    State.SUCCEEDED: "done",
    State.FAILED: "poisoned",
    State.CANCELLED: "cancelled",
}
STATES = {"pending": State.PENDING, "claimed": State.RUNNING, "done": State.SUCCEEDED, "poisoned": State.FAILED}


def queue_of(pool: str) -> str:
    return f"{QUEUE}{pool}"


def route_of(pool: str) -> Route:
    return route_for(queue_of(pool), KIND)


async def push(tx: Transaction, jobs: list[NewJob], route: Route, fired: Sequence[tuple[NewJob, Route]] = ()) -> None:
    """Add items, and with them the executions that they trigger: both are there, or neither is."""
    await enqueue(tx, jobs, [route], notify=True)
    if fired:
        await enqueue(tx, [job for job, _ in fired], sorted({each for _, each in fired}))


async def claim(
    tx: Transaction, pool: str, who: Registration, notes: brokers.ClaimNotes | None = None, *, again: bool
) -> WorkItem | None:
    """The oldest item that nobody has, for this worker; with `again` the one that it has already, if there is one."""
    owner = await registration.owner_for(tx, who)
    held = await brokers.leases_of(tx, owner, queue=queue_of(pool), limit=1) if again else []
    if held:
        return _claimed(held[0].lease, who.id)
    wanted = brokers.Claimer(owner, frozenset({route_of(pool).id}), 1, registration.LASTING_US)
    leases = await brokers.claim_for(tx, [wanted], notes)
    return _claimed(leases[0], who.id) if leases else None


def _claimed(lease: Lease, worker_id: str) -> WorkItem:
    fence = ".".join(map(str, lease.held))
    data = codec.decode(lease.payload)
    return WorkItem(str(lease.id), data, worker_id, lease.attempts, lease.max_attempts, "claimed", fence=fence)


@reading
async def size(tx: Transaction, pool: str) -> demand.Demand:
    return await demand.claimable(tx, [queue_of(pool)])


async def release_by_worker(tx: Transaction, pool: str, worker_id: str) -> int:
    """Take back what every incarnation of a worker has in this pool."""
    row = await registration.latest(tx, worker_id)
    return 0 if row is None else await registration.take_back(tx, row.seq, queue=queue_of(pool))


async def end(
    tx: Transaction, item_id: str, held: LeaseRef | str | None, outcome: str, *, text: str | None = None
) -> bool:
    """End a claim, which its token or the name of its worker says; False when it is not current any more."""
    job = await find(tx, item_id)
    claim = await _claim(tx, job, held) if isinstance(held, str) else held
    if claim is None:
        return isinstance(held, str) and await _told_before(tx, job, held, outcome)
    ending = _ending(claim, job, outcome, text)
    worker = await registration.by_number(tx, claim.worker)
    if worker is not None and worker.status != WorkerState.LOST and await complete_and_settle(tx, [ending], []):
        return True
    return bool(await repeated(tx, [ending]))


def _ending(claim: LeaseRef, job: JobRow, outcome: str, text: str | None) -> Ending:
    match outcome:
        case "succeeded":
            return Ending(*claim, "succeeded", State.SUCCEEDED, 0, 1, text, None)
        case "failed":
            last = job.attempts + 1 >= job.max_attempts
            error = error_json("work_failed", text or "it failed")
            state, name = (State.FAILED, "failed") if last else (State.PENDING, "retried")
            return Ending(*claim, name, state, 0, 1, None, error)
        case _:
            return Ending(*claim, RELEASED, State.PENDING, 0, 0, None, None)


async def _claim(tx: Transaction, job: JobRow, worker_id: str) -> LeaseRef | None:
    found = await brokers.find_lease(tx, job.id, worker_id)
    return None if found is None else found.lease.held


async def _told_before(tx: Transaction, job: JobRow, worker_id: str, outcome: str) -> bool:
    """Whether the last attempt was this worker's, and ended so."""
    attempts = await queries.list_attempts(tx, job.seq)
    worker = await registration.by_number(tx, attempts[-1].worker) if attempts else None
    return worker is not None and worker.id == worker_id and attempts[-1].outcome == outcome


@reading
async def find(tx: Transaction, item_id: str) -> JobRow:
    """The job of an item; `NotFound` when there is none."""
    job = await queries.find_job(tx, JobId(item_id)) if is_id(item_id) else None
    if job is None or job.kind != KIND:
        raise NotFound(f"there is no work item {item_id!r:.80} in this database.")
    return job


@reading
async def seen(tx: Transaction, item_id: str) -> WorkItem:
    return await _item(tx, await find(tx, item_id))


@reading
async def list_items(tx: Transaction, pool: str, status: str | None, limit: int) -> list[WorkItem]:
    """Items of a pool, the newest first."""
    state = None if status is None else STATES[status]
    chosen = queries.JobFilters(queue=queue_of(pool), kind=KIND, state=state)
    page = await queries.list_jobs(tx, chosen, limit=limit)
    return [await _item(tx, job) for job in page]


async def _item(tx: Transaction, job: JobRow) -> WorkItem:
    worker = await registration.by_number(tx, job.worker) if job.worker is not None else None
    error = codec.decode(job.error) if job.error else None
    return WorkItem(
        id=str(job.id),
        data=codec.decode(job.payload),
        claimed_by=None if worker is None else worker.id,
        attempts=job.attempts,
        max_retries=job.max_attempts,
        status=_STATUSES.get(State(job.state), "pending"),
        result=codec.decode(job.result) if job.result else None,
        error=None if error is None else error.get("message"),
    )


log = logging.getLogger("holdfast.flatagents")

acting: ContextVar[str | None] = ContextVar("holdfast_flatagents_worker", default=None)  # for whom code runs now

REMEMBERED = 10_000  # claims of one backend
_PUSH_OPTIONS = {"max_retries"}


class PushWatcher(Protocol):
    """What a push does beside adding its item."""

    def fired(self, pool_id: str, item_id: str) -> Sequence[tuple[NewJob, Route]]:
        """Jobs that are enqueued with the item, in its transaction."""

    def start(self, jobs: Sequence[NewJob], url: str) -> None:
        """They are stored in this database, and the item with them."""


class HoldfastWorkBackend(StoreBackend):
    """Pools by name, in one database."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._pools: dict[str, HoldfastWorkPool] = {}
        self.watcher: PushWatcher | None = None

    def pool(self, name: str) -> HoldfastWorkPool:
        """The pool of this name; it exists from the first item on."""
        if name not in self._pools:
            codec.check_text(name, what="the name of a pool")
            self._pools[name] = HoldfastWorkPool(self._store, name, self)
        return self._pools[name]


class HoldfastWorkPool:
    """Items that workers claim, the oldest first, each by one worker at a time."""

    def __init__(self, store: Store, name: str, backend: HoldfastWorkBackend) -> None:
        self._store = store
        self._backend = backend
        self._claims: OrderedDict[str, LeaseRef] = OrderedDict()
        self._lost_answers = LostAnswers()
        self.name = name

    def __repr__(self) -> str:
        return f"WorkPool({self.name!r})"

    def push(self, item: Any, options: Mapping[str, Any] | None = None, **more: Any) -> str:
        """Add an item, and return its id. `max_retries` (3) is how many tries it has in all."""
        return self._store.call(self.push_async(item, options, **more))

    async def push_async(self, item: Any, options: Mapping[str, Any] | None = None, **more: Any) -> str:
        asked = {**(options or {}), **more}
        if unknown := sorted(asked.keys() - _PUSH_OPTIONS):
            raise UsageError(f"{unknown[0]!r} is not an option of push; there is max_retries.")
        tries = asked.get("max_retries")
        job = self._new(item, MAX_RETRIES if tries is None else validation.whole(tries, "max_retries", least=1))
        watcher = self._backend.watcher
        fired = [] if watcher is None else watcher.fired(self.name, str(job.id))
        await self._store.transact(push, [job], route_of(self.name), fired)
        if watcher is not None and fired:
            watcher.start([job for job, _ in fired], self._store.url)
        return str(job.id)

    def _new(self, item: Any, tries: int) -> NewJob:
        core, route = self._store.core, route_of(self.name)
        return NewJob(
            id=new_id(core.ports),
            kind=KIND,
            queue=route.queue,
            route=route.id,
            tenant="",
            priority=100,
            delay_us=None,
            due_at=None,
            timeout_us=None,
            deadline_us=None,
            deadline_at=None,
            max_attempts=tries,
            max_rescues=core.settings.max_rescues,
            parent=None,
            retry_of=None,
            payload=codec.encode(item, what="a work item", cap=core.settings.payload_cap),
            metadata="{}",
        )

    def claim(self, worker_id: str) -> WorkItem | None:
        """The oldest item that nobody has; None when there is none. `UnknownWorker` for one that was given up."""
        return self._store.call(self.claim_async(worker_id, again=acting.get() == worker_id))

    async def claim_async(self, worker_id: str, *, again: bool = False) -> WorkItem | None:
        """`again`: the worker has one item at most, and one that it has already is claimed no second time."""
        who = registration_of(self._store, WorkerRegistration(check_id(worker_id)), known=False)
        await self._lost_answers.give_back(self._store)
        with self._lost_answers.claiming() as notes:
            item = await self._store.transact(claim, self.name, who, notes, again=again)
            notes.answered([] if item is None else [_held(item.fence or "")])
        if item is not None:
            self._claims[item.id] = _held(item.fence or "")
            while len(self._claims) > REMEMBERED:
                self._claims.popitem(last=False)
        return item

    def complete(self, item_id: str, result: Any = None, **claim: str | None) -> bool:
        """The item is done. False, and nothing is changed, when it was taken back from its worker."""
        return self._store.call(self.complete_async(item_id, result, **self._by(claim)))

    async def complete_async(self, item_id: str, result: Any = None, **claim: str | None) -> bool:
        text = codec.encode(result, what="the result of a work item", cap=self._store.core.settings.result_cap)
        return await self._end(item_id, "succeeded", text, claim)

    def fail(self, item_id: str, error: str | None = None, **claim: str | None) -> bool:
        """A try has failed: the item goes back to the pool, or after its last try is poisoned."""
        return self._store.call(self.fail_async(item_id, error, **self._by(claim)))

    async def fail_async(self, item_id: str, error: str | None = None, **claim: str | None) -> bool:
        return await self._end(item_id, "failed", None if error is None else str(error), claim)

    def release(self, item_id: str, **claim: str | None) -> bool:
        """Hand an item back unworked: that costs no try."""
        return self._store.call(self.release_async(item_id, **self._by(claim)))

    async def release_async(self, item_id: str, **claim: str | None) -> bool:
        return await self._end(item_id, "released", None, claim)

    def size(self) -> int:
        """How many items could be claimed now."""
        return self._store.call(self.size_async())

    async def size_async(self) -> int:
        return (await self._store.transact(size, self.name)).pending

    def claimed(self) -> int:
        """How many items workers have now."""
        return self._store.call(self.claimed_async())

    async def claimed_async(self) -> int:
        return (await self._store.transact(size, self.name)).running

    def release_by_worker(self, worker_id: str) -> int:
        """Take back what a worker has in this pool: each costs a try, and one on its last is poisoned."""
        return self._store.call(self.release_by_worker_async(worker_id))

    async def release_by_worker_async(self, worker_id: str) -> int:
        return await self._store.transact(release_by_worker, self.name, check_id(worker_id))

    def get(self, item_id: str) -> WorkItem:
        """An item as it stands; `NotFound` when there is none."""
        return self._store.call(self.get_async(item_id))

    async def get_async(self, item_id: str) -> WorkItem:
        return await self._store.transact(seen, item_id)

    def items(self, status: str | None = None, *, limit: int = 1_000) -> list[WorkItem]:
        """The items of a status, or all; the newest first."""
        return self._store.call(self.items_async(status, limit=limit))

    async def items_async(self, status: str | None = None, *, limit: int = 1_000) -> list[WorkItem]:
        if status is not None and status not in STATES:
            raise BadSetting(f"an item's status must be one of {', '.join(STATES)}; got {status!r}.")
        return await self._store.transact(list_items, self.name, status, limit)

    releaseByWorker = release_by_worker  # noqa: N815  as the document has it

    def _by(self, claim: Mapping[str, str | None]) -> dict[str, str | None]:
        """The caller's thread knows for whom it acts; the store's does not."""
        return {"acting_for": acting.get(), **claim}

    async def _end(self, item_id: str, outcome: str, text: str | None, claim: Mapping[str, str | None]) -> bool:
        if unknown := sorted(claim.keys() - {"fence", "worker_id", "acting_for"}):
            raise UsageError(f"{unknown[0]!r} is no option here; a claim is named by fence or worker_id.")
        fence, worker = claim.get("fence"), claim.get("worker_id")
        held = _held(fence) if fence else worker or self._claims.get(item_id) or claim.get("acting_for") or acting.get()
        ended = await self._store.transact(end, item_id, held, outcome, text=text)
        if not ended:
            log.warning(
                "pool %s: what was said of item %s (%s) is ignored: %s",
                *(self.name, item_id, outcome),
                "it was taken back from its worker" if held else "no claim of it is known here: give its fence",
                extra={"item": item_id, "pool": self.name},
            )
        return ended


def _held(fence: str) -> LeaseRef:
    parts = fence.split(".")
    if len(parts) != len(LeaseRef._fields) or not all(part.isdecimal() for part in parts):
        raise UsageError(f"{fence!r:.80} is not the fence of a work item: claim returns one.")
    return LeaseRef(*map(int, parts))


class SQLiteWorkBackend(HoldfastWorkBackend):
    """Pools in a SQLite file."""

    def __init__(self, path: str | os.PathLike[str] = DEFAULT_PATH) -> None:
        super().__init__(Store(sqlite_url(path)))


class PostgresWorkBackend(HoldfastWorkBackend):
    """Pools in a PostgreSQL database."""

    def __init__(self, url: str) -> None:
        super().__init__(Store(url))


class MemoryWorkBackend(HoldfastWorkBackend):
    """Pools in this process, for tests: threads may share them, and they are gone with it."""

    def __init__(self) -> None:
        super().__init__(Store(MEMORY))
