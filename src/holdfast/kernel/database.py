"""What the kernel asks of a database: run an operation in a transaction, within its bounds, and pass hints on.

An operation is an async function whose first argument is a `Transaction`. It awaits nothing else and has no
outside effect, so a driver may run it again from the start, run it on another thread, or commit it together
with others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from holdfast.kernel.rows import EndedLease, MovedJob
from holdfast.kernel.sql import Dialect, Exec, Many, One

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=tuple[Any, ...])

Operation = Callable[Concatenate["Transaction", P], Awaitable[R]]

CROWD = 5  # so many live workers look at the store each for itself


class StoredSchema(NamedTuple):
    version: int
    oldest_code: int


class Guard(NamedTuple):
    """What a migration locks and asks in its own transaction before it begins.

    `locks` are taken in their order, all of them before the question. `judge` raises when the answer forbids it.
    """

    locks: Sequence[str]
    question: str
    judge: Callable[[Sequence[Any]], None]


class Owner(Protocol):
    """A layer above, as the kernel sees it: the owner of some jobs. `workers.layer.Layer` is the whole of it."""

    @property
    def name(self) -> str:
        """What its jobs carry in the column `layer`."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """How the kinds of its jobs begin. No program and no other layer can declare a job under such a kind."""

    @property
    def retry_advice(self) -> str:
        """What to do instead of enqueuing one of its jobs again."""

    @property
    def cancel_advice(self) -> Mapping[str, str]:
        """The kinds of its jobs that nobody cancels by hand, each with what to do instead."""

    @property
    def own_failures(self) -> bool:
        """Whether it counts its failures itself, by what its jobs are for."""

    async def held_up(self, tx: Transaction, seqs: Sequence[int]) -> Set[int]:
        """Those of these jobs that somebody else keeps from ending: rows of the layer that their end writes are locked.
        The rows of the others are locked from now on."""

    async def ended(self, tx: Transaction, jobs: Sequence[EndedLease | MovedJob]) -> None:
        """Some of its jobs have ended, in this transaction. What this writes is committed with their end, and what it
        raises undoes it."""


class Announcement(NamedTuple):
    """What outside listeners read: words on their channel."""

    channel: str
    payload: str


class Transaction(Protocol):
    @property
    def layers(self) -> Sequence[Owner]:
        """The layers of the program, which this tells when their jobs end."""

    @property
    def lent(self) -> bool:
        """A caller's own: its statements send their hints themselves, so that an enqueue stays one statement."""

    async def many(self, statement: Many[T], /, **parameters: object) -> list[T]: ...

    async def one(self, statement: One[T], /, **parameters: object) -> T | None: ...

    async def run(self, statement: Exec, /, **parameters: object) -> None: ...

    async def hint(self, note: str) -> None:
        """Send a wake-up once this has committed; a rollback sends none. See the hints below."""

    async def announce(self, notes: Sequence[Announcement]) -> None:
        """Tell listeners outside once this has committed, in this order; where the database has none, nobody."""


def ignore_change() -> None:
    """What is called when nobody wants to know."""


class Presence(Protocol):
    """A sign of life that the operating system or the server takes away when this process dies."""

    async def hold(self, worker: int, changed: Callable[[], None] = ignore_change) -> bool:
        """Take the sign for this worker; False when it cannot be shown now (a pooler is between, no connection is free,
        another has it). `changed` is called whenever it is lost or taken from then on, on the event loop."""

    def shows(self, worker: int) -> bool:
        """Whether this worker's sign is shown now, as far as this process knows. Safe on any thread."""

    def disputed(self, worker: int) -> bool:
        """Whether another showed a sign under this worker's number when `hold` asked: it was given out twice."""

    async def withdraw(self, worker: int) -> None: ...

    async def absent(self, workers: Iterable[int]) -> set[int]:
        """Those whose sign is gone now. Empty while a recent restart or reconnect makes signs unreliable."""


class BlockingStore(Protocol):
    """The store for one thread of its own, reached without the event loop."""

    def open(self) -> None:
        """Take whatever connection it needs, and keep it; `Unavailable` when there is none to be had."""

    def call(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def close(self) -> None: ...


class Database(Protocol):
    dialect: Dialect

    @property
    def presence(self) -> Presence: ...

    @property
    def crowd(self) -> float:
        """So many live workers each look for themselves; among more, one tells the others of its look. Infinite where
        this process may not hear of it: no hints come, or they are not worth a look that costs next to nothing."""

    def introduce(self, owner: str) -> None:
        """Say who opens connections from now on, for those who look at the server."""

    async def connect(self) -> None:
        """Reach the store without looking at its tables, as migrations do; safe to call again."""

    async def open(self) -> None:
        """Connect, and refuse a store that cannot keep the promises; safe to call again."""

    async def close(self) -> None: ...

    async def transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `operation` in one transaction; repeat it whole on deadlock, conflict or a lost connection."""

    def blocking(self) -> BlockingStore: ...

    async def listen(self, heard: Callable[[str], None]) -> None:
        """Call `heard` with every hint from now on; with "" after a gap in which hints may be missed."""

    def unlisten(self, heard: Callable[[str], None]) -> None:
        """Call it no more; nothing happens when it was not called."""

    async def script(self, statements: Sequence[str], *, at: int | None, guard: Guard | None = None) -> bool:
        """Run a migration's statements in one transaction, one migrator at a time, if its guard allows it.

        False, and nothing was run: the tables are no longer at version `at`, because someone else was faster.
        """

    async def tidy(self, after: int) -> bool:
        """Clear away dead rows, where more than `after` have gathered, or a log that grew; True when that was done."""

    async def stored_schema(self) -> StoredSchema | None:
        """The version of the tables that are there; None when there are none.

        Raises `SchemaTooOld` where a development version from before release 0.1.0 made them.
        """


class Transactor(Protocol):
    """The database, or whatever else runs operations in a transaction."""

    async def transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...


class CallerConnection(Transactor, Protocol):
    """A connection that the caller lends."""

    @property
    def commits_each(self) -> bool:
        """Would the connection commit each statement by itself, because no transaction is open?"""


def drive(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never waits: what awaits only a transaction that answers at once."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: R = done.value
        return result
    coroutine.close()
    raise RuntimeError("an operation awaited something other than its transaction")


def single(operation: Operation[P, R]) -> Operation[P, R]:
    """Mark an operation that is one statement on PostgreSQL: it commits by itself, in one round trip."""
    operation.single = True  # type: ignore[attr-defined]
    return operation


def reading(operation: Operation[P, R]) -> Operation[P, R]:
    """Mark what changes nothing: on SQLite it takes no turn among the writers. Several statements see one moment there,
    on PostgreSQL each its own."""
    operation.reading = True  # type: ignore[attr-defined]
    return single(operation)


def short(operation: Operation[P, R]) -> Operation[P, R]:
    """Mark an operation on a few rows for which somebody waits. While nobody queues, SQLite runs it on the event loop's
    own thread: the way to another one and back takes longer than the operation."""
    operation.short = True  # type: ignore[attr-defined]
    return operation


def is_single(operation: object) -> bool:
    return getattr(operation, "single", False)


def is_reading(operation: object) -> bool:
    return getattr(operation, "reading", False)


def is_short(operation: object) -> bool:
    return getattr(operation, "short", False)


# Bounds: what the code that runs now may do in the store, whatever operation it asks for.
#
# The web sets them around a request, and drivers keep them. Reads go over connections of their own, which change
# nothing and end a query that takes too long. What belongs to a tenant is read and changed under row security, where
# that is on. A task inherits the bounds of the code that starts it, so a task that serves others too is started
# `unbound`.
#
# What a worker does for all of its jobs is `urgent`: it must not wait for a connection behind calls that wait for
# locks.


class Bounds(NamedTuple):
    """`reads`: nothing may be changed, and no query may take long. `tenant`: whose rows there are; None: all."""

    reads: bool
    tenant: str | None = None


READS = Bounds(reads=True)
_urgent: ContextVar[bool] = ContextVar("holdfast_urgent", default=False)
_current: ContextVar[Bounds | None] = ContextVar("holdfast_bounds", default=None)


def bounds_now() -> Bounds | None:
    return _current.get()


@contextmanager
def bound(bounds: Bounds | None) -> Iterator[None]:
    """Around code that must keep within these bounds."""
    before = _current.set(bounds)
    try:
        yield
    finally:
        _current.reset(before)


@contextmanager
def urgent(*, when: bool = True) -> Iterator[None]:
    """Around one call of a worker's own that takes no time and waits for nobody's lock. It starts no task."""
    before = _urgent.set(when)
    try:
        yield
    finally:
        # What a dead loop left behind is closed from another context, where there is nothing to take back.
        with suppress(ValueError):
            _urgent.reset(before)


def is_urgent() -> bool:
    return _urgent.get()


def unbound() -> AbstractContextManager[None]:
    """Around what the process does for itself while it serves a request."""
    return bound(None)


# Hints: words that make a worker or a caller look sooner, sent after the commit that caused them. Any may be lost.
#
# A hint is a subject and names: `route 1,2,3` (something may be claimable there), `cancel 4,5` (these workers should
# renew now), `looked …` (somebody looked at the store for everybody: `kernel.claim`). `look` names nothing and is for
# everybody. Layers have words of their own, which their readers understand.


LOOK = "look"
WORDS = frozenset({LOOK, "looked", "route", "cancel"})  # a layer's words are others
EVERY = "*"  # in place of names that would be too many
LARGEST = 7_900  # bytes; a NOTIFY carries 8,000


async def hint(tx: Transaction, routes: Iterable[int]) -> None:
    """Wake the workers that serve these routes, when this transaction commits."""
    if note := route_note(routes):
        await tx.hint(note)


def route_note(routes: Iterable[int]) -> str:
    """The hint for work on these routes; "" when there are none."""
    listed = ",".join(str(route) for route in sorted(set(routes)))
    return f"route {listed}" if listed else ""


def merged(notes: Iterable[str], largest: int = LARGEST) -> list[str]:
    """The same hints in as few notes as they fit into, each no larger than that; subjects stay in their order."""
    named: dict[str, set[str]] = {}
    for note in notes:
        subject, _, names = note.partition(" ")
        named.setdefault(subject, set()).update(names.split(",") if names else ())
    return list(dict.fromkeys(note for subject, names in named.items() for note in _cut(subject, names, largest)))


def _cut(subject: str, names: set[str], largest: int) -> Iterator[str]:
    if EVERY in names:
        names = {EVERY}
    size, part = len(subject.encode()), list[str]()
    if not names:
        yield subject if size <= largest else LOOK
    begun = size
    for name in sorted(names):
        more = 1 + len(name.encode())
        if part and size + more > largest:
            yield f"{subject} {','.join(part)}"
            size, part = begun, []
        if size + more > largest:
            yield LOOK
            continue
        size, part = size + more, [*part, name]
    if part:
        yield f"{subject} {','.join(part)}"
