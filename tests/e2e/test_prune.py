"""`holdfast prune`: finished jobs leave when they are told to."""

from __future__ import annotations

import pytest

from holdfast import Holdfast, Queue
from holdfast.app import core_of
from holdfast.settings import Settings
from holdfast.workers.role import Role
from tests.conftest import Place
from tests.support.commands import holdfast


@pytest.fixture
async def finished(place: Place) -> str:
    """Three jobs of one queue that ended, two of another whose policy keeps them long, one that waits."""
    one_by_one = Settings(concurrency=1, batch=1)  # no two end at the same moment
    hf = Holdfast(place.url, embedded=False, settings=one_by_one)
    hf.queue("kept", Queue(keep="52w"))

    @hf.job(name="greet")
    async def greet(number: int) -> None: ...

    @hf.job(name="file", queue="kept")
    async def file(number: int) -> None: ...

    async with hf:
        await greet.enqueue_many([(1,), (2,), (3,)])
        await file.enqueue_many([(1,), (2,)])
        await core_of(hf).make_worker(Role(until="empty")).run()
        await greet.options(delay="1h").enqueue(4)
    return place.url


def left(url: str) -> list[tuple[str, str]]:
    return sorted((job["queue"], job["state"]) for job in holdfast("jobs", "ls", "--url", url, "--json").json)


def test_what_the_policies_keep_stays(finished: str) -> None:
    assert holdfast("prune", "--url", finished).lines == ["0 jobs removed"]
    assert len(left(finished)) == 6


def test_a_dry_run_only_counts(finished: str) -> None:
    assert holdfast("prune", "--url", finished, "--dry-run").lines == ["nothing would be removed"]
    assert holdfast("prune", "--url", finished, "--dry-run", "--older-than", "0s").lines == [
        "3 jobs of queue default would be removed",
        "2 jobs of queue kept would be removed",
    ]
    assert holdfast("prune", "--url", finished, "--dry-run", "--keep", "2", "--json").json == {
        "prunable": {"default": 1}
    }
    assert len(left(finished)) == 6


@pytest.mark.long
def test_jobs_leave_by_number_whatever_their_queue_says(finished: str) -> None:
    assert holdfast("prune", "--url", finished, "--keep", "1", "--json").json == {"removed": 3}
    assert left(finished) == [("default", "scheduled"), ("default", "succeeded"), ("kept", "succeeded")]


@pytest.mark.long
def test_jobs_of_one_queue_leave_by_age(finished: str) -> None:
    assert holdfast("prune", "--url", finished, "--older-than", "1d").lines == ["0 jobs removed"]
    assert holdfast("prune", "--url", finished, "--older-than", "0s", "--queue", "kept").lines == ["2 jobs removed"]
    assert [queue for queue, _ in left(finished)] == ["default"] * 4


def test_an_age_that_is_none(finished: str) -> None:
    assert "is not a duration" in holdfast("prune", "--url", finished, "--older-than", "old").refused(2)


def test_a_tenant_of_whom_nothing_is_stored_is_not_called_erased(empty: str) -> None:
    assert holdfast("tenants", "erase", "acem", "--yes", "--url", empty).lines == ["nothing of tenant acem is stored"]
