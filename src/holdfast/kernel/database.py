"""What the kernel asks of a database: run an operation in a transaction, and pass hints on.

An operation is an async function whose first argument is a `Transaction`. It awaits nothing else and has no
outside effect, so a driver may run it again from the start, run it on another thread, or commit it together
with others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence, Set
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from holdfast.kernel.hints import Announcement
from holdfast.kernel.rows import Ended, Moved
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

    async def ended(self, tx: Transaction, jobs: Sequence[Ended | Moved]) -> None:
        """Some of its jobs have ended, in this transaction. What this writes is committed with their end, and what it
        raises undoes it."""


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
        """Send a wake-up once this has committed; a rollback sends none. See `kernel.hints`."""

    async def announce(self, notes: Sequence[Announcement]) -> None:
        """Tell listeners outside once this has committed, in this order; where the database has none, nobody."""


def unheeded() -> None:
    """What is called when nobody wants to know."""


class Presence(Protocol):
    """A sign of life that the operating system or the server takes away when this process dies."""

    async def hold(self, worker: int, changed: Callable[[], None] = unheeded) -> bool:
        """Take the sign for this worker; False when it cannot be shown now (a pooler is between, no connection is free,
        another has it). `changed` is called whenever it is lost or taken from then on, on the event loop."""

    def shows(self, worker: int) -> bool:
        """Whether this worker's sign is shown now, as far as this process knows. Safe on any thread."""

    def disputed(self, worker: int) -> bool:
        """Whether another showed a sign under this worker's number when `hold` asked: it was given out twice."""

    async def withdraw(self, worker: int) -> None: ...

    async def absent(self, workers: Iterable[int]) -> set[int]:
        """Those whose sign is gone now. Empty while a recent restart or reconnect makes signs unreliable."""


class Blocking(Protocol):
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

    def blocking(self) -> Blocking: ...

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


class Transacting(Protocol):
    """The database, or whatever else runs operations in a transaction."""

    async def transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...


class Lent(Transacting, Protocol):
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
