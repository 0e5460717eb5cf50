"""The first sentence of Now: the most important thing that is not well, and that all is well only when nothing is."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Holdfast, Retry
from holdfast.access.principals import Role
from holdfast.app import core_of
from holdfast.errors import RunFailed
from holdfast.http.live.live import Sample, Sampler
from holdfast.http.pages.now import FleetProblem, NowSnapshot, things
from holdfast.kernel.doctor import Finding
from holdfast.kernel.ids import new_id
from holdfast.kernel.workers import Registration, register
from holdfast.values import Page
from tests.http.browsing import browser, treasurer
from tests.http.test_fleet_pages import text
from tests.http.test_retrying_groups import failed_runs
from tests.support.apps import eventually, working

NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
WELL = "All is well."


async def failed_jobs(hf: Holdfast, number: int) -> None:
    @hf.job(name="reach", retry=Retry(attempts=1))
    async def reach(what: str) -> None:
        raise ValueError(what)

    jobs = [await reach.enqueue(f"shelf {each}") for each in range(number)]
    for each in jobs:
        with pytest.raises(RunFailed):
            await each.result()


async def judged(hf: Holdfast, later: timedelta = timedelta(), **known: object) -> list[FleetProblem]:
    """What is not well in this store some time from now, without the doctor."""
    sample = await Sampler(hf).sample()
    found = NowSnapshot(sample.at + later, sample, await hf.runs.list(state="failed"), await hf.inquiries.list())
    return things(found._replace(**known))  # type: ignore[arg-type]


@pytest.mark.both
async def test_all_is_well_while_workers_work_and_nothing_fails(hf: Holdfast) -> None:
    async with working(hf):
        assert WELL in await text(browser(hf), "/now/health")


async def test_who_holds_an_event_loop_is_said_on_now_and_on_the_workers_pages(hf: Holdfast) -> None:
    ports, lines = core_of(hf).ports, {"jobs": [20, 1], "loop": ["handler mail.send", 8.0, None]}
    who = Registration(new_id(ports), "mill-1", "mill", "here", 1, "0", (), None, 20, lines=json.dumps(lines))
    await (await core_of(hf).opened()).transact(register, who, [], ttl_us=3_600_000_000, gone=())
    assert "handler mail.send has held the event loop of worker mill-1 for" in await text(browser(hf), "/now/health")
    assert "handler mail.send holds its event loop (8.0 s)" in await text(browser(hf), "/workers")
    page = await text(browser(hf), "/workers/mill-1")
    assert "<b>Its event loop is held.</b> handler mail.send has held it for 8.0 s at the last heartbeat" in page
    assert "make the handler or tool a plain <code>def</code>" in page


@pytest.mark.both
async def test_failed_jobs_are_the_headline_with_the_way_to_them(hf: Holdfast) -> None:
    async with working(hf):
        await failed_jobs(hf, 3)
        told = await text(browser(hf), "/now/health")
        first = await text(browser(hf), "/")
    for page in (told, first):
        assert "<b>3 jobs failed in the last minute.</b>" in page
        assert WELL not in page
        assert '<a class="way" href="/jobs?state=failed">Failed jobs</a>' in page


@pytest.mark.both
async def test_failures_of_the_last_quarter_of_an_hour_are_still_news(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures of the last minute have them no more, and the tally not yet."""
    async with working(hf):
        await failed_jobs(hf, 2)
    later = _with(await Sampler(hf).sample(), queues=[], workers=1)

    async def sample(_: Sampler) -> Sample:
        return later

    monkeypatch.setattr(Sampler, "sample", sample)
    for path in ("/", "/now/health"):
        assert "2 jobs failed in the last 15 minutes." in await text(browser(hf), path)


def test_of_very_many_failures_it_says_that_there_are_more() -> None:
    (told,) = things(NowSnapshot(NOW, None, Page([]), Page([]), 1_000))
    assert told.sentence == "1,000 jobs or more failed in the last 15 minutes."


async def test_a_tenant_is_told_of_its_own_runs(hf: Holdfast) -> None:
    await failed_runs(hf, "acme")
    own = browser(hf, "operator", "acme")
    assert "<b>3 runs failed in the last 15 minutes.</b>" in await text(own, "/")
    assert WELL in await text(browser(hf, "operator", "other"), "/")


async def test_runs_that_failed_long_ago_are_no_news(hf: Holdfast) -> None:
    await failed_runs(hf)
    quiet = (await Sampler(hf).sample()).at
    failed = await hf.runs.list(state="failed")
    assert [each.check for each in things(NowSnapshot(quiet, None, failed, Page([])))] == ["failed"]
    assert things(NowSnapshot(quiet + timedelta(hours=1), None, failed, Page([]))) == []


@pytest.mark.both
async def test_work_without_a_worker_is_said_once(hf: Holdfast) -> None:
    @hf.job
    async def wait() -> None: ...

    await wait.enqueue()
    (told,) = await judged(hf)
    assert told.sentence == "1 job waits, and no worker is alive."
    page = await text(browser(hf), "/now/health")
    assert page.count("no worker is alive") == 2, "in the sentence and behind the fold, by the doctor alone"


async def test_a_question_that_waits_for_long_is_told(hf: Holdfast) -> None:
    agent = treasurer(hf)
    async with working(hf):
        await agent.enqueue("Pay.")

        async def asked() -> bool:
            return bool(await hf.inquiries.list())

        await eventually(asked)
    assert await judged(hf, timedelta(minutes=59)) == []
    (told,) = await judged(hf, timedelta(hours=2))
    assert told.sentence.startswith("A question has waited for a person for 2 h")
    assert told.way is not None
    assert told.way.path == "/inbox"


async def test_old_work_is_told_when_every_slot_is_taken(hf: Holdfast) -> None:
    @hf.job
    async def wait() -> None: ...

    await wait.enqueue()
    sample = await Sampler(hf).sample()
    busy = _with(sample, workers=1, slots=4, active=4, oldest_pending={"default": 400.0})
    (told,) = await judged(hf, sample=busy)
    assert told.sentence == "1 job waits while every slot is taken; the oldest is 6 m 40 s old."
    assert await judged(hf, sample=_with(busy, active=3)) == []


async def test_a_closed_lane_with_work_behind_it_is_told(hf: Holdfast) -> None:
    sample = _with(await Sampler(hf).sample(), waiting_behind={"model:idle": 0, "model:busy": 12})
    (told,) = await judged(hf, sample=sample)
    assert told.sentence == "Lane model:busy is closed, and 12 runs wait behind it."


def test_problems_come_before_warnings_and_notes_come_last() -> None:
    findings = [
        Finding("queues", "note", "queue slow is paused."),
        Finding("clock", "warning", "2 lanes have times in the future."),
        Finding("versions", "ok", "holdfast 1."),
        Finding("jobs", "problem", "2 jobs are in two places."),
    ]
    found = things(NowSnapshot(NOW, None, Page([]), Page([]), 9), findings)
    assert [each.check for each in found] == ["jobs", "failed", "clock", "queues"]


@pytest.mark.parametrize("role", ["viewer", "operator"])
async def test_a_note_alone_is_well(hf: Holdfast, role: Role) -> None:
    async with working(hf):
        await hf.queues.pause("default", reason="for the night")
        page = await text(browser(hf, role), "/now/health")
    assert WELL in page
    assert "it has 1 note." in page


def _with(sample: Sample, **changes: object) -> Sample:
    kept = {name: getattr(sample, name) for name in Sample.__dataclass_fields__}
    return Sample(**{**kept, **changes})
