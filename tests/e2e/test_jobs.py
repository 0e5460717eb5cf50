"""`holdfast jobs`: what is in the store, for people and for programs, and what can be done about it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Retry
from holdfast.app import core_of
from holdfast.workers.role import Role
from tests.conftest import Place
from tests.support.apps import working
from tests.support.commands import Said, environment, holdfast, start


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
    await core_of(hf).make_worker(Role(name="mill", until="empty")).run()
    later = await greet.options(delay="1h", key="trip").enqueue("Rome")
    await hf.close()
    return {"good": good.id, "bad": bad.id, "later": later.id}


def test_jobs_are_listed_newest_first(place: Place, ids: dict[str, str]) -> None:
    heading, *lines = holdfast("jobs", "ls", "--url", place.url).lines
    assert heading.split() == ["ID", "KIND", "QUEUE", "TENANT", "STATE", "ATTEMPTS", "RESCUES", "CREATED"]
    assert [line.split()[:7] for line in lines] == [
        [ids["later"], "greet", "default", "-", "scheduled", "0/3", "0"],
        [ids["bad"], "fail", "bad", "-", "failed", "1/1", "0"],
        [ids["good"], "greet", "default", "acme", "succeeded", "1/3", "0"],
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
    assert listed("--kind", "gr*", "--since", "1h") == [ids["later"], ids["good"]]
    assert listed("--since", "2200-01-01T00:00:00+00:00") == []
    assert listed("--key", "trip", "--system") == [ids["later"]]


def test_a_job_is_shown_whole(place: Place, ids: dict[str, str]) -> None:
    shown = holdfast("jobs", "show", ids["bad"], "--url", place.url).out
    assert "state                failed" in shown
    lines, failure = shown.split("\nerror: ")
    assert failure.startswith("processing_error: LookupError: no such page\n  Traceback (most recent call last):\n")
    assert failure.endswith("  LookupError: no such page\n")
    heading, attempt = lines.splitlines()[-2:]
    assert heading.split() == ["TOKEN", "WORKER", "OUTCOME", "STARTED", "ENDED"]
    assert attempt.split()[0] == "1.1"
    assert attempt.split()[2] == "failed"
    fresh = holdfast("jobs", "show", ids["later"], "--url", place.url).lines
    assert 'payload              {"name":"Rome"}' in fresh, "JSON, as enqueue takes it"
    assert fresh[-1] == "no attempt has ended yet"


@pytest.mark.long
def test_a_job_is_shown_for_programs(place: Place, ids: dict[str, str]) -> None:
    shown = holdfast("jobs", "show", ids["bad"].upper(), "--url", place.url, "--json").json
    assert (shown["id"], shown["error"]["type"]) == (ids["bad"], "processing_error")
    (attempt,) = shown["attempts"]
    assert (attempt["outcome"], attempt["token"]) == ("failed", "1.1")
    assert attempt["started_at"] < attempt["ended_at"]


def test_a_job_that_is_not_there(empty: str) -> None:
    missing = "01890000-0000-7000-8000-000000000000"
    for verb in ("show", "why", "retry", "cancel"):
        line = holdfast("jobs", verb, missing, "--url", empty).refused(2)
        assert line == f"there is no job {missing} in this database."
    assert holdfast("jobs", "show", "seven", "--url", empty).refused(2) == "'seven' is not a job id."


def test_nothing_to_list(empty: str) -> None:
    assert holdfast("jobs", "ls", "--url", empty).lines == ["no jobs"]
    assert holdfast("jobs", "ls", "--url", empty, "--json").json == []


@pytest.mark.long
def test_a_reader_that_has_seen_enough_is_not_complained_about(empty: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "jobs", "ls", "--url", empty]
    errors = tmp_path / "errors"
    with errors.open("wb") as file:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, env=environment())
        assert process.stdout is not None
        process.stdout.close()
        process.wait(60)
    assert errors.read_text() == ""


# Why


def test_why_a_job_is_not_run(place: Place, ids: dict[str, str]) -> None:
    (later,) = holdfast("jobs", "why", ids["later"], "--url", place.url).lines
    assert later.startswith("it is due at ")
    (due,) = holdfast("jobs", "why", ids["later"], "--url", place.url, "--json").json
    assert due["until"].endswith("Z")


@pytest.mark.long
async def test_why_nothing_stands_in_the_way(place: Place) -> None:
    hf = Holdfast(place.url, embedded=False)

    @hf.job(name="greet")
    async def greet() -> None: ...

    id = (await greet.enqueue()).id
    assert "there is no live worker" in holdfast("jobs", "why", id, "--url", place.url).out
    await hf.queues.pause("default", reason="lunch")
    async with working(hf, Role(id="mill-1")):
        (paused,) = holdfast("jobs", "why", id, "--url", place.url).lines
        assert paused.endswith(": lunch")
        (nobody,) = holdfast("jobs", "why", id, "--worker", "mill-2", "--url", place.url).lines
        assert nobody == "there is no live worker 'mill-2' that takes jobs"
        await hf.queues.resume("default")
        await hf.jobs[id].result()
    await hf.close()


# Again


async def test_an_ended_job_is_enqueued_again_as_a_new_one(place: Place, ids: dict[str, str]) -> None:
    ((old, new),) = [
        (made["retry_of"], made["id"])
        for made in holdfast("jobs", "retry", ids["good"], "--url", place.url, "--json").json
    ]
    assert (old, new != old) == (ids["good"], True)
    again = holdfast("jobs", "show", new, "--url", place.url, "--json").json
    before = holdfast("jobs", "show", old, "--url", place.url, "--json").json
    assert (again["state"], again["retry_of"], again["attempts"]) == ("pending", old, [])
    for name in ("kind", "queue", "tenant", "payload", "metadata", "priority", "max_attempts", "timeout"):
        assert again[name] == before[name], name
    (line,) = holdfast("jobs", "retry", ids["good"].upper(), "--url", place.url).lines
    assert line.startswith(f"{ids['good'].upper()} is enqueued again as ")


def test_only_an_ended_job_is_enqueued_again(place: Place, ids: dict[str, str]) -> None:
    line = holdfast("jobs", "retry", ids["later"], "--url", place.url).refused(3)
    assert line == (f"job {ids['later']} is scheduled: only an ended job can be enqueued again. Cancel it first.")


@pytest.mark.long
def test_all_failed_jobs_are_enqueued_again_once(place: Place, ids: dict[str, str]) -> None:
    def retry_all(*words: str) -> list[str]:
        return [
            made["retry_of"] for made in holdfast("jobs", "retry", "--all", "--url", place.url, "--json", *words).json
        ]

    assert retry_all("--queue", "default") == []
    assert retry_all("--queue", "bad", "--limit", "5") == [ids["bad"]]
    assert retry_all() == [], "it was enqueued again before"
    assert retry_all("--state", "succeeded", "--kind", "greet") == [ids["good"]]
    assert holdfast("jobs", "retry", "--all", "--url", place.url).lines == ["0 jobs enqueued again"]


@pytest.mark.long
def test_which_jobs_to_enqueue_again_must_be_said(empty: str, ids: dict[str, str]) -> None:
    for words in ((), (ids["bad"], "--all")):
        line = holdfast("jobs", "retry", "--url", empty, *words).refused(2)
        assert line == "name the jobs to enqueue again, or select them with --all."


# Cancel


def test_jobs_are_cancelled_with_a_reason(place: Place, ids: dict[str, str]) -> None:
    said = holdfast("jobs", "cancel", ids["later"], ids["good"], "--reason", "no longer wanted", "--url", place.url)
    assert said.lines == [f"{ids['later']} is cancelled", f"{ids['good']} had already ended as succeeded"]
    shown = holdfast("jobs", "show", ids["later"], "--url", place.url, "--json").json
    assert (shown["state"], shown["error"]["message"]) == ("cancelled", "no longer wanted")
    (again,) = holdfast("jobs", "cancel", ids["later"], "--url", place.url, "--json").json
    assert again == {"id": ids["later"], "state": "cancelled"}


@pytest.mark.long
def test_all_jobs_of_a_filter_are_cancelled_when_somebody_says_yes(place: Place, ids: dict[str, str]) -> None:
    def cancel(*words: str) -> Said:
        return holdfast("jobs", "cancel", "--all", "--url", place.url, *words)

    assert cancel("--kind", "greet", "--dry-run").lines == ["1 job would be cancelled"]
    assert cancel("--kind", "nothing", "--dry-run", "--json").json == {"cancellable": 0}
    unanswered = cancel("--queue", "default")
    assert unanswered.code == 2
    assert "cancel 1 job and its family?" in unanswered.err
    assert "nothing was cancelled: you did not confirm." in unanswered.err
    assert state(place, ids["later"]) == "scheduled"
    assert cancel("--queue", "default", "--tenant", "nobody", "--yes").lines == ["0 jobs are cancelled"]
    assert cancel("--queue", "default", "--state", "scheduled", "--yes", "--json").json == {"cancelled": 1, "asked": 0}
    assert state(place, ids["later"]) == "cancelled"
    assert cancel("--yes").lines == ["0 jobs are cancelled"]


@pytest.mark.long
async def test_a_bulk_cancel_shows_the_true_number_and_how_far_it_is(place: Place) -> None:
    hf = Holdfast(place.url, embedded=False)

    @hf.job(name="greet")
    async def greet(name: str) -> None: ...

    await greet.enqueue_many([("Rome",)] * 12_000)
    await hf.close()
    words = ("jobs", "cancel", "--all", "--queue", "default", "--url", place.url)
    assert holdfast(*words, "--dry-run").lines == ["12,000 jobs would be cancelled"]
    assert "cancel 12,000 jobs and their families?" in holdfast(*words).err
    said, seen = await asyncio.to_thread(at_a_terminal, *words, "--yes")
    assert said == "12,000 jobs are cancelled\n"
    assert "  91%" in seen, "eleven thousand of twelve"


def at_a_terminal(*words: str) -> tuple[str, str]:
    """A command whose stderr is a terminal: what it says, and what is seen there."""
    ours, its = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        command = [sys.executable, "-m", "holdfast", *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=its, text=True, env=environment())
        os.close(its)
        seen = bytearray()
        with contextlib.suppress(OSError):  # how a terminal says that everybody has left it
            while part := screen.read(4096):
                seen += part
        said, _ = process.communicate()
    return said, seen.decode()


def state(place: Place, id: str) -> str:
    return str(holdfast("jobs", "show", id, "--url", place.url, "--json").json["state"])


@pytest.mark.long
def test_a_bulk_cancel_must_say_what_it_means(empty: str, ids: dict[str, str], place: Place) -> None:
    line = holdfast("jobs", "cancel", "--url", empty).refused(2)
    assert line == "name the jobs to cancel, or select them with --all."
    assert holdfast("jobs", "cancel", ids["later"], "--all", "--url", place.url).refused(2) == line
    refused = holdfast("jobs", "cancel", ids["later"], "--kind", "greet", "--url", place.url).refused(2)
    assert "for --all; add it" in refused
    assert state(place, ids["later"]) == "scheduled"


def test_a_listing_goes_on_where_it_is_told(place: Place, ids: dict[str, str]) -> None:
    newest, *older = holdfast("jobs", "ls", "--url", place.url, "--json").json
    words = ("jobs", "ls", "--url", place.url, "--json")
    first = holdfast(*words, "--limit", "1")
    assert [job["id"] for job in first.json] == [newest["id"]]
    said, _, after = first.err.strip().rpartition(" ")
    assert said == "there may be more: add --after"
    rest = holdfast(*words, "--after", after)
    assert [job["id"] for job in rest.json] == [job["id"] for job in older]
    assert rest.err == ""
    assert "after must be what a page of the same list has" in holdfast(*words, "--after", str(newest["seq"])).refused(
        2
    )


# Tail


async def test_changes_are_followed_until_interrupted(place: Place, ids: dict[str, str]) -> None:
    words = ("jobs", "tail", "--url", place.url, "--json", "--interval", "50ms")
    process = start("-m", "holdfast", *words, stdout=subprocess.PIPE)
    assert process.stdout is not None
    lines = process.stdout

    async def seen(count: int) -> set[tuple[str, str]]:
        return {_change(await asyncio.to_thread(lines.readline)) for _ in range(count)}

    try:
        assert await seen(3) == {(ids["good"], "succeeded"), (ids["bad"], "failed"), (ids["later"], "scheduled")}
        async with Holdfast(place.url, embedded=False) as hf:
            await hf.jobs[ids["later"]].cancel()
            assert await seen(1) == {(ids["later"], "cancelled")}
            again = (await hf.jobs.retry(ids["bad"])).id
            assert await seen(1) == {(again, "pending")}
        process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait) == 0
    finally:
        process.kill()
        lines.close()


def _change(line: bytes) -> tuple[str, str]:
    change = json.loads(line)
    return change["id"], change["state"]
