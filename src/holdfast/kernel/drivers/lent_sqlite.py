"""SQLite through an apsw connection that the caller lends: our statements become part of its transaction.

All that stays on the connection is two SQL functions, `now_us()` and `hint()`, and, until the transaction ends, a
trace that waits for that end. Neither may refer back to the connection, or it would never be freed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import apsw

from holdfast.errors import UsageError
from holdfast.kernel.database import Operation
from holdfast.kernel.drivers.sqlite_file import SqliteStatements, add_functions
from holdfast.kernel.drivers.sqlite_processes import runtime_folder, tell

P = ParamSpec("P")
R = TypeVar("R")

_TRACE = "holdfast.hint"  # ours among the connection's traces


class Functions:
    """What `now_us()` answers on one connection, and the hints it has collected since its transaction began."""

    def __init__(self) -> None:
        self.instant = 0
        self.notes: list[str] = []

    def now_us(self, *_: object) -> int:
        return self.instant

    def hint(self, *notes: object) -> int:
        self.notes.extend(str(note) for note in notes if note is not None)
        return 1


# Replacing a function fails while the caller reads from a cursor, so a connection gets them once.
_added: WeakKeyDictionary[apsw.Connection, Functions] = WeakKeyDictionary()


class LentFile(SqliteStatements):
    """The caller's connection while an operation has it."""

    lent = True

    def __init__(self, connection: apsw.Connection, path: str, now: Callable[[], int]) -> None:
        super().__init__(path)
        _refuse_unfit(connection, path)
        self._connection = connection
        self._now = now
        self._functions = _functions_of(connection)

    @property
    def commits_each(self) -> bool:
        return not self._connection.in_transaction

    async def hint(self, note: str) -> None:
        self._functions.hint(note)

    def cursor(self) -> apsw.Cursor:
        # Not the connection's own kind of cursor or row, which the caller may have changed.
        cursor = apsw.Cursor(self._connection)
        cursor.row_trace = _unchanged
        return cursor

    async def transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `operation` whole or not at all, in the caller's transaction; if none is open, in one of its own."""
        self._functions.instant = self._now()
        with self._savepoint():
            return await operation(self, *args, **kwargs)

    @contextmanager
    def _savepoint(self) -> Iterator[None]:
        heard = len(self._functions.notes)
        self.execute("savepoint holdfast")
        try:
            yield
        except BaseException:
            del self._functions.notes[heard:]
            if self._connection.in_transaction:  # else SQLite has undone everything by itself
                self.execute("rollback to holdfast")
                self.execute("release holdfast")
            raise
        if self._functions.notes:
            folder = runtime_folder(Path(self.path).resolve())
            listener = partial(_tell_at_end, folder, self._functions)
            self._connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, listener, id=_TRACE)
        self.execute("release holdfast")


def _tell_at_end(folder: Path, functions: Functions, event: dict[str, Any]) -> None:
    """Called after each statement: when it ended the transaction, others may look. After a rollback they find nothing.

    A commit hook would come too early: a reader would see nothing yet.
    """
    connection: apsw.Connection = event["connection"]
    if not connection.in_transaction:
        connection.trace_v2(0, None, id=_TRACE)
        notes, functions.notes = functions.notes, []
        tell(folder, notes)


def _functions_of(connection: apsw.Connection) -> Functions:
    if connection not in _added:
        functions = Functions()
        add_functions(connection, now_us=functions.now_us, hint=functions.hint)
        _added[connection] = functions
    return _added[connection]


def _refuse_unfit(connection: apsw.Connection, path: str) -> None:
    if connection.is_async:
        raise UsageError("this apsw connection is in async mode; pass a plain apsw.Connection instead.")
    if path == ":memory:":
        raise UsageError("an app on sqlite://:memory: has its database to itself; use a file to share a transaction.")
    if not connection.filename or not Path(path).exists() or not Path(path).samefile(connection.filename):
        raise UsageError(
            f"this connection is to {connection.filename or 'a database in memory'}, and the app's jobs are in {path}. "
            f"A transaction has one file: open apsw.Connection on the app's, or leave tx out."
        )


def _unchanged(_: apsw.Cursor, row: tuple[Any, ...]) -> tuple[Any, ...]:
    return row
