"""The page of one group of failures: how often it happened over time, and the last of them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Holdfast, Retry
from holdfast.app import core_of
from holdfast.errors import RunFailed
from holdfast.http.pages import failures
from holdfast.http.pages.failures import _by_step
from holdfast.kernel.queries import list_failed
from tests.http.browsing import browser
from tests.http.test_fleet_pages import EVIL, check_is_safe, text
from tests.http.test_retrying_groups import HIGH, OFF, failed_runs, link_of_group
from tests.http.test_stats import count_all
from tests.support.apps import working


def group_link(page: str, words: str) -> str:
    """Where the name of a group leads."""
    return link_of_group(page, words, "failures")


def drawn(page: str) -> int:
    """How many failures the bars have together."""
    slots = re.findall(r'<g class="chart-slot"><title>[^<]*: ([\d,]+)</title>', page)
    return sum(int(each) for each in slots)


@pytest.mark.both
async def test_a_group_of_runs_has_a_trend_of_its_own(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = await failed_runs(hf)
    await count_all(hf, monkeypatch)
    ann = browser(hf)
    link = group_link(await text(ann, "/"), "is too high")
    for page in (await text(ann, link), await text(ann, f"{link}&since=14d")):
        assert drawn(page) == 2
        assert all(runs[said] in page for said in HIGH)
        assert runs[OFF[0]] not in page
        assert "/runs/retry?" in page


@pytest.mark.both
async def test_a_group_of_jobs_has_a_trend_of_its_own(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    @hf.job(name="reach", retry=Retry(attempts=1))
    async def reach(what: str) -> None:
        raise ValueError(what)

    async with working(hf):
        for said in (*HIGH, f"the lamp is off {EVIL}"):
            with pytest.raises(RunFailed):
                await (await reach.enqueue(said)).result()
    await count_all(hf, monkeypatch)
    ann = browser(hf)
    listed = await text(ann, "/jobs?state=failed")
    high, off = [await text(ann, group_link(listed, words)) for words in ("is too high", "the lamp is off")]
    assert (drawn(high), drawn(off)) == (2, 1)
    check_is_safe(off)
    assert "what failed earlier is not drawn" not in high
    monkeypatch.setattr(failures, "LOOK", 1)
    assert "what failed earlier is not drawn" in await text(ann, group_link(listed, "is too high"))
    assert "They lie further back than this page looks." in await text(ann, group_link(listed, "is too high"))


@pytest.mark.both
async def test_a_look_that_found_nothing_says_how_far_it_went_back(hf: Holdfast) -> None:
    @hf.job(name="one", retry=Retry(attempts=1))
    async def one() -> None:
        raise ValueError

    @hf.job(name="other", retry=Retry(attempts=1))
    async def other() -> None:
        raise ValueError

    async with working(hf):
        for job in (one, other, other):
            with pytest.raises(RunFailed):
                await (await job.enqueue()).result()
    transact = core_of(hf).runtime().transact
    assert await transact(list_failed, "one", None, limit=5, look=2) == (
        [],
        (await transact(list_failed, "other", None, limit=2)).reach,
    )
    rows, reach = await transact(list_failed, "one", None, limit=5)
    assert (len(rows), reach) == (1, None)


@pytest.mark.both
async def test_a_group_of_one_tenant_stays_that_tenants(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    @hf.job(name="reach", retry=Retry(attempts=1))
    async def reach() -> None:
        raise ValueError("too high")

    async with working(hf):
        for tenant in ("acme", "globex", "globex"):
            with pytest.raises(RunFailed):
                await (await reach.options(tenant=tenant).enqueue()).result()
    await count_all(hf, monkeypatch)
    ann = browser(hf)
    link = group_link(await text(ann, "/jobs?state=failed&tenant=globex"), "too high")
    page = await text(ann, link)
    assert drawn(page) == 2
    assert re.search(r'/jobs/retry\?[^"]*kind=reach', page) is None, "it would retry those of all tenants"


async def test_a_group_that_is_not_counted_says_so(hf: Holdfast) -> None:
    assert "No such failure is counted" in await text(browser(hf), "/failures?of=runs&kind=nobody")


async def test_a_tenant_sees_no_group_of_others(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    await failed_runs(hf, "acme")
    await count_all(hf, monkeypatch)
    link = group_link(await text(browser(hf), "/"), "is too high")
    assert drawn(await text(browser(hf, "viewer", "acme"), link)) == 2
    assert "No such failure is counted" in await text(browser(hf, "viewer", "other"), link)


def test_steps_without_a_failure_are_drawn_empty() -> None:
    now = datetime(2026, 5, 4, 3, 20, tzinfo=UTC)
    times = [now, now - timedelta(minutes=19), now - timedelta(minutes=21), now - timedelta(hours=24)]
    hours = _by_step(times, now, "24h")
    assert len(hours) == 24
    assert hours[-2:] == [("04 May 02:00 UTC", 1), ("04 May 03:00 UTC", 2)]
    assert sum(number for _, number in hours) == 3
    assert _by_step(times, now, "14d")[-2:] == [("03 May", 1), ("04 May", 3)]
