"""A group of failures is tried again by itself: what failed otherwise stays as it is."""

from __future__ import annotations

import html
import re

import pytest

from holdfast import Holdfast, Retry
from holdfast.agents.events.reader import ENDED
from holdfast.errors import RunFailed
from holdfast.kernel import failure_groups
from holdfast.kernel.failure_groups import OTHERS, alike
from holdfast.models.script import Script, last_user_text, reject
from tests.http.browsing import browser, send
from tests.http.client import Client
from tests.http.test_fleet_pages import text
from tests.http.test_stats import count_all
from tests.support.apps import eventually, working

HIGH = ("shelf 12 is too high", "shelf 7 is too high")
OFF = ("the lamp is off",)


async def failed_runs(hf: Holdfast, tenant: str = "") -> dict[str, str]:
    """Runs of one agent that failed in two ways: their ids, by what they were asked."""
    hf.script("clumsy", Script(lambda messages: reject(last_user_text(messages))))
    agent = hf.agent("clumsy", model="scripted:clumsy")
    async with working(hf):
        runs = {said: await agent.enqueue(said, tenant=tenant) for said in (*HIGH, *OFF)}

        async def ended() -> bool:
            return all(each.state in ENDED for each in await hf.runs.list())

        await eventually(ended)
    return {said: run.id for said, run in runs.items()}


def link_of_group(page: str, words: str, to: str) -> str:
    """Where a link in the group with these words leads."""
    groups = [each.partition("</li>")[0] for each in page.split('<li class="group">')[1:]]
    (group,) = [each for each in groups if words in each]
    found = re.search(rf'href="([^"]*/{to}\?[^"]*)"', group)
    assert found is not None, group
    return html.unescape(found[1])


def retry_link(page: str, words: str) -> str:
    """Where the button of a group leads."""
    return link_of_group(page, words, "retry")


async def confirmed(client: Client, place: str, link: str) -> str:
    """Press the button of the question: what it then says."""
    asked = await text(client, link)
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', asked))
    done = await send(
        client, place, **{name: html.unescape(value) for name, value in fields.items()}, reason="it is mended"
    )
    return done.body.decode()


@pytest.mark.both
async def test_runs_of_one_group_are_retried_and_no_others(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = await failed_runs(hf)
    await count_all(hf, monkeypatch)
    ann = browser(hf)
    link = retry_link(await text(ann, "/"), "is too high")
    asked = await text(ann, link)
    assert "Retry 2 runs?" in asked
    assert "&#34;message&#34;" in asked or "\\u003c" in asked, "the same as a request names the group"
    assert "2 of 2 enqueued again" in await confirmed(ann, "/runs/retry", link)
    again = {each.retry_of for each in await hf.runs.list() if each.retry_of}
    assert again == {runs[said] for said in HIGH}
    (entry,) = [each for each in await hf.access.audit.list() if each.detail.get("reason")]
    assert (entry.action, entry.detail["reason"]) == ("POST /runs/retry", "it is mended")


@pytest.mark.both
async def test_jobs_of_one_group_are_retried_and_no_others(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    @hf.job(name="reach", retry=Retry(attempts=1))
    async def reach(what: str) -> None:
        raise ValueError(what)

    jobs = {said: await reach.enqueue(said) for said in (*HIGH, *OFF)}
    async with working(hf):
        for each in jobs.values():
            with pytest.raises(RunFailed):
                await each.result()
    await count_all(hf, monkeypatch)
    ann = browser(hf)
    link = retry_link(await text(ann, "/jobs?state=failed"), "is too high")
    assert "Retry 2 jobs?" in await text(ann, link)
    assert "2 of 2 enqueued again" in await confirmed(ann, "/jobs/retry", link)
    again = {each.retry_of for each in await hf.jobs.list(kind="reach") if each.retry_of}
    assert again == {jobs[said].id for said in HIGH}


@pytest.mark.both
async def test_other_messages_are_retried_without_those_that_have_a_group(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    @hf.job(name="reach", retry=Retry(attempts=1))
    async def reach(what: str) -> None:
        raise ValueError(what)

    async def fail(*words: str) -> list[str]:
        jobs = [await reach.enqueue(each) for each in words]
        for each in jobs:
            with pytest.raises(RunFailed):
                await each.result()
        await count_all(hf, monkeypatch)
        return [each.id for each in jobs]

    monkeypatch.setattr(failure_groups, "MOST", 1)
    async with working(hf):
        await fail(*HIGH)
        others = await fail("the lamp is off", "the ladder is short")
        assert "(other messages)" in {each.message for each in await hf.jobs.failures()}
    ann = browser(hf)
    link = retry_link(await text(ann, "/jobs?state=failed"), OTHERS)
    assert "Retry 2 jobs?" in await text(ann, link)
    assert "2 of 2 enqueued again" in await confirmed(ann, "/jobs/retry", link)
    assert {each.retry_of for each in await hf.jobs.list(kind="reach") if each.retry_of} == set(others)


async def test_runs_that_all_have_a_group_have_no_other_messages(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    await failed_runs(hf)
    assert (await hf.runs.retry_some(message=OTHERS, dry_run=True)).matched == 3
    await count_all(hf, monkeypatch)
    assert (await hf.runs.retry_some(message=OTHERS, dry_run=True)).matched == 0


async def test_a_filter_that_a_bulk_change_ignores_hides_its_button(hf: Holdfast) -> None:
    await failed_runs(hf)
    ann = browser(hf)
    assert "Retry all failed…" in await text(ann, "/jobs?state=failed")
    assert "Retry all failed…" not in await text(ann, "/jobs?state=failed&since=1h")


async def test_ticked_runs_that_are_retried_cancel_nothing(hf: Holdfast) -> None:
    runs = await failed_runs(hf)
    asked = await text(browser(hf), f"/runs/retry?id={runs[OFF[0]]}")
    assert "Retry 1 run?" in asked
    assert "Cancels" not in asked


def test_failures_are_alike_without_their_numbers() -> None:
    assert alike("x", "ValueError: shelf 12 is too high") == ("ValueError", "shelf <n> is too high")
    assert alike("limit", None) == ("limit", "")
    assert alike(None, OTHERS) == ("", OTHERS)
