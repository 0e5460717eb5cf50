"""The databases side by side: every operation runs on each of them, and they must answer alike.

Sequences are the one declared difference. PostgreSQL uses a number up when it refuses a row that is there already,
SQLite does not; so after each operation SQLite is told to skip the same numbers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from holdfast.errors import HoldfastError, Unavailable
from holdfast.kernel.database import Operation
from holdfast.kernel.drivers import connect
from holdfast.kernel.drivers.sqlite import SqliteDatabase
from holdfast.kernel.workers import present_workers
from tests.support.snapshots import PRIMARY_KEYS, Snapshot, differences, relation, snapshot, tables
from tests.support.stores import START_US, SqliteSetting, Store, postgres_store, sqlite_store

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

HOME = "home"
NUMBERED = ("job", "worker", "signal")
_SQLITE_NUMBER = "coalesce((select seq from sqlite_sequence where name = '{table}'), 0)"
_POSTGRES_NUMBER = "(select case when is_called then last_value else 0 end from holdfast.{table}_seq_seq)"
_JSON = frozenset({"payload", "metadata", "progress", "result", "error", "cancel_error", "value"})


class Refusal(NamedTuple):
    """What a store answers when it is well and says no."""

    error: type[HoldfastError]
    message: str


class Stage:
    """SQLite, and PostgreSQL if there is a URL, under one clock; emptied for each example."""

    def __init__(self, folder: Path, postgres_url: str | None = None) -> None:
        self.now = START_US
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        self._stores: list[Store] = []
        self._homes: dict[str, str] = {}
        self._dumps: dict[str, str] = {}
        self._hints: list[str] = []
        try:
            self._run(self._open(folder, postgres_url))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._run(self._close())
        self._loop.close()

    def begin(self) -> None:
        """Empty the stores and set the clock back: an example begins."""
        self.now = START_US
        self._run(self._each(self._empty))

    def ask(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R | Refusal:
        """The one answer of all stores to an operation. A list without promised order must be asked for as such."""
        return self._agreed(operation, False, args, kwargs)

    def ask_in_any_order(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R | Refusal:
        return self._agreed(operation, True, args, kwargs)

    def advance(self, us: int) -> None:
        self.now += us
        self._run(self._each(self._set_clock))

    def reopen(self) -> None:
        """Close every store and open it anew, as a process that restarts does."""
        self._run(self._each(self._reopen))

    def look(self) -> Snapshot:
        """All rows of all tables, which must be equal in all stores."""
        (first, numbers), *others = self._run(self._each(self._dump))
        for other, used in others:
            unequal = [str(change) for change in differences(first, other)]
            assert not unequal, "from SQLite to PostgreSQL: " + "; ".join(unequal)
            if used != numbers:
                self._run(_renumber(self._stores[0], used))
        return first

    def hinted(self) -> set[int]:
        """The routes that SQLite sent hints for since this was last asked."""
        notes = [note.removeprefix("route ") for note in self._hints if note.startswith("route ")]
        self._hints.clear()
        return {int(route) for note in notes for route in note.split(",")}

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    async def _each(self, work: Callable[[Store], Coroutine[Any, Any, T]]) -> list[T]:
        done = await asyncio.gather(*(work(store) for store in self._stores), return_exceptions=True)
        for answer in done:
            if isinstance(answer, BaseException):
                raise answer
        return cast(list[T], done)

    def _agreed(self, operation: Operation[..., R], sort: bool, args: Any, kwargs: Any) -> R | Refusal:
        async def one(store: Store) -> R | Refusal:
            try:
                answer = await store.do(operation, *args, **kwargs)
            except Unavailable:
                raise
            except HoldfastError as refused:
                return Refusal(type(refused), str(refused))
            return cast(R, _comparable(answer, sort, self._homes[store.url]))

        first, *others = self._run(self._each(one))
        for other in others:
            name = getattr(operation, "__name__", operation)
            assert first == other, f"{name} answers {first!r} on SQLite and {other!r} on PostgreSQL"
        return first

    async def _open(self, folder: Path, postgres_url: str | None) -> None:
        self._stores.append(await self._stack.enter_async_context(sqlite_store(folder, profile="fast")))
        if postgres_url is not None:
            # One connection: each new one would note which server it reached, whatever the machine says it is.
            opening = postgres_store(postgres_url, postgres_url, profile="fast", connections=1)
            self._stores.append(await self._stack.enter_async_context(opening))
            await self._stores[-1].query("set synchronous_commit = off")  # for the clock, which moves all the time
        await self._stores[0].database.listen(self._hints.append)
        columns: dict[str, list[str]] = {}
        for table in PRIMARY_KEYS:
            names = await self._stores[0].query(f"select name from pragma_table_info('{relation(table)}') order by cid")
            columns[table] = [name for (name,) in names]
        for store in self._stores:
            await store.do(present_workers)  # PostgreSQL notes who it is on its first connection
            ((identity,),) = await store.query("select identity from holdfast.cluster")
            self._homes[store.url] = identity
            self._dumps[store.url] = _dump_statement(store, columns)

    async def _close(self) -> None:
        for store in self._stores:
            await store.database.close()
        await self._stack.aclose()

    async def _empty(self, store: Store) -> None:
        for table in tables():
            if table != "cluster":
                await store.query(f"delete from holdfast.{table}")
        await _renumber(store, [0] * len(NUMBERED))
        await store.query(f"update holdfast.cluster set epoch = 1, identity = '{self._homes[store.url]}'")
        await self._set_clock(store)

    async def _set_clock(self, store: Store) -> None:
        store.clock.us = self.now
        await store.setting.set_clock(self.now)

    async def _reopen(self, store: Store) -> None:
        await store.database.close()
        store.database = connect(store.url, store.settings, store.ports)
        await store.database.open()
        if isinstance(store.database, SqliteDatabase):
            store.setting = SqliteSetting(store.database)
            await store.database.listen(self._hints.append)
        await store.do(present_workers)

    async def _dump(self, store: Store) -> tuple[Snapshot, list[int]]:
        """All rows, and the last numbers given, in one statement: this is where the time goes."""
        ((*numbers, texts),) = await store.query(self._dumps[store.url])
        found = json.loads(texts)
        for job in (*found["job"], *found["asked"]):
            job["metadata"] = json.loads(job["metadata"])  # jsonb spells it its own way
        for cluster in found["cluster"]:
            if cluster["identity"] == self._homes[store.url]:
                cluster["identity"] = HOME
        return snapshot(self.now, found), numbers


def _dump_statement(store: Store, columns: Mapping[str, list[str]]) -> str:
    """One row: the last number given in each numbered table, then all tables as JSON."""
    sqlite = store.database.dialect == "sqlite"
    numbers = [(_SQLITE_NUMBER if sqlite else _POSTGRES_NUMBER).format(table=table) for table in NUMBERED]
    parts: list[str] = []
    for table, names in columns.items():
        if sqlite:
            pairs = ", ".join(f"'{name}', {name}" for name in names)
            rows = f"json((select json_group_array(json_object({pairs})) from holdfast.{relation(table)}))"
        else:
            fields = ", ".join(f"cast({name} as text) as {name}" if name in _JSON else name for name in names)
            rows = f"(select coalesce(json_agg(r), '[]') from (select {fields} from holdfast.{relation(table)}) as r)"
        parts.append(f"'{table}', {rows}")
    build = "json_object" if sqlite else "json_build_object"
    return f"select {', '.join(numbers)}, {build}({', '.join(parts)})"


async def _renumber(store: Store, numbers: Iterable[int]) -> None:
    """Let the next rows get the numbers after these."""
    for table, number in zip(NUMBERED, numbers, strict=True):
        if store.database.dialect == "sqlite":
            await store.query(f"update sqlite_sequence set seq = {number} where name = '{table}' and seq <> {number}")
        else:
            await store.query(f"select setval('holdfast.{table}_seq_seq', {number + 1}, false)")


def _comparable(answer: Any, sort: bool, home: str) -> Any:
    """An answer as it can be compared: JSON in one spelling, and without what only one database tells."""
    if isinstance(answer, tuple) and hasattr(answer, "_fields"):
        parts = {name: _comparable(getattr(answer, name), sort, home) for name in answer._fields}
        if parts.get("metadata") is not None:
            parts["metadata"] = json.dumps(json.loads(parts["metadata"]), sort_keys=True)
        if parts.get("identity") == home:
            parts["identity"] = HOME
        return type(answer)(**parts)
    if isinstance(answer, tuple):
        return tuple(_comparable(part, sort, home) for part in answer)
    if isinstance(answer, list):
        rows = [_comparable(part, sort, home) for part in answer]
        return sorted(rows, key=repr) if sort else rows
    return answer
