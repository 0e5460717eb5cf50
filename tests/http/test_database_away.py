"""What is seen when the database is not there, or is of another release: a page that says so, until it need not."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import expect

from holdfast import Holdfast
from tests.conftest import Place
from tests.http.site import Aside, Site, looking, running_chromium
from tests.support.apps import settings_with
from tests.support.past_kernel import query
from tests.support.proxy import Proxy

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_a_schema_that_is_too_new_is_told_until_it_is_not(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    place = Place(f"sqlite:///{file}", f"sqlite:///{file}")
    made = Holdfast(place.url, embedded=False)
    with closing(Aside()) as aside:
        aside.ask(made.migrate())
        aside.ask(made.close())
    ((version, oldest),) = query(place, "select version, oldest_code from schema")
    query(place, "update schema set version = 9999, oldest_code = 9999")
    site = Site(Holdfast(place.url, embedded=False), works=False)
    with closing(site), running_chromium() as chromium, looking(chromium) as (page, heard):
        page.goto(site("/runs"))
        expect(page.locator("main")).to_contain_text("Upgrade holdfast in this environment")
        query(place, f"update schema set version = {version}, oldest_code = {oldest}")
        expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
        heard.forget("503")


@pytest.mark.long
def test_pages_wait_for_a_database_that_is_away(postgres_url: str) -> None:
    """One that was open keeps what it shows; one that is opened meanwhile comes when the database does."""
    with closing(Aside()) as aside:
        proxy = Proxy(postgres_url)
        aside.ask(proxy.start())
        hf = Holdfast(proxy.url, settings=settings_with(store_patience="200ms"), embedded=False)
        site = Site(hf, works=False)
        with closing(site), running_chromium() as chromium, looking(chromium) as (page, heard):
            page.goto(site("/queues"))
            late = page.context.new_page()
            proxy.refusing = True
            aside.ask(_cut(proxy))
            expect(page.locator(".offline")).to_contain_text("tries again by itself")
            expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
            late.goto(site("/runs"))
            expect(late.locator("main")).to_contain_text("tries again by itself")
            proxy.refusing = False
            expect(page.locator(".offline")).to_be_hidden()
            expect(late.get_by_role("heading", level=1)).to_have_text("Runs")
            assert page.evaluate("window.shifts") == 0, page.evaluate("window.shifted")
            heard.forget("503")
        aside.ask(proxy.close())


async def _cut(proxy: Proxy) -> None:
    proxy.cut()
