"""`holdfast workers`, `holdfast settings`, `holdfast epoch`."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from dataclasses import fields

import pytest

from holdfast import Holdfast
from holdfast.settings import Settings
from holdfast.version import VERSION
from holdfast.workers.role import Role
from holdfast.workers.worker import Worker
from tests.conftest import Place
from tests.support.apps import eventually, working
from tests.support.commands import environment, holdfast


@pytest.fixture
async def worker(place: Place) -> AsyncIterator[Worker]:
    hf = Holdfast(place.url, embedded=False)

    @hf.job(name="greet")
    async def greet(name: str) -> str:
        return f"hello, {name}"

    async with working(hf, Role(name="mill", id="mill-1", queues=("a",), capabilities=("tag:gpu=yes",))) as started:
        await eventually(hf.workers.duties)
        yield started
    await hf.close()


async def test_workers_are_listed(place: Place, worker: Worker) -> None:
    heading, line = holdfast("workers", "ls", "--url", place.url).lines
    assert heading.split() == ["WORKER", "NAME", "HOST", "PID", "STATUS", "BUSY", "HEARTBEAT", "PRESENCE", "DUTIES"]
    cells = line.split()
    assert cells[:6] == ["mill-1", "mill", socket.gethostname(), str(os.getpid()), "active", "0/20"]
    assert cells[-3:] == ["ago", "yes", "cleanup"]


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
    assert (listed["presence"], listed["duties"]) == (True, ["cleanup"])


async def test_workers_that_left_are_listed_when_asked_for(place: Place, worker: Worker) -> None:
    await worker.stop()
    assert holdfast("workers", "ls", "--url", place.url).lines == ["no workers"]
    (gone,) = holdfast("workers", "ls", "--url", place.url, "--all", "--json").json
    assert (gone["status"], gone["reason"]) == ("stopped", "stopped")


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
    assert line.startswith("'soon' is not a duration")


def test_the_epoch_rises(place: Place) -> None:
    def bump() -> int:
        (line,) = holdfast("epoch", "bump", "--url", place.url).lines
        prefix = "the cluster epoch is now "
        assert line.startswith(prefix)
        return int(line.removeprefix(prefix))

    first = bump()
    assert bump() == first + 1
