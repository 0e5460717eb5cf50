"""What is retried most: kinds of jobs by how often their attempts failed and were tried again."""

from __future__ import annotations

import pytest

from holdfast import Holdfast, Retry
from holdfast.app import core_of
from holdfast.kernel import watch
from tests.http.browsing import browser
from tests.http.test_fleet_pages import EVIL, check_is_safe, text
from tests.support.apps import working

pytestmark = pytest.mark.both


async def tried_again(hf: Holdfast) -> None:
    """Two kinds of jobs: each attempt but the last fails, of one kind more often; and one that never does."""
    tries: dict[str, int] = {}

    async def fail_until(name: str, last: int) -> None:
        tries[name] = tries.get(name, 0) + 1
        if tries[name] < last:
            raise ValueError(f"try {tries[name]} {EVIL}")

    @hf.job(name="often", retry=Retry(attempts=4, backoff="constant", base="0s"))
    async def often(n: int) -> None:
        await fail_until(f"often {n}", 3)

    @hf.job(name="once", retry=Retry(attempts=4, backoff="constant", base="0s"))
    async def once() -> None:
        await fail_until("once", 2)

    @hf.job(name="never")
    async def never() -> None: ...

    async with working(hf):
        for job in [await often.options(tenant="acme").enqueue(n) for n in range(2)]:
            await job.result()
        for each in (once, never):
            await (await each.enqueue()).result()


async def test_kinds_are_listed_by_how_often_they_were_retried(hf: Holdfast) -> None:
    await tried_again(hf)
    found = await hf.jobs.retried_most()
    assert [(each.kind, each.retries, each.jobs) for each in found] == [("often", 4, 2), ("once", 1, 1)]
    assert "try 2" in found[0].error["message"]
    assert (await hf.jobs.get(found[0].last_id)).kind == "often"
    assert [each.kind for each in await hf.jobs.retried_most(tenant="acme")] == ["often"]
    assert [each.kind for each in await hf.jobs.retried_most(kind="once")] == ["once"]
    few = await core_of(hf).runtime().transact(watch.retried_most, kind=None, tenant=None, since=0, limit=10, look=1)
    assert [(each.kind, each.retries) for each in few] == [("once", 1)], "it looks at so many attempts, and no more"


async def test_the_page_of_jobs_says_what_is_retried_most(hf: Holdfast) -> None:
    await tried_again(hf)
    for path in ("/jobs", "/jobs?state=scheduled"):
        page = await text(browser(hf), path)
        check_is_safe(page)
        _, _, told = page.partition("What is retried most")
        assert 'href="#retried"' in page
        assert told.index(">often</a>") < told.index(">once</a>")
        assert ">never</a>" not in told
    assert "What is retried most" not in await text(browser(hf, "viewer", "other"), "/jobs")
    assert "What is retried most" not in await text(browser(hf), "/jobs?state=succeeded")
