"""`holdfast doctor`: what is wrong, and what to do about it. Its judgement is tested in tests/unit/test_doctor.py."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from holdfast import Holdfast
from holdfast.kernel.drivers import describe_url
from tests.conftest import Place
from tests.support.apps import eventually, working
from tests.support.commands import Said, environment, holdfast, run
from tests.support.past_kernel import query
from tests.support.processes import free_port


def levels(said: Said) -> dict[str, str]:
    findings: list[dict[str, Any]] = json.loads(said.out)
    return {finding["check"]: finding["level"] for finding in findings}


def test_a_healthy_store_has_no_problem(empty: str, dialect: str) -> None:
    said = holdfast("doctor", "--url", empty, "--json")
    assert json.loads(said.out)[0]["sentence"] == describe_url(empty)
    found = levels(said)
    assert (found["database"], found["versions"], found["schema"], found["server"], found["work"]) == ("ok",) * 5
    if dialect == "postgres":
        assert (found["clock"], found["wake-ups"], found["vacuum"]) == ("ok", "ok", "ok")
        assert "connections" in found


def test_findings_are_sentences(empty: str) -> None:
    said = holdfast("doctor", "--url", empty)
    database, first, *others = said.out.splitlines()
    assert database == f"database: {describe_url(empty)}"
    assert first.split()[:3] == ["ok", "versions", "holdfast"]
    assert all(line[:8].strip() in ("ok", "note", "warning", "problem", "") for line in others)


async def test_work_that_nobody_can_do_is_a_problem(place: Place) -> None:
    hf = Holdfast(place.url, embedded=False)

    @hf.job(name="paint", queue="images", requires=["tag:gpu=yes"])
    async def paint() -> None: ...

    await paint.enqueue()
    alone = holdfast("doctor", "--url", place.url)
    assert alone.code == 1
    assert "1 job of queue images waits, and no worker is alive." in alone.out
    async with working(hf):
        said = holdfast("doctor", "--url", place.url)
    assert said.code == 1
    assert "1 job of queue images waits for a worker with job:paint, tag:gpu=yes" in said.out
    await hf.close()


async def test_a_job_that_does_not_stand_in_one_place_is_a_problem(place: Place) -> None:
    hf = Holdfast(place.url, embedded=False)

    @hf.job(name="paint")
    async def paint() -> None: ...

    whole, nowhere, twice = [(await paint.enqueue()).id for _ in range(3)]
    assert "exactly one" not in holdfast("doctor", "--url", place.url).out
    own = "seq, route, slot, token, priority, attempts, rescues"
    query(place, f"delete from holdfast.ready where seq = (select seq from holdfast.job where id = '{nowhere}')")
    query(
        place,
        f"insert into holdfast.later ({own}, state, due_at) select {own}, 'scheduled', 1 from holdfast.ready "
        f"where seq = (select seq from holdfast.job where id = '{twice}')",
    )
    said = holdfast("doctor", "--url", place.url)
    assert said.code == 1
    assert f"{nowhere} (in none), {twice} (in 2)." in said.out
    assert whole not in said.out
    await hf.close()


@pytest.mark.long
async def test_whoever_blocks_the_tables_is_named(postgres_url: str) -> None:
    hf = Holdfast(postgres_url, embedded=False)
    await hf.jobs.list()
    blocker = await asyncpg.connect(postgres_url, server_settings={"application_name": "forgotten psql"})
    await blocker.execute("begin; lock table holdfast.job in access exclusive mode")
    waiting = asyncio.create_task(hf.jobs.list())

    async def named() -> str | None:
        hasty = {"HOLDFAST_LEASE_TTL": "4s", "HOLDFAST_HEARTBEAT": "1s"}
        said = await asyncio.to_thread(holdfast, "doctor", "--url", postgres_url, env=environment(**hasty))
        return said.out if "session of Holdfast waits for a lock" in said.out else None

    out = await eventually(named)
    assert "(forgotten psql, role postgres, idle in transaction)" in out
    assert f"pg_terminate_backend({blocker.get_server_pid()})" in out
    await blocker.execute("rollback")
    assert await waiting == []
    await blocker.close()
    await hf.close()


def test_a_server_that_is_away_is_a_finding() -> None:
    said = holdfast("doctor", "--url", f"postgresql://127.0.0.1:{free_port()}/shop")
    assert said.code == 1
    assert "cannot be reached" in said.out.splitlines()[-1]


@pytest.mark.parametrize("dialect", ["postgres"], indirect=True)
def test_tables_that_are_missing_are_a_finding(bare_url: str, dialect: str) -> None:
    said = holdfast("doctor", "--url", bare_url)
    assert said.code == 1
    assert "Run `holdfast migrate`" in said.out.splitlines()[-1]


@pytest.mark.long
def test_tables_of_another_role_are_noted(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute("drop role if exists holdfast_guest")
        server.execute("create role holdfast_guest login superuser")
        server.execute("alter role holdfast_guest nosuperuser")
        for grant in (
            "usage on schema holdfast",
            "select, insert, update, delete on all tables in schema holdfast",
            "execute on all functions in schema holdfast",
        ):
            server.execute(f"grant {grant} to holdfast_guest".encode())
    host = postgres_url.partition("@")[2] or postgres_url.partition("://")[2]
    try:
        said = holdfast("doctor", "--url", f"postgresql://holdfast_guest@{host}")
        assert "as holdfast_guest, VACUUM skips them without an error" in said.out
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as server:
            server.execute("drop owned by holdfast_guest")
            server.execute("drop role holdfast_guest")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path | None]:
    """A disk of four megabytes; None: only root may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        yield None
        return
    yield folder
    subprocess.run(["umount", folder], check=True)


async def store_with_a_job(folder: Path) -> str:
    url = f"sqlite:///{folder / 'store.db'}"
    async with Holdfast(url, embedded=False) as hf:

        @hf.job(name="paint")
        async def paint() -> None: ...

        await paint.enqueue()
    return url


@pytest.mark.long
async def test_a_file_that_may_not_grow_crashes_no_doctor(tmp_path: Path) -> None:
    url = await store_with_a_job(tmp_path)
    command = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", sys.executable, "-m", "holdfast", "doctor", "--url", url]
    said = run(command)
    assert said.code == 1, said
    assert "Traceback" not in said.err
    assert "problem  database" in said.out


async def test_a_full_disk_is_a_problem_and_the_work_is_looked_at_all_the_same(
    small_disk: Path | None, tmp_path: Path
) -> None:
    url = await store_with_a_job(small_disk or tmp_path)
    async with Holdfast(url, embedded=False) as hf:  # somebody uses it, and has made the files beside it
        assert len(await hf.jobs.list()) == 1
        said = judged(url, small_disk)
        assert "Doctor uses it exclusively" not in said.out
    for _ in range(2):  # looking leaves nothing behind that would keep it from looking again
        said = judged(url, small_disk)
        assert ("the disk is full" in said.out) == (small_disk is not None)


def judged(url: str, small_disk: Path | None) -> Said:
    """What doctor says once the small disk is full; without one, the work is judged all the same."""
    if small_disk is not None:
        fill(small_disk / "filler")
    said = holdfast("doctor", "--url", url)
    assert (said.code, said.err) == (1, "")
    assert "1 job of queue default waits, and no worker is alive." in said.out
    full = "0 MB are free on the disk of the database: nothing more can be accepted." in said.out
    assert full == (small_disk is not None)
    return said


def fill(path: Path) -> None:
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4_096)
