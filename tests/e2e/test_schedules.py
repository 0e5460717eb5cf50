"""`holdfast schedules`: what the clock enqueues, pause and resume, run now, delete."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.errors import BadSetting
from holdfast.kernel.schedules import find_schedule, postpone
from tests.conftest import Place
from tests.support.apps import working
from tests.support.commands import holdfast


@pytest.fixture
async def nightly(place: Place) -> str:
    """A schedule that a worker has written down."""
    hf = Holdfast(place.url, embedded=False)

    @hf.schedule("0 3 * * *", timezone="Europe/Athens", name="nightly", queue="reports", args={"kind": "all"})
    async def report(kind: str) -> None: ...

    async with working(hf):
        pass
    await hf.close()
    return place.url


def test_schedules_are_listed(nightly: str) -> None:
    heading, line = holdfast("schedules", "ls", "--url", nightly).lines
    assert heading.split() == ["SCHEDULE", "CRON", "TIME", "ZONE", "KIND", "QUEUE", "NEXT", "LAST"]
    assert line.startswith("nightly   0 3 * * *  Europe/Athens")
    (listed,) = holdfast("schedules", "ls", "--url", nightly, "--json").json
    assert (listed["name"], listed["cron"], listed["queue"], listed["paused"]) == (
        "nightly",
        "0 3 * * *",
        "reports",
        False,
    )
    assert listed["next_at"].endswith("Z")
    assert listed["last_at"] is None


def test_there_are_no_schedules(empty: str) -> None:
    assert holdfast("schedules", "ls", "--url", empty).lines == ["no schedules"]


def test_a_schedule_is_paused_and_goes_on(nightly: str) -> None:
    assert holdfast("schedules", "pause", "nightly", "--url", nightly).code == 0
    assert "  paused" in holdfast("schedules", "ls", "--url", nightly).lines[-1]
    (line,) = holdfast("schedules", "resume", "nightly", "--url", nightly).lines
    assert line.startswith("schedule nightly is resumed; its next tick is at ")
    assert holdfast("schedules", "ls", "--url", nightly, "--json").json[0]["paused"] is False


def test_a_schedule_is_run_now(nightly: str) -> None:
    job = holdfast("schedules", "run", "nightly", "--url", nightly, "--json").json["job"]
    shown = holdfast("jobs", "show", job, "--url", nightly, "--json").json
    assert (shown["state"], shown["queue"], shown["payload"]) == ("pending", "reports", {"kind": "all"})


def test_a_schedule_that_is_misspelt_is_named_rightly(nightly: str) -> None:
    for verb in ("pause", "resume", "run", "delete"):
        line = holdfast("schedules", verb, "nighly", "--url", nightly).refused(2)
        assert line == "there is no schedule 'nighly'; the only schedule is 'nightly'. Did you mean 'nightly'?"


def test_a_schedule_is_deleted(nightly: str) -> None:
    assert holdfast("schedules", "delete", "nightly", "--url", nightly).lines == ["schedule nightly is deleted"]
    for verb in ("pause", "resume", "run", "delete"):
        assert "there is no schedule 'nightly'" in holdfast("schedules", verb, "nightly", "--url", nightly).refused(2)


@pytest.mark.long
async def test_one_that_cannot_be_fired_says_why(nightly: str) -> None:
    hf = Holdfast(nightly, embedded=False)
    async with hf:
        database = core_of(hf).runtime().database
        row = await database.transact(find_schedule, "nightly")
        assert await database.transact(postpone, row, BadSetting("no such time zone."))
    *_, line = holdfast("schedules", "ls", "--url", nightly).lines
    assert line.startswith("nightly cannot be fired: no such time zone. Next try at 2")
    (listed,) = holdfast("schedules", "ls", "--url", nightly, "--json").json
    assert listed["error"] == "no such time zone."
    assert listed["retry_at"].endswith("Z")
    said = holdfast("doctor", "--url", nightly)
    assert said.code == 1
    assert "schedule nightly cannot be fired: no such time zone." in said.out
