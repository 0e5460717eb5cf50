"""Journeys in a browser: what a person sees and presses, on one server and one store for all of them."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Coroutine, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright

from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.models.script import Script, call, say
from holdfast.settings import Settings
from tests.support.chromium import find_chromium
from tests.support.redis import free_port

T = TypeVar("T")

PATIENCE = 120_000  # milliseconds: of a machine that is busy, not of a person
LONG = "It is a long way, and every word of it is written slowly. " * 20
SHIFTS = """
window.shifts = 0;
const add = (each) => { if (!each.hadRecentInput) window.shifts += each.value; };
new PerformanceObserver((list) => list.getEntries().forEach(add)).observe({ type: "layout-shift", buffered: true });
"""
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


class Site:
    """A store, a worker and the web, in a thread of their own; `ask` runs something there."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.hf = _shop(f"sqlite:///{folder / 'site.db'}")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.ask(self.hf.ensure_worker())
        self.open()

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def open(self) -> None:
        """Serve the web, on the same port as before."""
        app = self.hf.web(who=lambda _: Principal("ann", "admin"))
        config = uvicorn.Config(app, port=self.port, lifespan="off", log_level="error", timeout_graceful_shutdown=0)
        self._server = uvicorn.Server(config)
        self._served = asyncio.run_coroutine_threadsafe(self._server.serve(), self._loop)
        while not self._server.started:
            assert not self._served.done(), self._served.exception()

    def shut(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._served.result()

    def close(self) -> None:
        self.shut()
        self.ask(self.hf.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __call__(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


def _shop(url: str) -> Holdfast:
    hf = Holdfast(url, settings=Settings(script_pace=timedelta(milliseconds=150)))

    @hf.tool(approve=True)
    def refund(order: str, amount: int) -> str:
        """Refund an order."""
        return f"refunded {amount} for {order}"

    hf.script("guide", Script(say(LONG), say(LONG)))
    hf.agent("guide", model="scripted:guide")
    hf.script("till", Script(call("refund", order="A1", amount=80), say("Done.")))
    hf.agent("till", model="scripted:till", tools=[refund])
    return hf


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    for name in ("guide", "till"):
        site.ask(site.hf.agents.put(site.ask(site.hf.agents.named(name))))
    yield site
    site.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of its own; whatever its console complains about fails the test."""
    complaints: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.add_init_script(SHIFTS)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda problem: complaints.append(str(problem)))
    yield page
    context.close()
    assert [each for each in complaints if "ERR_CONNECTION_REFUSED" not in each and "ERR_EMPTY" not in each] == []


def start(site: Site, agent: str, prompt: str, **options: Any) -> str:
    async def begin() -> str:
        return (await (await site.hf.agents.named(agent)).enqueue(prompt, **options)).id

    return site.ask(begin())


def test_a_run_appears_and_what_it_says_is_read_while_it_is_written(site: Site, page: Page) -> None:
    page.goto(site("/runs"))
    run = start(site, "guide", "Which way?")
    page.reload()
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


def test_a_call_is_approved_with_other_arguments(site: Site, page: Page) -> None:
    run = start(site, "till", "Refund A1")
    page.goto(site(f"/runs/{run}"))
    page.get_by_role("link", name="Decide").first.click()
    card = page.locator(".inquiry").first
    card.get_by_label("Arguments").fill('{"order": "A1", "amount": 50}')
    card.get_by_role("button", name="Approve").click()
    assert "refunded 50 for A1" in str(site.ask(_outputs(site, run)))


async def _outputs(site: Site, run: str) -> list[Any]:
    await site.hf.runs[run].result()
    return [each.output for each in await site.hf.runs[run].calls()]


@pytest.mark.long
def test_why_a_job_waits_is_one_search_away(site: Site, page: Page) -> None:
    site.ask(site.hf.queues.pause("default", reason="night shift"))
    run = start(site, "till", "Later")
    try:
        page.goto(site("/why"))
        page.get_by_role("textbox").first.fill(run)
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_contain_text("night shift")
    finally:
        site.ask(site.hf.queues.resume("default"))


@pytest.mark.long
def test_the_server_is_restarted_under_an_open_page(site: Site, page: Page) -> None:
    page.goto(site("/workers"))
    site.shut()
    expect(page.locator(".offline")).to_be_visible()
    site.open()
    expect(page.locator(".offline")).to_be_hidden()


@pytest.mark.long
def test_everything_is_reached_by_keys(site: Site, page: Page) -> None:
    run = start(site, "till", "By keys")
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
        assert page.evaluate("window.shifts") == 0, path
        page.set_viewport_size({"width": 360, "height": 740})
        page.reload()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
