"""Short operations on a SQLite file: planned once, and on the event loop's own thread as long as the loop waits for
nobody there."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import apsw
import pytest

from holdfast.clock import Ports
from holdfast.errors import StoreUnavailable
from holdfast.kernel.database import Transaction, short
from holdfast.kernel.drivers.sqlite import SqliteDatabase
from holdfast.kernel.drivers.sqlite_file import SqliteFile
from holdfast.kernel.drivers.sqlite_processes import WriterQueue, lock_folder
from holdfast.settings import Settings
from tests.conftest import fresh_file

HERE = threading.current_thread


class Commits:
    """Commits of this process, by the thread that made them and how many operations each had."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[bool, int]] = []  # on the loop's thread, operations
        original = SqliteFile.commit_together

        def counted(file: SqliteFile, operations: list[object], *, reading: bool) -> list[object]:
            self.made.append((HERE() is threading.main_thread(), len(operations)))
            return original(file, operations, reading=reading)  # type: ignore[arg-type]

        monkeypatch.setattr(SqliteFile, "commit_together", counted)


@short
async def quick(tx: Transaction) -> bool:
    return HERE() is threading.main_thread()


async def plain(tx: Transaction) -> bool:
    return HERE() is threading.main_thread()


async def at_rest(database: SqliteDatabase) -> None:
    """Until the writer's thread has put the connection down: it answers a moment before."""
    while not await database.transact(quick):
        pass


@pytest.fixture
def file(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return Path(fresh_file(tmp_path, request).url.removeprefix("sqlite:///"))


@pytest.fixture
async def database(file: Path) -> AsyncIterator[SqliteDatabase]:
    opened = SqliteDatabase(str(file), Settings(), Ports())
    await opened.open()
    await at_rest(opened)
    yield opened
    await opened.close()


@pytest.fixture
def commits(database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch) -> Commits:
    return Commits(monkeypatch)


@pytest.fixture
def turns(file: Path) -> Iterator[WriterQueue]:
    """Another process, as the locks see it."""
    other = WriterQueue(lock_folder(file), patience=30)
    yield other
    other.close()


async def test_a_short_operation_needs_no_other_thread(database: SqliteDatabase) -> None:
    assert await database.transact(quick)
    assert not await database.transact(plain)


async def test_what_is_asked_in_one_moment_is_one_commit_in_its_order(
    database: SqliteDatabase, commits: Commits
) -> None:
    order: list[int] = []

    @short
    async def note(tx: Transaction, number: int) -> int:
        order.append(number)
        if number == 2:
            raise ValueError(number)
        return number

    answers = await asyncio.gather(*(database.transact(note, each) for each in range(4)), return_exceptions=True)
    assert order == [0, 1, 2, 3]
    assert [answers[0], answers[1], answers[3]] == [0, 1, 3]
    assert isinstance(answers[2], ValueError)
    assert commits.made == [(True, 4)]


async def test_who_asks_again_at_once_shares_the_next_commit(database: SqliteDatabase, commits: Commits) -> None:
    """Each is answered a turn of the loop after the one before, and so asks again a turn later."""

    async def asks_again(turns: int) -> None:
        await database.transact(quick)
        for _ in range(turns):
            await asyncio.sleep(0)
        await database.transact(quick)

    await asyncio.gather(*(asks_again(turns) for turns in range(3)))
    assert commits.made == [(True, 3), (True, 3)]


async def test_who_is_alone_waits_for_nobody(database: SqliteDatabase, commits: Commits) -> None:
    waiting = asyncio.create_task(database.transact(quick))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert commits.made == [(True, 1)]
    assert await waiting


async def test_what_was_asked_together_is_one_commit_on_the_thread_too(
    database: SqliteDatabase, commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.kernel.drivers.sqlite._QUICK", -1.0)
    assert await database.transact(quick)  # the loop is spared from here on
    assert await asyncio.gather(*(database.transact(quick) for _ in range(4))) == [False] * 4
    assert commits.made == [(True, 1), (False, 4)]


async def test_the_loop_waits_for_nobody_who_uses_the_connection(database: SqliteDatabase) -> None:
    begun, may_end = threading.Event(), threading.Event()

    async def slow(tx: Transaction) -> None:
        begun.set()
        may_end.wait(20)

    writing = asyncio.create_task(database.transact(slow))
    await asyncio.to_thread(begun.wait)
    behind = asyncio.create_task(database.transact(quick))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    may_end.set()  # the loop has come here, although the connection is in use
    assert not await behind
    await writing


async def test_the_loop_does_not_wait_for_another_process_that_writes(
    database: SqliteDatabase, turns: WriterQueue
) -> None:
    with turns.turn():
        waiting = asyncio.create_task(database.transact(quick))
        for _ in range(5):
            await asyncio.sleep(0)  # it would stand still here
        assert not waiting.done()
    assert not await waiting
    await at_rest(database)


async def test_the_loop_does_not_wait_for_a_program_without_turns(database: SqliteDatabase, file: Path) -> None:
    with contextlib.closing(apsw.Connection(str(file))) as other:
        other.execute("begin immediate")
        waiting = asyncio.create_task(database.transact(quick))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        other.execute("rollback")
    assert not await waiting


async def test_after_a_slow_commit_the_loop_is_spared(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.kernel.drivers.sqlite._QUICK", -1.0)
    assert await database.transact(quick)
    assert not await database.transact(quick)


async def test_who_leaves_before_it_began_writes_nothing(database: SqliteDatabase, commits: Commits) -> None:
    leaving = asyncio.create_task(database.transact(quick))
    await asyncio.sleep(0)
    leaving.cancel()
    assert isinstance((await asyncio.gather(leaving, return_exceptions=True))[0], asyncio.CancelledError)
    assert commits.made == []


async def test_a_closed_file_refuses(database: SqliteDatabase) -> None:
    await database.close()
    with pytest.raises(StoreUnavailable):
        await database.transact(quick)


async def test_a_statement_is_planned_once_whatever_its_values(database: SqliteDatabase) -> None:
    """Nothing that SQLite counts shows a plan that was made again: the setting is all that can be seen."""

    async def planned_once(tx: Transaction) -> int:
        assert isinstance(tx, SqliteFile)
        return tx.connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1)

    assert await database.transact(planned_once) == 1
