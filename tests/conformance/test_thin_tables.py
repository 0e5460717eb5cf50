"""Migration 8 puts the wide row of a job into thin tables: nothing that can be seen changes, up or down or killed."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from holdfast.clock import Ports
from holdfast.kernel import ids, migrate
from holdfast.kernel.claim import claim
from holdfast.kernel.complete import complete_and_settle
from holdfast.kernel.drivers import connect
from holdfast.kernel.enqueue import enqueue_unique
from holdfast.kernel.lanes import claim_in_lanes
from holdfast.kernel.migrate import migrations, script
from holdfast.kernel.queries import list_attempts
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import AttemptRow, Ending, Held, JobRow
from holdfast.kernel.states import State
from holdfast.kernel.waiting import overdue, signal, wake
from holdfast.kernel.why import why
from holdfast.kernel.workers import list_routes
from holdfast.outcomes import Done
from holdfast.settings import Settings
from tests.support.apps import eventually
from tests.support.past_schemas import Row, history, last_number, load, rows
from tests.support.places import assert_well_placed, holds_key
from tests.support.postgres import Cluster
from tests.support.schemas import objects_at, sqlite_path, tables_at
from tests.support.stores import TTL_US, Store, postgres_store, sqlite_store

SCHEMA = "holdfast"
WIDE, THIN = 7, 8
DAY_US = 86_400_000_000
PLACES = ("ready", "later", "lease", "ended")
_numbers = itertools.count()


@pytest.fixture(scope="module")
def wide(cluster: Cluster) -> Iterator[str]:
    """The name of an empty database with the tables of schema 7, to be copied."""
    for url in made(cluster):
        asyncio.run(to(url, WIDE))
        yield url.rpartition("/")[2]


def made(cluster: Cluster, template: str = "template1") -> Iterator[str]:
    name = f"holdfast_thin_{os.getpid()}_{next(_numbers)}"
    yield cluster.create_database(name, template=template)
    cluster.drop_database(name)


@pytest.fixture(params=["jobs", "runs"])
def past_url(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database as code of schema 7 left it."""
    past = history(WIDE, request.param)
    if dialect == "sqlite":
        url = f"sqlite:///{tmp_path / 'store.db'}"
        asyncio.run(to(url, WIDE))
        load(url, past)
        yield url
        return
    for url in made(request.getfixturevalue("cluster"), request.getfixturevalue("wide")):
        load(url, past)
        yield url


async def to(url: str, version: int) -> list[str]:
    database = connect(url, Settings(url=url), Ports())
    await database.connect()
    try:
        return await migrate.migrate(database, SCHEMA, version)
    finally:
        await database.close()


def everything(url: str) -> dict[str, list[Row]]:
    return {table: rows(url, table) for table in tables_at(url)}


def by_key(found: list[Row], *key: str) -> dict[tuple[object, ...], Row]:
    return {tuple(row[name] for name in key): row for row in found}


def assert_thin(url: str, before: dict[str, list[Row]], runs: list[Row]) -> None:
    """All that schema 7 showed is there, each job in one place and each attempt in one place."""
    assert by_key(rows(url, "job_now"), "seq") == by_key(before["job"], "seq")
    attempts = rows(url, "attempt_now")
    assert by_key(attempts, "job", "epoch", "token") == by_key(before["attempt"], "job", "epoch", "token")
    assert len(attempts) == len(before["attempt"])
    assert rows(url, "run_now") == runs
    after = everything(url)
    standing = sorted(row["seq"] for place in PLACES for row in after[place])
    assert standing == sorted(row["seq"] for row in before["job"])
    others = before.keys() - {"job", "attempt", "schema"}
    assert {name: after[name] for name in others} == {name: before[name] for name in others}


async def test_a_database_with_jobs_in_every_state_looks_the_same_after_it(past_url: str) -> None:
    before, runs = everything(past_url), rows(past_url, "run_now")
    number = last_number(past_url, "job")
    assert await to(past_url, THIN) == ["up 0008 thin_tables"]
    assert_thin(past_url, before, runs)
    assert last_number(past_url, "job") == number


async def test_the_way_down_leads_back_to_the_same_rows(past_url: str) -> None:
    before, objects = everything(past_url), objects_at(past_url)
    number = last_number(past_url, "job")
    await to(past_url, THIN)
    assert await to(past_url, WIDE) == ["down 0008 thin_tables"]
    after = everything(past_url)
    assert {**after, "schema": []} == {**before, "schema": []}
    assert objects_at(past_url).keys() == objects.keys()
    assert last_number(past_url, "job") == number


@asynccontextmanager
async def store_at(url: str) -> AsyncIterator[Store]:
    """The database, migrated to what this code needs, some seconds after the last that happened in it."""
    await to(url, migrations("sqlite")[-1].number)
    opening = sqlite_store(sqlite_path(url).parent) if url.startswith("sqlite") else postgres_store(url, url)
    async with opening as store:
        await store.advance("10s")
        yield store


@pytest.mark.parametrize("past_url", ["jobs"], indirect=True)
async def test_this_code_shows_each_job_and_its_attempts_as_code_of_before_did(past_url: str) -> None:
    jobs, recorded = rows(past_url, "job"), rows(past_url, "attempt")
    await to(past_url, THIN)
    async with store_at(past_url) as store:
        for job in jobs:
            assert await store.find(job["id"]) == JobRow(*(job[name] for name in JobRow._fields[:-1]))
            attempts = [row for row in recorded if row["job"] == job["seq"]]
            attempts.sort(key=lambda row: (row["started_at"], row["epoch"], row["token"]))
            said = [AttemptRow(*(row[name] for name in AttemptRow._fields)) for row in attempts]
            assert await store.do(list_attempts, job["seq"]) == said
            assert await store.do(why, job["id"])


@pytest.mark.parametrize("past_url", ["jobs"], indirect=True)
async def test_unique_keys_are_held_by_who_held_them(past_url: str) -> None:
    jobs = [row for row in rows(past_url, "job") if row["unique_key"] is not None]
    keys = {(row["unique_scope"], row["unique_key"]) for row in jobs}
    holders = {(row["unique_scope"], row["unique_key"]): row["id"] for row in jobs if holds_key(row)}
    assert {scope for scope, _ in keys} == {scope for scope, _ in holders} == {"pending", "live", "window"}
    await to(past_url, THIN)
    async with store_at(past_url) as store:
        for scope, key in sorted(keys):
            window = DAY_US if scope == "window" else None
            new = store.job(unique_scope=scope, unique_key=key.partition(":")[0], window_us=window)
            answer = await store.do(enqueue_unique, new, [route_for("default", "work")])
            assert answer.id == holders.get((scope, key), new.id), (scope, key)
        await assert_well_placed(store.query)


@pytest.mark.parametrize("past_url", ["jobs"], indirect=True)
async def test_what_was_under_way_goes_on_to_its_end(past_url: str) -> None:
    """What ran ends under the token it had, what waits is woken, and a new job has a new number."""
    jobs, number = rows(past_url, "job"), last_number(past_url, "job")
    await to(past_url, THIN)
    async with store_at(past_url) as store:
        for job in jobs:
            if job["state"] == "running":
                held = Held(*(job[name] for name in Held._fields))
                done = Ending(*held, "succeeded", State.SUCCEEDED, 0, 1, "1", None)
                (ended,) = await store.do(complete_and_settle, [done], [job["parent"]] if job["parent"] else [])
                assert ended.state == ("succeeded" if job["cancel_requested_at"] is None else "cancelled")
        new = await store.enqueue()
        assert (await store.find(new)).seq == number + 1
        for channel in {row["channel"] for row in jobs if row["channel"] is not None}:
            assert await store.do(signal, ids.new_id(store.ports), channel, "1")
        await store.advance("2h")
        await store.do(wake, limit=100)
        await store.do(overdue, limit=100)
        worker = await store.worker()
        numbers = [row.id for row in await store.do(list_routes, since=0)]
        while leases := [
            *await store.do(claim, worker, numbers, 100, TTL_US),
            *await store.do(claim_in_lanes, worker, numbers, 100, TTL_US),
        ]:
            for lease in leases:
                assert await store.do(complete_and_settle, [store.ending(lease, Done())], [lease.parent or 0])
            await store.do(wake, limit=100)
        assert await store.query("select kind, state from holdfast.job_now where finished_at is null") == []
        await assert_well_placed(store.query)


@pytest.mark.sample(1)
@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("part", [0.5, 1.0], ids=["half-way", "not committed"])
@pytest.mark.parametrize("past_url", ["jobs"], indirect=True)
async def test_killed_on_the_way_it_has_not_happened_and_the_next_run_does_it(
    past_url: str, dialect: str, direction: str, part: float
) -> None:
    source, target = (WIDE, THIN) if direction == "up" else (THIN, WIDE)
    wide, runs = everything(past_url), rows(past_url, "run_now")
    await to(past_url, source)
    before, objects = everything(past_url), objects_at(past_url)
    step = migrations("postgres" if dialect == "postgres" else "sqlite")[THIN - 1]
    statements = list(script(step, "up" if direction == "up" else "down", "sqlite", SCHEMA))
    await kill_at(past_url, target, 1 + round(part * (len(statements) - 1)))
    assert everything(past_url) == before
    assert objects_at(past_url) == objects
    assert len(await to(past_url, target)) == 1
    await to(past_url, THIN)
    assert_thin(past_url, wide, runs)


async def kill_at(url: str, version: int, after: int) -> None:
    """Somebody kills `holdfast migrate` when it has done so many statements of its step."""
    words = ["-m", "tests.support.half_migration", url, str(version), str(after)]
    pipe = asyncio.subprocess.PIPE
    doomed = await asyncio.create_subprocess_exec(sys.executable, *words, stdin=pipe, stdout=pipe)
    try:
        assert doomed.stdout is not None
        assert await doomed.stdout.readline() == b"half-way\n"
    finally:
        doomed.kill()
        await doomed.wait()
    if not url.startswith("sqlite"):
        await until_alone(url)


async def until_alone(url: str) -> None:
    """The server has seen that the process is gone."""
    others = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as watch:

        async def alone() -> bool:
            return await (await watch.execute(others)).fetchone() == (0,)

        await eventually(alone)
