"""`holdfast jobs`: what is in the store, for people and for programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Retry
from holdfast.workers.role import Role
from tests.conftest import Place
from tests.support.commands import environment, holdfast


@pytest.fixture
async def ids(place: Place) -> dict[str, str]:
    """One job that succeeded, one that failed, one that is delayed."""
    hf = Holdfast(place.url, embedded=False)

    @hf.job(name="greet")
    async def greet(name: str) -> str:
        return f"hello, {name}"

    @hf.job(name="fail", queue="bad", retry=Retry(attempts=1))
    async def fail() -> None:
        raise LookupError("no such page")

    good = await greet.options(tenant="acme", metadata={"by": "Ann"}).enqueue("Oslo")
    bad = await fail.enqueue()
    await hf.make_worker(Role(name="mill", until="empty")).run()
    later = await greet.options(delay="1h").enqueue("Rome")
    await hf.close()
    return {"good": good.id, "bad": bad.id, "later": later.id}


def test_jobs_are_listed_newest_first(place: Place, ids: dict[str, str]) -> None:
    heading, *lines = holdfast("jobs", "ls", "--url", place.url).lines
    assert heading.split() == ["ID", "KIND", "QUEUE", "STATE", "ATTEMPTS", "RESCUES", "CREATED"]
    assert [line.split()[:6] for line in lines] == [
        [ids["later"], "greet", "default", "scheduled", "0/3", "0"],
        [ids["bad"], "fail", "bad", "failed", "1/1", "0"],
        [ids["good"], "greet", "default", "succeeded", "1/3", "0"],
    ]


def test_jobs_are_listed_for_programs(place: Place, ids: dict[str, str]) -> None:
    listed = holdfast("jobs", "ls", "--json", env=environment(HOLDFAST_URL=place.url)).json
    assert [job["id"] for job in listed] == [ids["later"], ids["bad"], ids["good"]]
    good: dict[str, Any] = listed[-1]
    assert (good["payload"], good["result"], good["metadata"]) == ({"name": "Oslo"}, "hello, Oslo", {"by": "Ann"})
    assert (good["tenant"], good["token"], good["state"]) == ("acme", "1.1", "succeeded")
    assert good["created_at"].endswith("Z")


def test_jobs_are_filtered(place: Place, ids: dict[str, str]) -> None:
    def listed(*words: str) -> list[str]:
        return [job["id"] for job in holdfast("jobs", "ls", "--url", place.url, "--json", *words).json]

    assert listed("--queue", "default", "--kind", "greet") == [ids["later"], ids["good"]]
    assert listed("--tenant", "acme", "--state", "succeeded") == [ids["good"]]
    assert listed("--limit", "1") == [ids["later"]]


def test_a_job_is_shown_whole(place: Place, ids: dict[str, str]) -> None:
    shown = holdfast("jobs", "show", ids["bad"], "--url", place.url).out
    assert "state                failed" in shown
    assert "LookupError: no such page" in shown
    heading, attempt = shown.splitlines()[-2:]
    assert heading.split() == ["TOKEN", "WORKER", "OUTCOME", "STARTED", "ENDED"]
    assert attempt.split()[0] == "1.1"
    assert attempt.split()[2] == "failed"
    fresh = holdfast("jobs", "show", ids["later"], "--url", place.url).lines
    assert fresh[-1] == "no attempt has ended yet"


def test_a_job_is_shown_for_programs(place: Place, ids: dict[str, str]) -> None:
    shown = holdfast("jobs", "show", ids["bad"].upper(), "--url", place.url, "--json").json
    assert (shown["id"], shown["error"]["type"]) == (ids["bad"], "processing_error")
    (attempt,) = shown["attempts"]
    assert (attempt["outcome"], attempt["token"]) == ("failed", 1)
    assert attempt["started_at"] < attempt["ended_at"]


def test_a_job_that_is_not_there(place: Place) -> None:
    missing = "01890000-0000-7000-8000-000000000000"
    line = holdfast("jobs", "show", missing, "--url", place.url).refused(2)
    assert line == f"there is no job {missing} in this database."
    assert holdfast("jobs", "show", "seven", "--url", place.url).refused(2) == "'seven' is not a job id."


def test_nothing_to_list(place: Place) -> None:
    assert holdfast("jobs", "ls", "--url", place.url).lines == ["no jobs"]
    assert holdfast("jobs", "ls", "--url", place.url, "--json").json == []


def test_a_reader_that_has_seen_enough_is_not_complained_about(place: Place, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "jobs", "ls", "--url", place.url]
    errors = tmp_path / "errors"
    with errors.open("wb") as file:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, env=environment())
        assert process.stdout is not None
        process.stdout.close()
        process.wait(60)
    assert errors.read_text() == ""
