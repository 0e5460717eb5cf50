"""One connection to a SQLite file, and operations run on it, several to a commit.

Everything here is synchronous and belongs to one thread at a time. An operation is a coroutine that awaits
nothing but its transaction, so it is driven to its end without an event loop.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, starmap
from pathlib import Path
from typing import Any, TypeVar

import apsw

from holdfast.errors import (
    BadPayload,
    HoldfastError,
    SchemaTooOld,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StoreUnavailable,
    StoreUnfit,
)
from holdfast.kernel import migrate
from holdfast.kernel.database import Announcement, Guard, Owner, StoredSchema, drive
from holdfast.kernel.drivers.errors import query_is_wrong, query_wrote, raise_as, too_long, wrote
from holdfast.kernel.sql import Exec, Many, One, Rendered, Statement, catalogue
from holdfast.kernel.statements import GROUPS

# What lies under a path. SQLite's locks cannot be trusted on a network file system, so those are refused.


MOUNTS = Path("/proc/self/mountinfo")
NETWORK = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "fuse.ceph",
        "fuse.glusterfs",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "gfs2",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "smb2",
        "smb3",
        "smbfs",
        "virtiofs",
    ]
)


def filesystem_of(path: Path, mounts: str) -> str:
    """The type of the file system that holds `path`, read from the text of mountinfo; "" when it does not say."""
    best, kind = "", ""
    inside = f"{path}/"
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split()
        if not separator or len(fields) < 5:
            continue
        point = fields[4].encode().decode("unicode_escape")
        if inside.startswith(f"{point.rstrip('/')}/") and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind


def refuse_network(path: Path, mounts: Path = MOUNTS) -> None:
    try:
        text = mounts.read_text()
    except OSError:
        return
    kind = filesystem_of(path.resolve(), text)
    if kind in NETWORK:
        raise StoreUnfit(
            f"{path} is on a network file system ({kind}), where SQLite's locks do not hold. "
            f"Put the file on a local disk, or use postgresql:// to work from several machines."
        )


T = TypeVar("T", bound=tuple[Any, ...])

OLDEST_SQLITE = (3, 51, 3)
# apsw evicts in turn, not what was used least lately: with room for twice our statements it still forgets some.
_CACHED_STATEMENTS = 512
OWN_FOLDER = ".holdfast"
_PATIENCE_STEP_MS = 100
_STEPS = 10_000  # of SQLite, between two looks whether a read takes too long: less than a millisecond
_COMPARED = 100_000  # lists and objects in lists of metadata, with each other, for one row
WAL_LIMIT = 64 * 1024 * 1024  # bytes that the write-ahead log keeps on the disk when all of it is in the file
_TRUNCATE_MS = 100  # how long writers may have to wait until the log is cut
# What computes something. Of tables and indexes those with a column whose value is an expression; asked in one
# statement, because each open asks it of a hundred objects.
_COMPUTING = """
    select type, name, tbl_name, sql from sqlite_master as made where sql is not null and case
        when type = 'table' and lower(substr(sql, 1, 14)) <> 'create virtual'
            then exists (select 1 from pragma_table_xinfo(made.name) where hidden in (2, 3))
        when type = 'index' then exists (select 1 from pragma_index_xinfo(made.name) where cid = -2)
        else true end"""
_READS = (apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE)
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class SqliteStatements(ABC):
    """The `Transaction` operations see: named statements, each run to its end at once."""

    lent = False

    def __init__(self, path: str, layers: Sequence[Owner] = ()) -> None:
        self.path = path
        self.layers = layers
        self._statements: Mapping[Statement, Rendered] = catalogue(GROUPS, "sqlite", "")

    @abstractmethod
    def cursor(self) -> apsw.Cursor: ...

    def execute(self, text: str, parameters: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        try:
            # apsw runs lazily: only a cursor that is read to its end has done its work.
            return list(self.cursor().execute(text, parameters))
        except apsw.Error as problem:
            raise_as(typed(self.path, problem), problem)

    async def many(self, statement: Many[T], /, **parameters: object) -> list[T]:
        return list(starmap(statement.record, self._rows(statement, parameters)))

    async def one(self, statement: One[T], /, **parameters: object) -> T | None:
        rows = self._rows(statement, parameters)
        return statement.record(*rows[0]) if rows else None

    async def run(self, statement: Exec, /, **parameters: object) -> None:
        self._rows(statement, parameters)

    @abstractmethod
    async def hint(self, note: str) -> None: ...

    async def announce(self, notes: Sequence[Announcement]) -> None:  # noqa: B027  nothing to do in any of them
        """Nobody can listen to a file from outside."""

    def _rows(self, statement: Statement, parameters: dict[str, object]) -> list[tuple[Any, ...]]:
        bound = {
            name: _dumps(value) if isinstance(value, list | tuple) else value for name, value in parameters.items()
        }
        rows: list[tuple[Any, ...]] = []
        for text in self._statements[statement].texts:
            rows = self.execute(text, bound) or rows  # of several texts, one answers
        return rows


class SqliteFile(SqliteStatements):
    """The connection, its clock, and what a commit will tell others."""

    def __init__(
        self,
        path: str,
        *,
        now: Callable[[], int],
        durable: bool,
        busy_ms: int,
        layers: Sequence[Owner] = (),
        alone: bool = False,
    ) -> None:
        """`alone`: without the file that processes share, which cannot be made on a disk that is full."""
        super().__init__(path, layers)
        self.now = now
        self.hints: list[str] = []
        self._instant = 0
        self._cookie = -1
        self._found: list[tuple[str, str, str, str]] = []
        version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
        if version < OLDEST_SQLITE:
            raise StoreUnfit(
                f"SQLite {apsw.sqlite_lib_version()} can corrupt a database that several processes write; "
                f"install apsw 3.51.3 or newer."
            )
        if path != ":memory:":
            _make_folder(Path(path))
            refuse_network(Path(path).parent)
            _make_private_file(path)
        try:
            self.connection = apsw.Connection(path, statementcachesize=_CACHED_STATEMENTS)
        except apsw.Error as problem:
            raise_as(typed(path, problem), problem)
        # A plan serves all values. Else SQLite would look at those of a limit, and plan the statement again at each
        # call, which takes longer than to run it.
        self.connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        self._busy_ms = 0
        self.be_patient(busy_ms / 1_000)
        add_functions(self.connection, now_us=self._clock, hint=self._hint)
        pragmas = [
            *(["locking_mode = exclusive"] if alone else []),
            "journal_mode = wal",
            f"journal_size_limit = {WAL_LIMIT}",
            f"synchronous = {'full' if durable else 'normal'}",
            "temp_store = memory",
            "trusted_schema = off",  # the file may be a stranger's: what it defines calls no function of ours
        ]
        try:
            for pragma in pragmas:
                self.execute(f"pragma {pragma}")
        except BaseException:
            self.connection.close()
            raise

    async def hint(self, note: str) -> None:
        self.hints.append(note)

    def be_patient(self, seconds: float) -> None:
        """How long to wait for another process that has the file."""
        wanted = round(seconds * 1_000)
        if abs(wanted - self._busy_ms) > _PATIENCE_STEP_MS:
            self.connection.set_busy_timeout(wanted)
            self._busy_ms = wanted

    def cursor(self) -> apsw.Cursor:
        return self.connection.cursor()

    def commit_together(
        self, operations: Sequence[Callable[[], Coroutine[Any, Any, Any]]], *, reading: bool
    ) -> list[Any]:
        """Run operations in one transaction, each undone alone if it fails; results or exceptions, in order."""
        self.hints = []
        try:
            return self._commit(operations, reading=reading)
        finally:
            self._rollback()  # nothing is left to undo, unless something unknown went wrong

    def _commit(self, operations: Sequence[Callable[[], Coroutine[Any, Any, Any]]], *, reading: bool) -> list[Any]:
        try:
            self.execute("begin" if reading else "begin immediate")
        except HoldfastError as problem:
            return [problem] * len(operations)
        alone = len(operations) == 1
        results: list[Any] = []
        for operation in operations:
            results.append(self._attempt(operation, alone=alone))
            if not self.connection.in_transaction and not alone:  # SQLite undid everything, not just this one
                return [results[-1]] * len(operations)
        try:
            if self.connection.in_transaction:
                self.execute("commit")
        except HoldfastError as problem:
            self._rollback()
            self.hints = []
            return [r if isinstance(r, Exception) else problem for r in results]
        return results

    def read(self, operation: Callable[[], Coroutine[Any, Any, Any]], is_over: Callable[[], bool]) -> Any:
        """Run an operation that may change nothing, until its time is over."""
        self.execute("pragma query_only = on")
        self.connection.set_progress_handler(is_over, _STEPS)
        try:
            (result,) = self.commit_together([operation], reading=True)
        finally:
            self.connection.set_progress_handler(None)
            self.execute("pragma query_only = off")
            self.hints = []
        if isinstance(result, Exception):
            cause = result.__cause__
            raise wrote(cause) if isinstance(cause, apsw.ReadOnlyError) else result
        return result

    def ask(self, text: str, values: Sequence[Any], most: int) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The columns and the first rows of a query that somebody else has written. It may read, and do nothing else:
        `query_only` alone would let it switch `query_only` off, or attach a file."""
        columns: list[str] = []

        def note(cursor: apsw.Cursor, _text: str, _values: object) -> bool:
            columns[:] = [column[0] for column in cursor.get_description()]
            return True

        cursor = self.cursor()
        cursor.exec_trace = note
        self.connection.authorizer = lambda action, *_: apsw.SQLITE_OK if action in _READS else apsw.SQLITE_DENY
        try:
            rows = list(islice(cursor.execute(text, values), most))
        except apsw.AuthError as problem:
            raise query_wrote(problem) from problem
        except (apsw.SQLError, apsw.BindingsError, apsw.MismatchError, apsw.TooBigError, TypeError) as problem:
            raise query_is_wrong(problem) from problem
        except apsw.Error as problem:
            raise_as(typed(self.path, problem), problem)
        finally:
            cursor.close(True)
            self.connection.authorizer = None
        return columns, rows

    def script(self, statements: Sequence[str], *, at: int | None, guard: Guard | None = None) -> bool:
        self._instant = self.now()
        self.execute("begin immediate")
        try:
            stored = self.stored_schema()
            if at != (stored and stored.version):
                return False
            if guard is not None:  # the transaction keeps every other writer away
                guard.judge(self.execute(guard.question))
            for statement in statements:
                self.execute(statement)
            self.execute("commit")
        finally:
            self._rollback()
        return True

    def stored_schema(self) -> StoredSchema | None:
        tables = {name for (name,) in self.execute("select name from sqlite_master where type = 'table'")}
        if not tables - {"sqlite_sequence"}:
            return None
        if "schema" not in tables:
            raise StoreUnfit(
                f"{self.path} has tables of another program ({', '.join(sorted(tables)[:3])}): "
                f"give Holdfast a separate file."
            )
        self._refuse_foreign_objects(frozenset({"schema"}), newer=True)
        columns = {name for (name,) in self.execute("select name from pragma_table_info('schema')")}
        ((base,),) = self.execute("select base from schema") if "base" in columns else [(None,)]
        migrate.check_base(base, self.path, "move the file away")
        ((version, oldest),) = self.execute("select version, oldest_code from schema")
        self._refuse_foreign_objects(migrate.own_objects().names, newer=version > migrate.code_version("sqlite"))
        return StoredSchema(version, oldest)

    def _refuse_foreign_objects(self, names: frozenset[str], *, newer: bool) -> None:
        """`StoreUnfit` for what computes something where Holdfast has something else under these names.

        A capsule may come from a stranger, and what looks like a table would run what the stranger has written. What a
        release made is known by its text. A newer one may have made other views, triggers and indexes, but its tables
        are tables too.
        """
        own = migrate.own_objects()
        for kind, name, table, text in self._computing():
            if names.isdisjoint((name.lower(), table.lower())):
                continue
            known = kind != "table" and name.lower() not in own.tables if newer else text in own.texts
            if not known:
                raise StoreUnfit(
                    f"{self.path} has a {kind} {name!r} on {table!r} that computes something, and no release of "
                    f"Holdfast made it. Use a file that you trust, or remove it."
                )

    def _computing(self) -> list[tuple[str, str, str, str]]:
        """The kind, name, table and `plain` text of what computes something. To open a store is to look at its schema
        three times, so this is asked again when that has changed."""
        ((cookie,),) = self.execute("pragma schema_version")
        if cookie != self._cookie:
            found = self.execute(_COMPUTING)
            self._found = [(kind, name, table, migrate.plain(text)) for kind, name, table, text in found]
            self._cookie = cookie
        return self._found

    def describe(self) -> tuple[str, str, int]:
        ((journal,),) = self.execute("pragma journal_mode")
        ((synchronous,),) = self.execute("pragma synchronous")
        return apsw.sqlite_lib_version(), journal, synchronous

    def explain(self, rendered: Rendered) -> list[str]:
        unknown: dict[str, Any] = dict.fromkeys(parameter.name for parameter in rendered.parameters)
        lines: list[str] = []
        for text in rendered.texts:
            depths = {0: -1}
            for id, parent, _, step in self.execute(f"explain query plan {text}", unknown):
                depths[id] = depths[parent] + 1
                lines.append(f"{'  ' * depths[id]}{step}")
        return lines

    def close(self) -> None:
        self.connection.close()

    def _attempt(self, operation: Callable[[], Coroutine[Any, Any, Any]], *, alone: bool) -> Any:
        self._instant = self.now()
        heard = len(self.hints)
        try:
            if not alone:
                self.execute("savepoint operation")
            result = drive(operation())
            if not alone:
                self.execute("release operation")
        except Exception as problem:  # noqa: BLE001  any failure of one operation must leave the others whole
            del self.hints[heard:]
            if alone:
                self._rollback()
            elif self.connection.in_transaction:
                self.execute("rollback to operation")
                self.execute("release operation")
            return problem
        return result

    def _clock(self, *_: object) -> int:
        return self._instant

    def _hint(self, *notes: object) -> int:
        self.hints.extend(str(note) for note in notes if note is not None)
        return 1

    def _rollback(self) -> None:
        if self.connection.in_transaction:
            self.execute("rollback")


def wal_size(path: str) -> int:
    """Bytes of the write-ahead log beside a file."""
    log = Path(f"{path}-wal")
    return log.stat().st_size if log.exists() else 0


def shrink_wal(path: str) -> bool:
    """Cut the write-ahead log, if nobody reads what is in it any more; True when that was done.

    On a connection of its own. Copying keeps nobody waiting; only when all is copied, the log is cut, which keeps
    writers waiting for a moment.
    """
    connection = apsw.Connection(path)
    try:
        connection.set_busy_timeout(_TRUNCATE_MS)
        ((_, logged, copied),) = connection.execute("pragma wal_checkpoint(passive)")
        if copied < logged:
            return False
        ((busy, _, _),) = connection.execute("pragma wal_checkpoint(truncate)")
    except (apsw.BusyError, apsw.LockedError):  # somebody else copies just now
        return False
    except apsw.Error as problem:
        raise_as(typed(path, problem), problem)
    finally:
        connection.close()
    return not busy


def add_functions(connection: apsw.Connection, *, now_us: Callable[..., int], hint: Callable[..., int]) -> None:
    """What statements call as `holdfast.now_us()` and `holdfast.hint()`; PostgreSQL has them in its schema."""
    connection.create_scalar_function("now_us", now_us, 0)
    connection.create_scalar_function("hint", hint, 1)
    connection.create_scalar_function("json_contains", _contains, 2, deterministic=True)
    connection.create_scalar_function("json_value", _value, 2, deterministic=True)


def _contains(*texts: Any) -> int:
    """PostgreSQL's `outer @> inner` for objects."""
    outer, inner = texts
    return int(_within(json.loads(outer), json.loads(inner), iter(range(_COMPARED))))


def _within(outer: Any, inner: Any, steps: Iterator[int]) -> bool:
    """Each value is looked at once, but for lists and objects in lists, which are compared with each other.

    SQLite can interrupt a statement between two rows and not here, so a row has so many `steps`.
    """
    if isinstance(inner, dict):
        return isinstance(outer, dict) and all(key in outer and _within(outer[key], inner[key], steps) for key in inner)
    if not isinstance(inner, list):
        return bool(outer == inner and isinstance(outer, bool) == isinstance(inner, bool))
    if not isinstance(outer, list):
        return False
    nested = [each for each in outer if isinstance(each, dict | list)]
    plain = {(isinstance(each, bool), each) for each in outer if not isinstance(each, dict | list)}
    for wanted in inner:
        if not isinstance(wanted, dict | list):
            if (isinstance(wanted, bool), wanted) not in plain:
                return False
        elif not any(_within(each, wanted, steps) for each in _counted(nested, steps)):
            return False
    return True


def _counted(values: list[Any], steps: Iterator[int]) -> Iterator[Any]:
    for each in values:
        if next(steps, None) is None:
            raise apsw.InterruptError("a list of lists is compared with another that is as long")
        yield each


def _value(*given: Any) -> str | None:
    """The value of a key as JSON; None where there is none."""
    text, key = given
    found = json.loads(text)
    return _dumps(found[key]) if isinstance(found, dict) and key in found else None


def _make_folder(file: Path) -> None:
    try:
        make_private_folder(file.parent)
    except OSError as problem:
        raise StoreUnavailable(
            f"the folder of {file} cannot be created: {problem}. Check the path in the URL."
        ) from problem


def make_private_folder(folder: Path) -> None:
    """A folder that only this user reads, and those above it that are missing. `.holdfast` is private even if it was
    made before."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    if folder.name == OWN_FOLDER and folder not in missing and folder.stat().st_uid == os.getuid():
        folder.chmod(0o700)


def _make_private_file(path: str) -> None:
    """A file that is not there yet is made for this user alone; SQLite gives what it puts beside it the same rights.

    What SQLite itself would say about the path, it says when it opens it.
    """
    with suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def typed(path: str, problem: Exception) -> Exception:
    """The error a caller should see; unknown ones stay as they are."""
    match problem:
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy(f"another program kept {path} locked for too long. Try again, or end that program.")
        case apsw.InterruptError():
            return too_long(path)
        case apsw.FullError():
            return StoreFull(f"no space left for {path}; nothing was written. Free some space and try again.")
        case apsw.CorruptError() | apsw.NotADBError():
            return StoreCorrupt(f"{path} is damaged or not a SQLite database ({problem}). Restore it from a backup.")
        case apsw.ConstraintError() if str(problem).startswith("cannot store"):
            return BadPayload(f"SQLite cannot store a value: {problem}.")
        case apsw.SQLError() if str(problem).startswith("no such table"):
            return SchemaTooOld(f"{path} lacks Holdfast's tables ({problem}). Run `holdfast migrate`.")
        case apsw.IOError() | apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.PermissionsError():
            return StoreUnavailable(f"{path} cannot be used: {problem}. Check that it exists, is writable and local.")
        case _:
            return problem
