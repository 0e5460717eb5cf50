"""Pages that stay open: what an hour of refreshes leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from holdfast import Holdfast
from holdfast.models.script import Script, call, say
from holdfast.settings import Settings
from tests.http.memory import Scale, grown
from tests.http.site import Site, looking

WARM = 20

pytestmark = pytest.mark.slow


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    hf = Holdfast(f"sqlite:///{tmp_path / 'store.db'}", settings=Settings(script_pace=timedelta(milliseconds=20)))

    @hf.tool
    def look(city: str) -> str:
        """Look."""
        return f"sunny in {city}"

    hf.script("guide", Script(call("look", city="Oslo"), say("It is sunny.")))
    hf.agent("guide", model="scripted:guide", tools=[look])
    site = Site(hf)
    yield site
    site.close()


def refresh(page: Page) -> None:
    """Five seconds pass in the browser, and the page has fetched itself."""
    with page.expect_response(lambda answer: answer.request.headers.get("hx-request") == "true") as fetched:
        page.clock.run_for(5_000)
    fetched.value.finished()


@pytest.mark.parametrize("refreshes", [15, pytest.param(720, marks=pytest.mark.long)])  # an hour of five seconds each
def test_refreshes_leave_nothing_behind(site: Site, chromium: Browser, refreshes: int) -> None:
    """While runs come and end, so that there is something to show each time; `make soak-web` has a real hour of it."""
    for number in range(12):
        site.ask(_result(site, site.start("guide", f"Before {number}")))
    with looking(chromium) as (page, _):
        page.clock.install()
        page.goto(site("/"))
        scale = Scale(site, page)
        for _ in range(WARM):
            refresh(page)
        before = scale.weigh()
        for number in range(refreshes):
            if number % 20 == 0:
                site.start("guide", f"Run {number}")
            refresh(page)
        after = scale.weigh()
        for _ in range(20):
            if not grown(before, after):
                break
            page.wait_for_timeout(100)  # it may still be reading what it fetched last
            after = scale.weigh()
        assert grown(before, after) == [], f"{before}\n{after}"
        see_a_job_wait(site, page)
        assert page.evaluate("window.shifts") == 0, page.evaluate("window.shifted")


def see_a_job_wait(site: Site, page: Page) -> None:
    """The page says how long it has waited, and then that nothing waits."""
    oldest = page.locator("[data-label=Oldest]").first
    site.ask(site.hf.enqueue("print"))
    while oldest.inner_text() == "–":
        refresh(page)
    site.ask(site.hf.jobs.cancel_some(kind="print"))
    while oldest.inner_text() != "–":
        refresh(page)


async def _result(site: Site, run: str) -> None:
    await site.hf.runs[run].result()
