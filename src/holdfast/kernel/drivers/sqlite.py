"""SQLite: one writer thread per process, which commits together whatever is waiting.

Requests go to the thread in order, except that heartbeats and renewals go first. The event loop touches the connection
only for operations that are marked `short`, while nobody else wants it and its commits are quick.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from holdfast.clock import Clock, Ports
from holdfast.errors import StoreBusy, StoreUnavailable
from holdfast.kernel import epoch, migrate
from holdfast.kernel.database import (
    BlockingStore,
    Guard,
    Operation,
    Owner,
    Presence,
    StoredSchema,
    bounds_now,
    ignore_change,
    is_reading,
    is_short,
    merged,
)
from holdfast.kernel.drivers.sqlite_file import WAL_LIMIT, SqliteFile, shrink_wal, wal_size
from holdfast.kernel.drivers.sqlite_processes import (
    LARGEST,
    FilePresence,
    SqliteHints,
    WriterQueue,
    lock_folder,
    runtime_folder,
)
from holdfast.kernel.sql import Dialect, Rendered
from holdfast.settings import Settings

# Reads within bounds on SQLite: a few connections and threads of their own, which change nothing.
#
# A slow read holds up neither the writer nor the other reads, and is interrupted when its time is over. A store in
# memory
# has one connection alone, so there the writer's thread reads, under the same limits.


_MOST = 4


class SqliteReaders:
    def __init__(self, make: Callable[[], SqliteFile], clock: Clock, seconds: float) -> None:
        """`make` opens one more connection; `seconds` is how long one operation may take."""
        self._make = make
        self._clock = clock
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(_MOST, "holdfast-sqlite-reads")
        self._resting: list[SqliteFile] = []

    def submit(self, operation: Callable[..., Any], args: Any, kwargs: Any) -> Future[Any]:
        return self._threads.submit(self._read, operation, args, kwargs)

    def _read(self, operation: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            file = self._resting.pop()
        except IndexError:
            file = self._make()
        try:
            return read(file, operation, args, kwargs, self._clock, self._seconds)
        finally:
            self._resting.append(file)

    def stop(self) -> Future[None]:
        """Finish what was asked, then close; the answer comes when that is done."""
        ended: Future[None] = Future()
        threading.Thread(target=self._close, args=[ended], name="holdfast-sqlite-reads", daemon=True).start()
        return ended

    def _close(self, ended: Future[None]) -> None:
        self._threads.shutdown()
        for file in self._resting:
            file.close()
        ended.set_result(None)


def read(  # noqa: PLR0917  an operation, and what limits it
    file: SqliteFile, operation: Callable[..., Any], args: Any, kwargs: Any, clock: Clock, seconds: float
) -> Any:
    """Run an operation that may change nothing, on this thread, for so long at most."""
    until = clock.monotonic() + seconds
    return file.read(lambda: operation(file, *args, **kwargs), lambda: clock.monotonic() >= until)


P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("holdfast.sqlite")

_MOST_TOGETHER = 64
_TURNS = 2  # of the loop, for which a commit on its thread waits for others
_QUICK = 0.02  # seconds that a commit on the event loop's thread may take
_SPARED = 1.0  # seconds for which the loop commits nothing itself, after one took longer


class WriteRequest(NamedTuple):
    operation: Callable[[], Coroutine[Any, Any, Any]]
    reading: bool
    answer: Future[Any]


class SqliteDatabase:
    dialect: Dialect = "sqlite"

    def __init__(self, path: str, settings: Settings, ports: Ports, layers: Sequence[Owner] = ()) -> None:
        self.path = path
        self._file = None if path == ":memory:" else Path(path).resolve()
        self._settings = settings
        self._ports = ports
        self._layers = layers
        self._writer: Writer | None = None
        self._readers: SqliteReaders | None = None
        self._moment: list[tuple[WriteRequest, asyncio.Future[bool]]] = []  # short ones that will be committed together
        self._sociable = False  # of the last moment there were several
        self._spared_until = -math.inf  # by the clock, when the loop commits nothing itself
        self._opened = False
        self._opening = asyncio.Lock()
        self.presence: Presence = NoPresence()
        self._heard: list[Callable[[str], None]] = []
        self._hints: SqliteHints | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.alone = False  # no other process has the file: nothing is shared, and no file made beside it

    @property
    def crowd(self) -> float:
        """A look is a read of a local file, which holds nobody up."""
        return math.inf

    def introduce(self, owner: str) -> None:
        """A file knows nothing of who opens it."""

    async def connect(self) -> None:
        async with self._opening:
            if self._writer is None:
                loop = self._loop = asyncio.get_running_loop()
                self._writer = await loop.run_in_executor(None, self._start)

    async def open(self) -> None:
        await self.connect()
        async with self._opening:
            if self._opened:
                return
            try:
                await migrate.migrate(self, "")
                migrate.verify(await self.stored_schema(), "sqlite", self.path)
                await self.transact(epoch.adopt, _identity(self.path))
                if self._file is not None and not self.alone:
                    self.presence = FilePresence(lock_folder(self._file))
                    self._hints = SqliteHints(runtime_folder(self._file))
                    self._hints.listen(asyncio.get_running_loop(), self._on_hint)
                self._opened = True
            except BaseException:
                await self._shut()
                raise

    async def close(self) -> None:
        async with self._opening:
            await self._shut()

    async def transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        bounds = bounds_now()
        with self._ports.watching(operation):
            if bounds is not None and bounds.reads:
                return await asyncio.wrap_future(self._read(operation, args, kwargs))
            if is_short(operation):
                return await self._transact_short(self._request(operation, args, kwargs))  # type: ignore[no-any-return]
            answer = self._submit(operation, args, kwargs, urgent=False)
            return await asyncio.wrap_future(answer)

    def blocking(self) -> BlockingStore:
        return SqliteBlocking(self)

    async def listen(self, heard: Callable[[str], None]) -> None:
        self._heard.append(heard)

    def unlisten(self, heard: Callable[[str], None]) -> None:
        self._heard = [other for other in self._heard if other != heard]

    async def script(self, statements: Sequence[str], *, at: int | None, guard: Guard | None = None) -> bool:
        return await asyncio.wrap_future(self._thread.call(lambda file: file.script(statements, at=at, guard=guard)))

    async def tidy(self, after: int) -> bool:
        """Nothing is vacuumed here; a write-ahead log that a long reader let grow is cut."""
        if self._file is None or wal_size(self.path) <= WAL_LIMIT:
            return False
        return await asyncio.get_running_loop().run_in_executor(None, shrink_wal, self.path)

    async def stored_schema(self) -> StoredSchema | None:
        return await asyncio.wrap_future(self._thread.call(lambda file: file.stored_schema()))

    async def describe(self) -> tuple[str, str, int]:
        """The library's version, the journal mode, and how synchronous this connection is."""
        return await asyncio.wrap_future(self._thread.call(lambda file: file.describe()))

    async def explain(self, rendered: Rendered) -> list[str]:
        """The plans of a statement's texts, one after the other."""
        return await asyncio.wrap_future(self._thread.call(lambda file: file.explain(rendered)))

    @property
    def _thread(self) -> Writer:
        if self._writer is None:
            raise StoreUnavailable(f"{self.path} is not open.")
        return self._writer

    def _submit(self, operation: Callable[..., Any], args: Any, kwargs: Any, *, urgent: bool) -> Future[Any]:
        request = self._request(operation, args, kwargs)
        self._thread.submit(request, urgent=urgent)
        return request.answer

    def _request(self, operation: Callable[..., Any], args: Any, kwargs: Any) -> WriteRequest:
        return WriteRequest(partial(operation, self._thread.file, *args, **kwargs), is_reading(operation), Future())

    async def _transact_short(self, request: WriteRequest) -> Any:
        """Commit it with what is asked in the same turn of the loop: here if that is possible, else on the thread.

        While several are asked at a time, those of the next turns come along: who was just answered asks again.
        """
        loop = asyncio.get_running_loop()
        here: asyncio.Future[bool] = loop.create_future()
        self._moment.append((request, here))
        if len(self._moment) == 1:
            loop.call_soon(self._commit_moment, _TURNS if self._sociable else 0)
        return request.answer.result() if await here else await asyncio.wrap_future(request.answer)

    def _commit_moment(self, turns: int) -> None:
        """After so many more turns of the loop."""
        if turns:
            asyncio.get_running_loop().call_soon(self._commit_moment, turns - 1)
            return
        moment = [(request, here) for request, here in self._moment if not here.done()]  # the others were cancelled
        self._moment = []
        self._sociable = len(moment) > 1
        if not moment:
            return
        begun = self._ports.clock.monotonic()
        try:
            writer, requests = self._thread, [request for request, _ in moment]
            done = begun >= self._spared_until and writer.commit_here(requests)
            if not done:
                writer.submit(*requests, urgent=False)
        except Exception as problem:  # noqa: BLE001  who asked gets it
            for _, here in moment:
                here.set_exception(problem)
            return
        if self._ports.clock.monotonic() > begun + _QUICK:
            self._spared_until = begun + _SPARED
        for _, here in moment:
            here.set_result(done)

    def _read(self, operation: Callable[..., Any], args: Any, kwargs: Any) -> Future[Any]:
        clock, seconds = self._ports.clock, self._settings.web_patience.total_seconds()
        writer = self._thread
        if self._file is None or self.alone:  # no second connection can see it
            return writer.call(lambda file: read(file, operation, args, kwargs, clock, seconds))
        if self._readers is None:
            self._readers = SqliteReaders(self._connection, clock, seconds)
        return self._readers.submit(operation, args, kwargs)

    def _connection(self) -> SqliteFile:
        settings = self._settings
        return SqliteFile(
            self.path,
            now=self._ports.clock.wall_us,
            durable=settings.profile == "full",
            busy_ms=round(settings.busy_timeout.total_seconds() * 1_000),
            layers=self._layers,
            alone=self.alone,
        )

    def _start(self) -> Writer:
        file, busy = self._connection(), self._settings.busy_timeout.total_seconds()
        turns = None
        if self._file is not None and not self.alone:
            turns = WriterQueue(lock_folder(self._file), patience=busy)
        return Writer(file, turns, self._tell, patience=busy)

    async def _shut(self) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(self.presence, FilePresence):
            await self.presence.close()
        readers, self._readers = self._readers, None
        if readers is not None:
            await asyncio.shield(asyncio.wrap_future(readers.stop()))
        if self._writer is not None:
            # Not joined on the loop's own threads: handlers may have taken them all.
            await asyncio.shield(asyncio.wrap_future(self._writer.stop()))
            self._writer = None
        if self._hints is not None:  # after the writer: it answers first and tells the others then
            self._hints.close(loop)
            self._hints = None
        self._opened = False
        self._heard.clear()

    def _tell(self, notes: list[str]) -> None:
        """On the writer thread, after a commit: this process first, then the others."""
        loop, hints = self._loop, self._hints  # closing may take them away meanwhile
        for note in merged(notes, LARGEST):
            if loop is not None and self._heard:
                with contextlib.suppress(RuntimeError):  # the loop has just closed; hints may get lost
                    loop.call_soon_threadsafe(self._on_hint, note)
            if hints is not None:
                hints.send(note)

    def _on_hint(self, note: str) -> None:
        for heard in self._heard:
            heard(note)


class Writer:
    """The thread that owns the connection, and lends it to the event loop while it has nothing to do."""

    def __init__(
        self, file: SqliteFile, turns: WriterQueue | None, tell: Callable[[list[str]], None], *, patience: float
    ) -> None:
        self.file = file
        self._patience = patience
        self._turns = turns
        self._tell = tell
        self._waiting: deque[WriteRequest] = deque()
        self._urgent: deque[WriteRequest] = deque()
        self._calls: deque[tuple[Callable[[SqliteFile], Any], Future[Any]]] = deque()
        self._something = threading.Condition()
        self._using = threading.Lock()  # the connection belongs to one thread at a time
        self._stopping = False
        self._ended: Future[None] = Future()
        threading.Thread(target=self._work, name="holdfast-sqlite", daemon=True).start()

    def submit(self, *requests: WriteRequest, urgent: bool) -> None:
        with self._something:
            if self._stopping:
                raise StoreUnavailable(f"{self.file.path} is closed.")
            (self._urgent if urgent else self._waiting).extend(requests)
            self._something.notify()

    def commit_here(self, requests: list[WriteRequest]) -> bool:
        """Commit them on the event loop's thread, if nobody queues and no other process writes: the loop waits for no
        one. False: nothing was done."""
        if not self._using.acquire(blocking=False):
            return False
        try:
            if self._stopping or self._urgent or self._waiting or self._calls:
                return False
            with self._turn_at_once() as is_ours:
                if not is_ours:
                    return False
                results = self.file.commit_together([request.operation for request in requests], reading=False)
            if all(isinstance(result, StoreBusy) for result in results):  # another program has the file
                return False
            self._answer(requests, results)
            return True
        finally:
            self._using.release()

    @contextlib.contextmanager
    def _turn_at_once(self) -> Iterator[bool]:
        if self._turns is None:
            yield True
            return
        with self._turns.turn_at_once() as is_ours:
            self.file.be_patient(0)
            try:
                yield is_ours
            finally:
                self.file.be_patient(self._patience)

    def call(self, function: Callable[[SqliteFile], Any]) -> Future[Any]:
        """Run something on the connection outside of any operation (migrations)."""
        answer: Future[Any] = Future()
        with self._something:
            if self._stopping:
                raise StoreUnavailable(f"{self.file.path} is closed.")
            self._calls.append((function, answer))
            self._something.notify()
        return answer

    def stop(self) -> Future[None]:
        """Finish what was asked, then close; the answer comes when that is done."""
        with self._something:
            self._stopping = True
            self._something.notify()
        return self._ended

    def _work(self) -> None:
        try:
            self._serve()
        finally:
            self._ended.set_result(None)

    def _serve(self) -> None:
        while batch := self._next():
            with self._using:
                if isinstance(batch, tuple):
                    self._answer_call(*batch)
                else:
                    self._commit(batch)
        self.file.close()
        if self._turns is not None:
            self._turns.close()

    def _next(self) -> list[WriteRequest] | tuple[Callable[[SqliteFile], Any], Future[Any]] | None:
        with self._something:
            self._something.wait_for(lambda: self._urgent or self._waiting or self._calls or self._stopping)
            if self._calls:
                return self._calls.popleft()
            batch = [self._urgent.popleft() for _ in range(len(self._urgent))]
            while self._waiting and len(batch) < _MOST_TOGETHER:
                batch.append(self._waiting.popleft())
            return batch or None

    def _commit(self, batch: list[WriteRequest]) -> None:
        live = [request for request in batch if request.answer.set_running_or_notify_cancel()]
        try:
            results = self._run(live)
        except Exception as problem:  # noqa: BLE001  the waiting caller must get the error, and the thread must continue
            results = [problem] * len(live)
        self._answer(live, results)

    def _answer(self, requests: Sequence[WriteRequest], results: Sequence[Any]) -> None:
        for request, result in zip(requests, results, strict=True):
            if isinstance(result, Exception):
                request.answer.set_exception(result)
            else:
                request.answer.set_result(result)
        if self.file.hints:
            notes, self.file.hints = self.file.hints, []
            try:
                self._tell(notes)
            except Exception:  # the work is committed; a hint may get lost
                log.exception("a wake-up could not be sent")

    def _run(self, requests: Sequence[WriteRequest]) -> list[Any]:
        operations = [request.operation for request in requests]
        if all(request.reading for request in requests):
            return self.file.commit_together(operations, reading=True)
        if self._turns is None:
            results = self.file.commit_together(operations, reading=False)
        else:
            with self._turns.turn() as left:
                self.file.be_patient(left)
                results = self.file.commit_together(operations, reading=False)
        return self._read_again(requests, results)

    def _read_again(self, requests: Sequence[WriteRequest], results: list[Any]) -> list[Any]:
        """Nobody who only reads is refused because others, who shared the transaction, could not write."""
        reads = [place for place, request in enumerate(requests) if request.reading]
        if reads and all(isinstance(result, StoreBusy) for result in results):
            found = self.file.commit_together([requests[place].operation for place in reads], reading=True)
            for place, result in zip(reads, found, strict=True):
                results[place] = result
        return results

    def _answer_call(self, function: Callable[[SqliteFile], Any], answer: Future[Any]) -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(function(self.file))
        except Exception as problem:  # noqa: BLE001  handed to the caller
            answer.set_exception(problem)


class SqliteBlocking:
    """The heartbeat thread's way to the store: its requests go before all others."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    def call(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._database._ports.watching(operation):
            answer: Future[R] = self._database._submit(operation, args, kwargs, urgent=True)
            return answer.result()

    def open(self) -> None:
        """Nothing of its own to open."""

    def close(self) -> None:
        """Nothing of its own to close."""


class NoPresence:
    """A store in this process's memory dies with it; nobody is left to look."""

    async def hold(self, worker: int, changed: Callable[[], None] = ignore_change) -> bool:
        return False

    def shows(self, worker: int) -> bool:
        return False

    def disputed(self, worker: int) -> bool:
        return False

    async def withdraw(self, worker: int) -> None: ...

    async def absent(self, workers: Iterable[int]) -> set[int]:
        return set()


def _identity(path: str) -> str:
    """A copied file has another inode, and so another identity."""
    if path == ":memory:":
        return "memory"
    status = Path(path).stat()
    return f"file {status.st_dev}:{status.st_ino}"
