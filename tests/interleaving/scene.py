"""A scene: a start that operations made, and the verbs that make sense in it.

A verb is a method marked `@verb` which says what is called. It may be asked for many times, so whatever it makes (ids,
payloads) is the same each time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

from holdfast.errors import HoldfastError
from holdfast.kernel import ids, waiting
from holdfast.kernel.brokers import claim_for
from holdfast.kernel.cancel import (
    CancelFilter,
    Cancelled,
    Place,
    cancel_family,
    cancel_free_family,
    cancel_these,
    find_wanted,
    newest_job,
)
from holdfast.kernel.claim import claim
from holdfast.kernel.complete import complete_and_settle, ending
from holdfast.kernel.database import Transaction
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import JobId
from holdfast.kernel.lanes import claim_in_lanes, open_lanes
from holdfast.kernel.leases import beat, expire, renew, renew_each
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import Lease, NewJob
from holdfast.kernel.waiting import overdue, wake
from holdfast.kernel.watch import bring_back
from holdfast.kernel.workers import Registration, lose_workers, register
from holdfast.outcomes import Cancel, Discard, Done, Fail, Snooze, TryAgain
from tests.interleaving.pausing import Call, call
from tests.support.jobs import plain_job
from tests.support.stores import Store

SECOND = 1_000_000
TTL_US = 60 * SECOND
CEILING_US = 3_600 * SECOND
STALE = "stale_"  # so begins the name of a verb that a zombie calls: the store must refuse it
POLICY = RetryPolicy(base="10s", jitter=0)

_SKIPPING = frozenset(
    {
        claim,
        claim_for,
        claim_in_lanes,
        renew,
        renew_each,
        beat,
        expire,
        lose_workers,
        overdue,
        wake,
        open_lanes,
        cancel_family,
        cancel_free_family,
        bring_back,
    }
)
_PLACES: tuple[Place, ...] = ("later", "blocked", "pending", "running")

Outcome = Done | TryAgain | Fail | Cancel | Discard | Snooze

S = TypeVar("S", bound="Scene")
F = TypeVar("F", bound=Callable[..., Any])
Verb = Callable[[S], Call]


def skips(operation: object) -> bool:
    """Does it leave what it finds locked? Such an operation is called again and again, and finds it then."""
    return operation in _SKIPPING or hasattr(operation, "is_skipping")


def skipping(operation: F) -> F:
    """Mark what a scene has made of operations that skip locked rows."""
    operation.is_skipping = True  # type: ignore[attr-defined]
    return operation


def verb(method: Verb[S]) -> Verb[S]:
    method.is_verb = True  # type: ignore[attr-defined]
    return method


async def cancel_many(tx: Transaction, wanted: CancelFilter, *, reason: str) -> Cancelled:
    """What the operation of that name does in several transactions: it looks until nothing moved on meanwhile."""
    newest = await newest_job(tx)
    found: set[int] = set()
    for _ in range(2):
        for place in _PLACES:
            found.update(await find_wanted(tx, wanted, place, upto=newest, limit=100))
    return await cancel_these(tx, sorted(found), wanted.states, reason=reason)


class Scene:
    name: ClassVar[str]
    limit: ClassVar[tuple[str, int] | None] = None  # a lane, and how many of its jobs may run at once
    channels: ClassVar[tuple[str, ...]] = ()
    removes: ClassVar[bool] = False  # some verb removes jobs: those that are not there any more have ended

    def __init__(self, store: Store) -> None:
        self.store = store
        self.submitted: dict[JobId, NewJob] = {}
        self.sent: dict[str, str] = {}  # payload of each signal, and its channel
        self.worker = 0

    async def build(self) -> None:
        raise NotImplementedError

    async def look(self, tx: Transaction) -> dict[str, Any]:
        """What can be seen beside what the kernel tells."""
        return {}

    def outcome(self, lease: Lease) -> Outcome:
        """How whoever claims a job in the end ends it."""
        return Done(None)

    async def ended(self) -> list[str]:
        """What is wrong, now that every job has ended."""
        return []

    def heard_of_the_dead(self, name: str, answer: Any) -> bool:
        """Whether a verb of a zombie was answered as if its lease were still its own."""
        if not name.startswith(STALE) or isinstance(answer, HoldfastError):
            return False
        return bool(answer[0] if isinstance(answer, tuple) else answer != [])

    @classmethod
    def verbs(cls) -> Iterator[str]:
        """In the order in which they are written."""
        for parent in reversed(cls.__mro__):
            yield from (name for name, value in vars(parent).items() if hasattr(value, "is_verb"))

    def call(self, name: str) -> Call:
        said: Call = getattr(self, name)()
        return said

    # What scenes are built of

    async def do(self, operation: Any, /, *args: Any, **options: Any) -> Any:
        return await self.store.do(operation, *args, **options)

    def id(self, *parts: str | int) -> JobId:
        return ids.derived_id(self.name, *parts)

    def job(self, name: str, kind: str = "work", *, laned: bool = False, **changes: Any) -> NewJob:
        """The job of that name; what it requires of its worker is its kind alone."""
        route = route_for("default", kind, laned=laned or "lane" in changes)
        said = {"payload": f'"{name}"', **changes}
        made = plain_job(JobId(said.pop("id", self.id(name))), kind, route, **said)
        self.submitted[made.id] = made
        return made

    def enqueuing(self, *jobs: NewJob) -> Call:
        return call(enqueue, list(jobs), self.routes(*jobs))

    def routes(self, *jobs: NewJob) -> list[Any]:
        return sorted({route_for(job.queue, job.kind, laned=job.lane is not None) for job in jobs})

    async def put(self, *jobs: NewJob) -> None:
        await self.do(enqueue, list(jobs), self.routes(*jobs))

    def who(self, name: str, incarnation: str = "first") -> Registration:
        capabilities = ("job:work", "job:parent", "job:child", "job:other")
        unique = self.id("incarnation", name, incarnation)
        return Registration(unique, name, name, "test", 1, "0", capabilities, None, 10)

    async def register(self, name: str = "w") -> int:
        number: int = await self.do(register, self.who(name), [], ttl_us=TTL_US, gone=[])
        return number

    def claiming(self, n: int = 1, kind: str = "work", *, laned: bool = False, worker: int | None = None) -> Call:
        operation = claim_in_lanes if laned else claim
        routes = [route_for("default", kind, laned=laned).id]
        return call(operation, worker or self.worker, routes, n, TTL_US)

    async def claimed(self, *args: Any, **options: Any) -> list[Lease]:
        said = self.claiming(*args, **options)
        leases: list[Lease] = await self.do(said.operation, *said.args, **said.options)
        return leases

    def ending(self, lease: Lease, outcome: Outcome) -> Any:
        return ending(lease, outcome, policy=POLICY, chance=random.Random(0), result_cap=999, error_cap=999)

    def settling(self, *endings: tuple[Lease, Any]) -> Call:
        """End attempts as a worker does: an outcome, or an ending that was made already."""
        made = [self.ending(lease, how) if isinstance(how, Outcome) else how for lease, how in endings]
        parents = sorted({lease.parent for lease, _ in endings if lease.parent is not None})
        return call(complete_and_settle, made, parents)

    def signalling(self, name: str, channel: str) -> Call:
        self.sent[f'"{name}"'] = channel
        return call(waiting.signal, self.id("signal", name), channel, f'"{name}"')

    def bringing_back(self) -> Call:
        return call(bring_back, lease_ttl_us=TTL_US, duty_ttl_us=TTL_US, limit=100)

    def sweeping(self) -> Call:
        return call(expire, gone=[], limit=100, backoff_us=SECOND, chance=random.Random(0))
