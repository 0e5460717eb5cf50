"""Journeys in a browser: what a person sees and presses, on one server and one store for all of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast import Holdfast, Retry
from holdfast.agents import queries
from holdfast.app import core_of
from holdfast.kernel import tally
from holdfast.models.script import Script, call, reject, say
from holdfast.settings import Settings
from holdfast.values import moment
from tests.http.full_store import MACHINE
from tests.http.site import Heard, Site, looking
from tests.support.apps import settings_with

LONG = "It is a long way, and every word of it is written slowly. " * 200
PAGES = (
    "/",
    "/inbox",
    "/runs",
    "/sessions",
    "/agents",
    "/tools",
    "/jobs",
    "/queues",
    "/workers",
    "/money",
    "/settings",
)

pytestmark = pytest.mark.slow


def _shop(url: str, folder: Path) -> Holdfast:
    hf = Holdfast(url, settings=Settings(script_pace=timedelta(milliseconds=150), heartbeat=timedelta(seconds=1)))

    @hf.tool(approve=True)
    def refund(order: str, amount: int) -> str:
        """Refund an order."""
        return f"refunded {amount} for {order}"

    hf.script("guide", Script(say(LONG), say(LONG)))
    hf.agent("guide", model="scripted:guide")
    hf.script("till", Script(call("refund", order="A1", amount=80), say("Done.")))
    hf.agent("till", model="scripted:till", tools=[refund])
    hf.script("clumsy", Script(reject("the shelf is too high")))
    hf.agent("clumsy", model="scripted:clumsy")
    file = folder / "article.yml"
    file.write_text(MACHINE.format(n=0))
    hf.machine(file)
    return hf


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    site = Site(_shop(f"sqlite:///{folder / 'site.db'}", folder))
    for name in ("guide", "till", "clumsy"):
        site.ask(site.hf.agents.put(site.ask(site.hf.agents.named(name))))
    yield site
    site.close()


def test_a_run_appears_and_what_it_says_is_read_while_it_is_written(site: Site, page: Page) -> None:
    """The first comes by itself; what would move others waits until it is asked for."""
    page.clock.install()
    page.goto(site("/runs"))
    first = site.start("till", "Begin")
    page.clock.run_for(5_000)
    expect(page.locator(f"#row-{first}")).to_be_visible()
    run = site.start("guide", "Which way?")
    page.clock.run_for(5_000)
    page.get_by_role("button", name="1 new").click()
    page.locator(f"#row-{run}").get_by_role("link", name="guide").click()
    expect(page.locator("[data-text]")).to_contain_text("every word")
    expect(page.locator("#waterfall svg.wf")).to_be_visible()
    site.ask(site.hf.runs[run].interrupt())
    expect(page.locator("#head .badge")).to_have_text("completed")


@pytest.mark.long
def test_one_writes_reads_and_stops_an_answer(site: Site, page: Page) -> None:
    page.goto(site("/sessions"))
    page.get_by_role("button", name="New session").click()
    dialog = page.get_by_role("dialog", name="New session")
    dialog.get_by_label("Agent").select_option("guide")
    dialog.get_by_label("First message").fill("Tell me the way")
    dialog.get_by_label("Metadata").fill("customer=42")
    dialog.get_by_role("button", name="Begin").click()
    expect(page.locator(".say.user")).to_contain_text("Tell me the way")
    expect(page.locator("[data-text]")).to_contain_text("written slowly")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#under-way")).to_have_count(0)
    expect(page.locator(".say.assistant")).to_contain_text("It is a long way")
    expect(page.locator(".chip", has_text="customer: 42")).to_be_visible()


@pytest.mark.long
def test_a_call_is_approved_with_other_arguments(site: Site, page: Page) -> None:
    run = site.start("till", "Refund A1")
    page.goto(site(f"/runs/{run}"))
    page.get_by_role("link", name="Decide").first.click()
    card = page.locator(".inquiry", has=page.locator(f"a[href='/runs/{run}']"))
    card.get_by_label("Arguments").fill('{"order": "A1", "amount": 50}')
    card.get_by_role("button", name="Approve").click()
    assert "refunded 50 for A1" in str(site.ask(_outputs(site, run)))


@pytest.mark.long
def test_a_call_is_approved_with_a_thumb(site: Site, chromium: Browser) -> None:
    """On a phone: from the first page to the decision, and every target is large enough for a thumb."""
    run = site.start("till", "Refund A1")
    with looking(chromium, width=360, height=740, has_touch=True, is_mobile=True) as (phone, _):
        phone.goto(site("/"))
        phone.get_by_role("button", name="Menu").tap()
        phone.get_by_role("navigation", name="Pages").get_by_role("link", name="Inbox").tap()
        approve = phone.locator(".inquiry", has=phone.locator(f"a[href='/runs/{run}']")).get_by_role(
            "button", name="Approve"
        )
        approve.scroll_into_view_if_needed()
        box = approve.bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) >= 40
        assert phone.evaluate("document.documentElement.scrollWidth") <= 360
        approve.tap()
        assert "refunded 80 for A1" in str(site.ask(_outputs(site, run)))


async def _outputs(site: Site, run: str) -> list[Any]:
    await site.hf.runs[run].result()
    return [each.output for each in await site.hf.runs[run].calls()]


@pytest.mark.long
def test_why_a_job_waits_is_one_search_away(site: Site, page: Page) -> None:
    site.ask(site.hf.queues.pause("default", reason="night shift"))
    run = site.start("till", "Later")
    try:
        page.goto(site("/why"))
        page.get_by_role("textbox").first.fill(run)
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_contain_text("night shift")
    finally:
        site.ask(site.hf.queues.resume("default"))


@pytest.mark.long
def test_a_group_of_failures_is_retried_from_the_first_page(
    site: Site, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [site.start("clumsy", f"Reach {number}") for number in range(3)]
    for run in runs:
        site.ask(_ended(site, run))
    monkeypatch.setattr(tally, "settled", lambda now_us: now_us)  # without waiting for the minute to be over
    site.ask(_count(site.hf))
    page.goto(site("/"))
    group = page.locator(".group", has_text="the shelf is too high")
    expect(group).to_contain_text("3 ×")
    group.get_by_role("link", name="Retry").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Retry 3 runs?")
    page.get_by_role("button", name="Retry 3").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("3 of 3 enqueued again")
    again = [each.retry_of for each in site.ask(site.hf.runs.list(agent="clumsy"))]
    assert {each for each in again if each} == set(runs)


async def _ended(site: Site, run: str) -> None:
    async for _ in site.hf.runs[run].stream():
        pass


async def _count(hf: Holdfast) -> None:
    database = await core_of(hf).opened()
    while await database.transact(queries.count, hf.settings):
        pass


@pytest.mark.long
def test_a_machines_state_moves_on_its_picture(site: Site, page: Page) -> None:
    page.goto(site("/machines/article_0"))
    page.get_by_role("button", name="Start").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").first.fill('{"title": "The Storm"}')
    dialog.get_by_role("button", name="Start").click()
    lit = page.locator(".drawing g", has=page.locator("title", has_text="(the current state)"))
    expect(lit).to_contain_text("ask_0")
    site.ask(site.hf.signal("editor_0", {"verdict": "<img src=x onerror=pwned()>"}))
    expect(lit).to_contain_text("done_0")
    expect(page.locator("#head .badge")).to_have_text("succeeded")
    assert page.evaluate("window.shifts") == 0, page.evaluate("window.shifted")


@pytest.mark.long
def test_a_pool_grows_while_one_looks(tmp_path: Path, chromium: Browser) -> None:
    quick = settings_with(heartbeat="100ms", poll_interval="50ms", sweep_interval="100ms")
    hf = Holdfast(f"sqlite:///{tmp_path / 'store.db'}", settings=quick, embedded=False)

    @hf.job(name="grind", queue="mill", retry=Retry(attempts=1))
    async def grind() -> None:
        await asyncio.Event().wait()

    site = Site(hf, works=False)
    pool = hf.pool("mill", min=1, max=3, slots=1, queues=["mill"])
    site.ask(pool.start())
    try:
        with looking(chromium) as (page, _):
            page.goto(site("/pools/mill"))
            workers = page.locator(".figure", has_text="Workers").locator(".figure-value")
            expect(workers).to_have_text("1")
            site.ask(grind.enqueue_many([{}] * 20))
            expect(workers).to_have_text("3")
            expect(page.locator("tbody tr")).to_have_count(3)
    finally:
        site.ask(pool.stop(drain=False))
        site.close()


@pytest.mark.long
def test_the_server_is_restarted_under_an_open_page(site: Site, page: Page) -> None:
    page.goto(site("/workers"))
    site.shut()
    expect(page.locator(".offline")).to_have_text(re.compile("The server does not answer"))
    site.open()
    expect(page.locator(".offline")).to_be_hidden()
    assert page.evaluate("window.shifts") == 0, page.evaluate("window.shifted")


@pytest.mark.long
def test_a_run_that_is_deleted_while_it_is_shown_says_so(site: Site, page: Page, heard: Heard) -> None:
    run = site.start("guide", "Which way?")
    page.goto(site(f"/runs/{run}"))
    expect(page.locator("[data-text]")).to_contain_text("every word")
    site.ask(site.hf.runs[run].interrupt())
    site.ask(site.hf.sessions.delete(site.ask(site.hf.runs.get(run)).session))
    expect(page.locator(".offline")).to_have_text(re.compile("was removed"))
    heard.forget("404")


@pytest.mark.long
def test_the_servers_clock_counts_whatever_the_browsers_says(site: Site, page: Page) -> None:
    """An hour ahead and an hour behind: a run of now began just now, and nothing is an hour ago."""
    run = site.start("guide", "Which way?")
    for hours in (-1, 1):
        page.clock.set_system_time(site.ask(_now(site)) + timedelta(hours=hours))
        page.goto(site(f"/runs/{run}"))
        began = page.locator("dt:text-is('Created') + dd time")
        expect(began).to_have_text(re.compile("just now|^[0-9]+ s ago"))
        expect(page.locator("#state .figure", has_text="Lasted")).to_have_text(re.compile(r"[0-9.]+ s$"))
    site.ask(site.hf.runs[run].interrupt())


async def _now(site: Site) -> datetime:
    return moment(core_of(site.hf).ports.clock.wall_us())


@pytest.mark.long
def test_everything_is_reached_by_keys(site: Site, page: Page) -> None:
    run = site.start("till", "By keys")
    page.goto(site("/"))
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url(re.compile("/runs$"))
    expect(page.locator(f"#row-{run}")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/runs/.+"))
    page.keyboard.press("/")
    expect(page.locator("#palette")).to_be_visible()
    page.keyboard.type("work")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/workers$"))


@pytest.mark.long
def test_nothing_jumps_and_nothing_is_wider_than_a_phone(site: Site, page: Page) -> None:
    session = site.ask(site.hf.sessions.list())[0].id
    run = site.ask(site.hf.runs.list())[0].id
    for path in (*PAGES, f"/sessions/{session}", f"/runs/{run}"):
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto(site(path))
        page.wait_for_function("document.readyState === 'complete'")
        assert page.evaluate("window.shifts") == 0, (path, page.evaluate("window.shifted"))
        page.set_viewport_size({"width": 360, "height": 740})
        page.reload()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
