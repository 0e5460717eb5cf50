"""A SQLite file that is locked, full, copied, damaged or in the wrong place: one clear error each, and nothing lost."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.client.jobs import JobFunction
from holdfast.errors import StoreBusy, StoreCorrupt, StoreFull, StoreUnfit
from holdfast.kernel.drivers.sqlite import SqliteDatabase
from holdfast.kernel.drivers.sqlite_file import WAL_LIMIT, refuse_network
from holdfast.kernel.drivers.sqlite_processes import WriterQueue, lock_folder
from holdfast.kernel.ids import JobId, new_id
from holdfast.kernel.queries import list_jobs
from holdfast.kernel.waiting import signal
from tests.chaos.crew import Crew, Member
from tests.chaos.jobs import hold, nap, quick
from tests.chaos.scene import Scene
from tests.chaos.watch import Watch
from tests.support.apps import eventually, outcomes, settings_with, working


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


@contextlib.asynccontextmanager
async def locked(crew: Crew, path: Path) -> AsyncIterator[Member]:
    """While a foreign program has the file locked."""
    holder = crew.script("holder", path)
    await holder.says("held")
    yield holder
    if holder.running:
        holder.say("let go")
        assert await holder.leaves() == 0


async def write(watch: Watch) -> None:
    await watch.do(signal, new_id(watch.ports), "somewhere", "1")


async def test_a_call_waits_for_a_file_that_is_locked_for_a_moment(url: str, crew: Crew, path: Path) -> None:
    async with Watch(url) as writer, Watch(url) as reader, locked(crew, path) as holder:
        writing = asyncio.create_task(write(writer))
        await asyncio.sleep(0.5)
        assert await reader.do(list_jobs) == []
        assert not writing.done()
        holder.say("let go")
        await writing


async def test_who_only_reads_is_answered_although_it_shares_a_transaction(url: str, crew: Crew, path: Path) -> None:
    """What is asked while a writer waits for the file is one transaction, which waits as well and is refused."""
    async with Watch(url, busy_timeout=timedelta(seconds=1)) as watch, locked(crew, path):
        writing, *together = [asyncio.create_task(each) for each in (write(watch), watch.do(list_jobs), write(watch))]
        with pytest.raises(StoreBusy):
            await writing
        read, written = await asyncio.gather(*together, return_exceptions=True)
        assert (read, type(written)) == ([], StoreBusy)


async def test_a_call_gives_up_after_the_busy_timeout_however_many_wait(url: str, crew: Crew, path: Path) -> None:
    patience = timedelta(seconds=1.5)
    async with Watch(url, busy_timeout=patience) as one, Watch(url, busy_timeout=patience) as other:
        async with locked(crew, path):
            begun = one.now()
            answers = await asyncio.gather(write(one), write(other), return_exceptions=True)
            waited = (one.now() - begun) / 1e6
        assert [type(answer) for answer in answers] == [StoreBusy, StoreBusy]
        assert 1.4 <= waited <= 2.7  # less than twice the timeout
        await write(one)
        await write(other)


@pytest.mark.long
@pytest.mark.parametrize("place", ["write", "next"])
async def test_a_process_stopped_in_its_turn_or_as_the_next_costs_the_others_one_wait(
    url: str, crew: Crew, path: Path, place: str
) -> None:
    patience = timedelta(seconds=2)
    async with Watch(url, busy_timeout=patience) as watch:
        await write(watch)
        holder = await stopped(crew, path, place)
        turns = WriterQueue(lock_folder(path), patience.total_seconds())
        await write(watch)  # waits once, in vain
        begun = watch.now()
        for _ in range(10):
            await write(watch)
        assert (watch.now() - begun) / 1e6 < 10 * patience.total_seconds(), "each would wait again"
        left = [await asyncio.to_thread(take, turns) for _ in range(2)]
        assert left[0] < 1 < left[1], "the second does not wait, so that all patience is left"
        holder.kill()
        await eventually(partial(has_turns, turns))
        turns.close()


async def stopped(crew: Crew, path: Path, place: str) -> Member:
    """A process that was frozen while it had its turn, or while it was the next to have one."""
    first = crew.script("turn_holder", path)
    await first.says("held")
    if place == "write":
        await first.freeze()
        return first
    second = crew.script("turn_holder", path)
    await eventually(partial(is_locked, lock_folder(path) / "next"))
    await second.freeze()
    first.kill()
    return second


async def is_locked(file: Path) -> bool:
    with file.open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def take(turns: WriterQueue) -> float:
    with turns.turn() as left:
        return left


async def has_turns(turns: WriterQueue) -> bool:
    take(turns)
    return not turns._in_vain


async def test_the_log_shrinks_when_a_long_reader_is_gone(url: str, crew: Crew, path: Path) -> None:
    log = path.with_name(f"{path.name}-wal")
    async with Watch(url, result_cap=2**22) as watch:
        await write(watch)
        reader = crew.script("reader", path)
        await reader.says("reading")
        while log.stat().st_size <= WAL_LIMIT:
            await watch.do(signal, new_id(watch.ports), "somewhere", f'"{"x" * 2_000_000}"')
        assert not await watch.database.tidy(0), "somebody reads what is in it"
        assert log.stat().st_size > WAL_LIMIT
        doctor = crew.start("holdfast", "doctor", "--url", url)
        await doctor.leaves()
        assert "the write-ahead log is" in doctor.output
        reader.say("stop")
        assert await reader.leaves() == 0
        assert await watch.database.tidy(0)
        assert log.stat().st_size == 0
        await write(watch)
    assert integrity(path) == "ok"


@pytest.mark.long
async def test_a_file_that_is_locked_for_seconds_costs_no_lease_and_no_result(scene: Scene, path: Path) -> None:
    gate = scene.gate()
    scene.hf.settings = settings_with(url=scene.url, busy_timeout="2s")
    worker = scene.worker()
    job = await hold.enqueue(str(scene.witness), str(gate))
    await scene.witness.saw(f"running {job.id} {worker.pid}")
    result = asyncio.create_task(job.result())
    async with locked(scene.crew, path):
        gate.open()
        # Longer than the busy timeout. What is asked while the first call waits shares the next transaction with the
        # question after the result.
        refused = [asyncio.create_task(quick.enqueue(1))]
        await asyncio.sleep(1)
        refused += [asyncio.create_task(quick.enqueue(number)) for number in range(3)]
        for enqueuing in refused:
            with pytest.raises(StoreBusy):
                await enqueuing
    assert await asyncio.wait_for(result, 60) == f"held by {worker.pid}"
    assert await scene.watch.outcomes(job.id) == ["succeeded"]
    assert "Traceback" not in worker.output
    await (await quick.enqueue(1)).result(timeout="60s")


async def test_a_full_disk_refuses_work_and_loses_none(url: str, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = Holdfast(url, embedded=False)
    space = asyncio.Event()

    @app.job(name="fill")
    async def fill(text: str) -> str:
        await space.wait()
        return text

    async with working(app):
        accepted = [(await fill.enqueue("a" * 1_000)).id for _ in range(10)]
        await limit_pages(app, spare=3)
        accepted += await accepted_until_full(fill)
        with pytest.raises(StoreFull, match="Free some space"):
            await fill.enqueue_many([("c" * 10_000,)] * 20)
        space.set()
        await eventually(partial(has_logged, caplog, "the store is full: no space left for"))
        await limit_pages(app, spare=100_000)
        accepted.append((await fill.enqueue("d" * 10_000)).id)
        for id in accepted:
            await app.jobs[id].result(timeout="60s")
    said = [each.getMessage() for each in caplog.records if each.name == "holdfast.store"]
    assert [text.partition(":")[0].partition(" after")[0] for text in said] == [
        "the store is full",
        "the store has space again",
    ]
    assert {row.id for row in await app.jobs.list(limit=1_000)} == set(accepted)
    assert [await outcomes(app, id) for id in accepted] == [["succeeded"]] * len(accepted)
    await app.close()
    assert integrity(path) == "ok"


async def accepted_until_full(fill: JobFunction[[str], str]) -> list[JobId]:
    accepted: list[JobId] = []
    while True:
        try:
            accepted.append((await fill.enqueue("b" * 10_000)).id)
        except StoreFull:
            return accepted


async def has_logged(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return text in caplog.text


async def limit_pages(app: Holdfast, *, spare: int) -> None:
    """Let the file grow by so many pages only, as a disk that is nearly full does."""
    database = core_of(app).runtime().database
    assert isinstance(database, SqliteDatabase)

    def limit(file: Any) -> None:
        ((pages,),) = file.execute("pragma page_count")
        file.execute(f"pragma max_page_count = {pages + spare}")

    await asyncio.wrap_future(database._thread.call(limit))


@pytest.mark.long
async def test_a_copy_made_while_in_use_is_another_database(scene: Scene, tmp_path: Path, path: Path) -> None:
    gate = scene.gate()
    worker = scene.worker()
    job = await hold.enqueue(str(scene.witness), str(gate))
    await scene.witness.saw(f"running {job.id} {worker.pid}")
    jobs = await nap.enqueue_many([(0.02,)] * 100)
    await scene.watch.until_ended(20)
    copy = tmp_path / "copy.db"
    back_up(path, copy)
    assert integrity(copy) == "ok"

    async with Watch(f"sqlite:///{copy}") as watch:
        ((epoch, _),) = await watch.query("select epoch, identity from holdfast.cluster")
        assert epoch == 2
        assert (await watch.job(job.id)).state == "running"  # in name: its worker is not here
        rescuer = scene.worker(url=f"sqlite:///{copy}")
        await scene.witness.saw(f"running {job.id} {rescuer.pid}")
        assert (await watch.job(job.id)).epoch == 2
        gate.open()
        await watch.until_ended(1 + len(jobs))
        assert await watch.outcomes(job.id) == ["lost", "succeeded"]
    await scene.watch.until_ended(1 + len(jobs))
    assert await scene.watch.outcomes(job.id) == ["succeeded"]


def back_up(source: Path, target: Path) -> None:
    original, copy = apsw.Connection(str(source)), apsw.Connection(str(target))
    with copy.backup("main", original, "main") as backup:
        backup.step()
    original.close()
    copy.close()


def break_the_header(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[:100] = b"x" * 100
    path.write_bytes(data)


def break_every_page(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = b"x" * (len(data) - 4096)
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [break_the_header, break_every_page])
async def test_a_damaged_file_is_refused_with_the_advice_to_restore(
    url: str, path: Path, crew: Crew, damage: Callable[[Path], None]
) -> None:
    async with Watch(url) as watch:
        await write(watch)
    damage(path)
    with pytest.raises(StoreCorrupt, match="Restore it from a backup"):
        async with Watch(url) as watch:
            await write(watch)
    command = crew.start("holdfast", "jobs", "ls", "--url", url)
    assert await command.leaves() == 4
    assert "Restore it from a backup" in command.output
    assert "Traceback" not in command.output


@pytest.mark.filterwarnings("default::pytest.PytestUnhandledThreadExceptionWarning")
async def test_an_error_that_nobody_knows_is_answered_and_does_not_hang_the_callers(watch: Watch) -> None:
    assert isinstance(watch.database, SqliteDatabase)
    watch.database._thread.file.connection.close()
    async with asyncio.timeout(30):
        for _ in range(2):
            with pytest.raises(Exception, match="closed"):
                await write(watch)


def test_a_network_file_system_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "share" / "data"
    folder.mkdir(parents=True)
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        f"22 1 254:0 / / rw - ext4 /dev/vda rw\n"
        f"40 22 0:35 / {tmp_path / 'share'} rw shared:1 - nfs4 server:/export rw\n"
        f"41 40 0:36 / {tmp_path / 'share' / 'local'} rw - tmpfs tmpfs rw\n"
    )
    with pytest.raises(StoreUnfit, match="network file system \\(nfs4\\)"):
        refuse_network(folder, mounts)
    refuse_network(tmp_path, mounts)
    refuse_network(tmp_path / "share" / "local", mounts)


def integrity(path: Path) -> str:
    connection = apsw.Connection(str(path))
    ((answer,),) = connection.execute("pragma integrity_check")
    connection.close()
    return str(answer)
