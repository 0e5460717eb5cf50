"""Hints on PostgreSQL: they follow the commit, many of them together, and belong to no transaction but a caller's."""

from __future__ import annotations

import asyncio
import sys

import asyncpg
import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.client.jobs import JobFunction
from holdfast.clock import Ports
from holdfast.kernel.database import Announcement, Transaction
from holdfast.kernel.drivers.postgres import PostgresDatabase
from holdfast.kernel.routes import route_for
from holdfast.settings import Settings
from tests.support.apps import working
from tests.support.listening import listening

CALLS = 300
NOTE = f"route {route_for('default', 'work').id}"
# Whoever sends a hint from within a transaction fails here.
REFUSE = """
create or replace function holdfast.hint(note text) returns integer language plpgsql as
$$ begin raise 'a hint in a transaction: %', note; end $$
"""
SCRIPT = """
import asyncio, sys
from holdfast import Holdfast

hf = Holdfast(sys.argv[1], embedded=False)

@hf.job(name="work")
async def work(number: int) -> int: ...

async def main() -> None:
    await work.enqueue(1)

asyncio.run(main())
"""


def with_a_job(url: str) -> tuple[Holdfast, JobFunction[[int], int]]:
    hf = Holdfast(url, embedded=False)

    @hf.job(name="work")
    async def work(number: int) -> int:
        return number

    return hf, work


async def test_only_a_callers_own_transaction_sends_hints_itself(postgres_url: str) -> None:
    """A transaction with a NOTIFY in it makes every other one of the database wait while it commits."""
    hf, work = with_a_job(postgres_url)
    caller = await asyncpg.connect(postgres_url)
    await caller.execute(REFUSE)
    async with working(hf):
        jobs = [
            await work.enqueue(1),
            *await work.enqueue_many([(2,), (3,)]),
            await work.options(key="once").enqueue(4),
        ]
        assert [await job.result(timeout="30s") for job in jobs] == [1, 2, 3, 4]
        await hf.queues.pause("default", reason="none")
        await hf.queues.resume("default")
        await hf.signal("door", "open")
    with pytest.raises(asyncpg.RaiseError, match="a hint in a transaction"):
        await work.options(tx=caller).enqueue(5)
    await caller.close()
    await hf.close()


async def test_the_hints_of_many_commits_go_together(postgres_url: str) -> None:
    hf, work = with_a_job(postgres_url)
    await core_of(hf).runtime().open()
    async with listening(postgres_url) as outside:
        await asyncio.gather(*(work.enqueue(number) for number in range(CALLS)))
        await hf.close()
        heard = await outside.so_far()
    assert set(heard) == {NOTE}
    assert len(heard) <= CALLS / 2


async def test_closing_tells_what_is_still_to_be_told(postgres_url: str) -> None:
    hf, work = with_a_job(postgres_url)
    async with listening(postgres_url) as outside:
        for number in range(3):
            await work.enqueue(number)
            await hf.close()
            assert await outside.so_far() == [NOTE]


async def test_a_script_that_ends_without_closing_has_told_of_its_work(postgres_url: str) -> None:
    async with listening(postgres_url) as outside:
        script = await asyncio.create_subprocess_exec(sys.executable, "-c", SCRIPT, postgres_url)
        assert await script.wait() == 0
        assert await outside.so_far() == [NOTE]


async def test_what_asks_without_an_event_loop_hints_before_it_returns(postgres_url: str) -> None:
    database = PostgresDatabase(postgres_url, Settings(), Ports())
    blocking = database.blocking()

    async def hint(tx: Transaction) -> None:
        await tx.hint("cancel 7")

    async with listening(postgres_url) as outside:
        await asyncio.to_thread(blocking.call, hint)
        assert await outside.so_far() == ["cancel 7"]
    await asyncio.to_thread(blocking.close)


async def test_a_process_hears_each_of_its_own_hints_once(postgres_url: str) -> None:
    database = PostgresDatabase(postgres_url, Settings(), Ports())
    notes: asyncio.Queue[str] = asyncio.Queue()

    async def hint(tx: Transaction, note: str) -> None:
        await tx.hint(note)

    await database.open()
    await database.listen(notes.put_nowait)
    assert await notes.get() == ""
    async with listening(postgres_url) as outside:
        for note in ("route 1", "route 2"):
            await database.transact(hint, note)
            await database.flush()
        await outside.say("route 3")  # comes after whatever the server would tell us of our own
        heard = []
        while (note := await notes.get()) != "route 3":
            heard.append(note)
        assert heard == ["route 1", "route 2"]
        assert await outside.so_far() == ["route 1", "route 2", "route 3"]
    await database.close()


async def test_a_process_hears_whoever_has_the_number_of_a_connection_that_it_closed(postgres_url: str) -> None:
    """The server gives the numbers of its processes again."""
    database = PostgresDatabase(postgres_url, Settings(), Ports())
    notes: asyncio.Queue[str] = asyncio.Queue()

    async def hint(tx: Transaction) -> None:
        await tx.hint("route 1")

    await database.open()
    await database.transact(hint)
    await database.flush()
    async with database.connection() as connection:  # the only one so far, so that is who told
        sender = connection.get_server_pid()
        closed = asyncio.Event()
        connection.add_termination_listener(lambda _: closed.set())
        connection.terminate()
    await closed.wait()
    await database.listen(notes.put_nowait)
    assert await notes.get() == ""
    database._on_notify(sender, "route 2")  # as asyncpg would: no test can make the server choose that number
    assert notes.get_nowait() == "route 2"
    await database.close()


async def test_announcements_are_made_once_each_and_in_order(postgres_url: str) -> None:
    """Also those that say the same: a NOTIFY would tell equal words of one transaction once."""
    database = PostgresDatabase(postgres_url, Settings(), Ports())
    payloads = [f"{number % 3} of {number // 30}" for number in range(120)]

    async def announce(tx: Transaction, payload: str, *, undo: bool) -> None:
        await tx.announce([Announcement("changes", payload)])
        if undo:
            raise ZeroDivisionError

    async with listening(postgres_url, "changes") as outside:
        for payload in payloads:
            await database.transact(announce, payload, undo=False)
            with pytest.raises(ZeroDivisionError):
                await database.transact(announce, "never", undo=True)
        await database.close()
        assert await outside.so_far() == payloads
