"""`holdfast workers`: who works, on what, and asking one to leave. `holdfast settings`, `holdfast epoch`."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import fields
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.errors import VERSION
from holdfast.kernel.duties import DUTIES
from holdfast.kernel.migrate import code_version
from holdfast.settings import Settings
from holdfast.values.workers import LineSlots
from holdfast.workers.role import Role
from holdfast.workers.worker import Worker
from tests.conftest import Place
from tests.e2e.test_worker import ended, started
from tests.support.apps import eventually, in_state, settings_with, working
from tests.support.commands import environment, holdfast


@pytest.fixture
async def worker(place: Place) -> AsyncIterator[Worker]:
    hf = Holdfast(place.url, embedded=False)

    @hf.job(name="greet")
    async def greet(name: str) -> str:
        return f"hello, {name}"

    async with working(hf, Role(name="mill", id="mill-1", queues=("a",), capabilities=("tag:gpu=yes",))) as started:

        async def holds_all_duties() -> bool:
            return len(await hf.workers.duties()) == len(DUTIES)

        await eventually(holds_all_duties)
        yield started
    await hf.close()


async def test_workers_are_listed(place: Place, worker: Worker) -> None:
    heading, line = holdfast("workers", "ls", "--url", place.url).lines
    assert heading.split() == ["WORKER", "NAME", "HOST", "PID", "STATUS", "BUSY", "HEARTBEAT", "PRESENCE", "DUTIES"]
    cells = line.split()
    assert "jobs 0/20" in line
    assert cells[:6] == ["mill-1", "mill", socket.gethostname(), str(os.getpid()), "active", "jobs"]
    assert cells[-3:] == ["ago", "yes", "cleanup,schedules"]


@pytest.mark.long
async def test_workers_are_listed_for_programs(place: Place, worker: Worker) -> None:
    (listed,) = holdfast("workers", "ls", "--url", place.url, "--json").json
    assert {name: listed[name] for name in ("id", "name", "pid", "version", "status", "slots", "active")} == {
        "id": "mill-1",
        "name": "mill",
        "pid": os.getpid(),
        "version": VERSION,
        "status": "active",
        "slots": 20,
        "active": 0,
    }
    assert (listed["capabilities"], listed["queues"]) == (["job:greet", "tag:gpu=yes"], ["a"])
    assert (listed["presence"], listed["duties"]) == (True, ["cleanup", "schedules"])
    assert listed["code"] == code_version("sqlite")
    assert listed["lines"] == {"jobs": {"slots": 20, "active": 0}}


async def test_a_worker_is_listed_with_what_is_taken_of_each_line(place: Place) -> None:
    hf = Holdfast(place.url, settings=settings_with(heartbeat="100ms", max_concurrent_tools=7), embedded=False)
    free = asyncio.Event()

    @hf.tool
    async def search(query: str) -> str:
        """Search."""
        return query

    hf.agent("clerk", model="scripted:", tools=[search])

    @hf.job(name="stay")
    async def stay() -> None:
        await free.wait()

    async with working(hf, Role(id="mill-1")):
        jobs = [await stay.enqueue() for _ in range(3)]

        async def told() -> bool:
            (row,) = await hf.workers.list()
            return row.lines["jobs"] == LineSlots(slots=20, active=3)

        await eventually(told)
        said = await asyncio.to_thread(holdfast, "workers", "ls", "--url", place.url)
        assert "jobs 3/20 · runs 0/5 · batched 0/10 · tools 0/7" in said.lines[1]
        free.set()
        for job in jobs:
            await job.result()
    await hf.close()


@pytest.mark.long
async def test_workers_that_left_are_listed_when_asked_for(place: Place, worker: Worker) -> None:
    await worker.stop()
    assert holdfast("workers", "ls", "--url", place.url).lines == ["no workers"]
    (gone,) = holdfast("workers", "ls", "--url", place.url, "--all", "--json").json
    assert (gone["status"], gone["reason"]) == ("stopped", "stopped")


async def test_a_worker_that_was_killed_is_listed_as_silent(place: Place, shop: Path) -> None:
    """Nobody is left who could declare it lost."""
    async with Holdfast(place.url, embedded=False) as hf:
        short = ("--set", "heartbeat=300ms", "--set", "worker_ttl=1s")
        with started(shop, "shop:hf", "--url", place.url, "--id", "mill-1", *short) as process:
            await eventually(hf.workers.list)
            process.kill()
            await ended(process)

        async def silent() -> bool:
            (row,) = await hf.workers.list()
            return row.silent

        await eventually(silent)
        _, line = holdfast("workers", "ls", "--url", place.url).lines
        assert line.split()[4] == "silent"
        (listed,) = holdfast("workers", "ls", "--url", place.url, "--json").json
        assert (listed["status"], listed["silent"]) == ("active", True)


async def test_a_worker_is_shown_with_what_it_holds(place: Place) -> None:
    hf = Holdfast(place.url, embedded=False)
    free = asyncio.Event()

    @hf.job(name="stay")
    async def stay() -> None:
        await free.wait()

    job = await stay.enqueue()
    async with working(hf, Role(id="mill-1")):
        await in_state(hf, job.id, "running")
        shown = await asyncio.to_thread(holdfast, "workers", "show", "mill-1", "--url", place.url, "--json")
        assert (shown.json["status"], shown.json["queues"], shown.json["leases"]) == ("active", None, 1)
        assert [(held["id"], held["kind"]) for held in shown.json["jobs"]] == [(job.id, "stay")]
        lines = (await asyncio.to_thread(holdfast, "workers", "show", "mill-1", "--url", place.url)).lines
        assert "queues               every queue" in lines
        assert lines[-1].split()[:3] == [job.id, "stay", "default"]
        free.set()
        await job.result()
    await hf.close()


def test_a_worker_that_is_not_there(empty: str) -> None:
    line = holdfast("workers", "show", "mill-9", "--url", empty).refused(2)
    assert line == "there is no worker 'mill-9' in this database."
    line = holdfast("workers", "drain", "mill-9", "--url", empty).refused(2)
    assert line == "there is no live worker 'mill-9'; `holdfast workers ls --all` shows those that left."


async def test_a_worker_that_is_asked_to_drain_leaves(place: Place, shop: Path) -> None:
    """With its next heartbeat at the latest."""
    async with Holdfast(place.url, embedded=False) as hf:
        with started(shop, "shop:hf", "--url", place.url, "--id", "mill-1", "--set", "heartbeat=1s") as process:
            await eventually(hf.workers.list)
            misspelt = holdfast("workers", "drain", "mil-1", "--url", place.url).refused(2)
            assert misspelt.endswith("shows those that left. Did you mean 'mill-1'?")
            assert holdfast("workers", "drain", "mill-1", "--url", place.url).lines == [
                "worker mill-1 was asked to drain"
            ]
            assert await ended(process) == 0
        (row,) = await hf.workers.list(all=True)
        assert (row.status, row.reason) == ("stopped", "stopped")


async def test_a_worker_is_forgotten_when_it_has_left(place: Place) -> None:
    hf = Holdfast(place.url, embedded=False)

    @hf.job(name="greet")
    async def greet() -> None: ...

    forget = ("workers", "forget", "mill-1", "--url", place.url)
    async with working(hf, Role(id="mill-1")):
        line = (await asyncio.to_thread(holdfast, *forget)).refused(3)
        assert line == "worker 'mill-1' is active: stop it first, then forget it."
    assert holdfast(*forget, "--json").json == {"id": "mill-1", "status": "forgotten"}
    assert holdfast(*forget).refused(2) == "there is no worker 'mill-1' in this database."
    async with working(hf, Role(id="mill-1")):
        pass
    assert holdfast(*forget).lines == ["worker mill-1 is forgotten"]
    assert holdfast("workers", "ls", "--all", "--url", place.url, "--json").json == []
    await hf.close()


@pytest.mark.long
async def test_an_embedded_worker_drains_when_asked(place: Place) -> None:
    hf = Holdfast(place.url, embedded=False)

    @hf.job(name="greet")
    async def greet() -> None: ...

    async with working(hf, Role(id="mill-1")):
        await hf.workers.drain("mill-1")

        async def gone() -> bool:
            return not await hf.workers.list()

        await eventually(gone)
    await hf.close()


def test_settings_are_listed_with_their_value_and_meaning() -> None:
    listed = holdfast("settings", "--json", env=environment(HOLDFAST_LEASE_TTL="90s")).json
    values = {setting["name"]: setting["value"] for setting in listed}
    assert list(values) == [field.name for field in fields(Settings)]
    assert (values["lease_ttl"], values["heartbeat"], values["pooler"]) == ("1m30s", "15s", False)
    assert all(setting["doc"] for setting in listed)
    heading, *lines = holdfast("settings").lines
    assert heading.split() == ["SETTING", "VALUE", "MEANING"]
    assert len(lines) == len(values)


def test_a_setting_in_the_environment_that_makes_no_sense() -> None:
    line = holdfast("settings", env=environment(HOLDFAST_LEASE_TTL="soon")).refused(2)
    assert line.startswith("HOLDFAST_LEASE_TTL: 'soon' is not a duration")


def test_the_epoch_rises(empty: str) -> None:
    def bump() -> int:
        (line,) = holdfast("epoch", "bump", "--url", empty).lines
        prefix = "the cluster epoch is now "
        assert line.startswith(prefix)
        return int(line.removeprefix(prefix))

    first = bump()
    assert bump() == first + 1
    assert holdfast("epoch", "bump", "--url", empty, "--json").json == {"epoch": first + 2}
