"""Leaving on a bad day: tables that changed under a worker, a registration under way, a thread that cannot start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.kernel import migrate
from holdfast.kernel.database import Transaction
from holdfast.kernel.workers import judge_self, lose_workers
from tests.conftest import Place, fresh_file
from tests.support.apps import MakeApp, eventually, happens, settings_with, working
from tests.support.past_kernel import query

CODE = migrate.code_version("sqlite")
BRISK: dict[str, Any] = {"heartbeat": "200ms", "drain_grace": "1s"}


@pytest.fixture
def own(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    """A database that no other test gets."""
    if dialect == "sqlite":
        return fresh_file(tmp_path, request)
    url: str = request.getfixturevalue("postgres_url")
    return Place(url, url)


def with_a_job(app: Holdfast) -> Holdfast:
    @app.job(name="work")
    async def work() -> None: ...

    return app


@pytest.mark.parametrize(
    "change",
    [
        "alter table holdfast.worker rename column heartbeat_at to beat_at",
        "alter table holdfast.duty rename to task",
    ],
    ids=["of workers", "of duties"],
)
async def test_a_worker_leaves_tables_that_have_become_too_new_for_it(
    own: Place, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    """Its heartbeats, or its goodbye, no longer fit the tables; the version that they ask for can always be read."""
    app = with_a_job(Holdfast(own.url, settings=settings_with(**BRISK), embedded=False))
    with caplog.at_level(logging.WARNING, "holdfast"):
        working_on = asyncio.create_task(app.work())

        async def at_work() -> bool:
            return len(await app.workers.list()) == 1

        await eventually(at_work)
        # In a thread: the worker may hold its table while it waits for this loop.
        await asyncio.to_thread(
            query, own, f"update holdfast.schema set version = {CODE + 1}, oldest_code = {CODE + 1}"
        )
        await asyncio.to_thread(query, own, change)
        await eventually(lambda: _done(working_on))
        assert working_on.exception() is None
        await app.close()
    said = [record.getMessage() for record in caplog.records if "drains:" in record.getMessage()]
    assert len(said) == 1
    assert f"takes code of schema {CODE + 1} or newer" in said[0]


async def test_a_worker_that_stops_while_it_registers_again_leaves_no_row_behind(make_app: MakeApp) -> None:
    app = with_a_job(make_app(embedded=False, **BRISK))
    judging, go_on = asyncio.Event(), asyncio.Event()
    hold_up(app, judge_self, judging, go_on)
    async with working(app) as worker:
        await core_of(app).runtime().database.transact(_give_up, worker.seq)
        await happens(judging)
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0)
        go_on.set()
        await stopping
        assert await app.workers.list() == []


async def test_a_worker_whose_lifeline_cannot_start_says_so(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app = with_a_job(make_app(embedded=False, **BRISK))
    await core_of(app).runtime().open()

    def blocking() -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(core_of(app).runtime().database, "blocking", blocking)
    async with asyncio.timeout(60):
        with pytest.raises(OSError, match="Too many open files"):
            await core_of(app).make_worker().start()


def hold_up(app: Holdfast, which: Callable[..., Any], reached: asyncio.Event, go_on: asyncio.Event) -> None:
    """Let an operation wait before it reaches the store."""
    database: Any = core_of(app).runtime().database
    transact = database.transact

    async def held_up(operation: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if operation is which:
            reached.set()
            await happens(go_on)
        return await transact(operation, *args, **kwargs)

    database.transact = held_up


async def _give_up(tx: Transaction, worker: int) -> None:
    await lose_workers(tx, gone=[worker], reason="given up")


async def _done(task: asyncio.Task[None]) -> bool:
    return task.done()
