"""A site in a browser: a store, a worker and the web in a thread of their own, and pages whose complaints are heard."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from holdfast import Holdfast
from holdfast.access.principals import Principal
from tests.support.chromium import find_chromium
from tests.support.redis import free_port

T = TypeVar("T")

PATIENCE = 120_000  # milliseconds: of a machine that is busy, not of a person
SHIFTS = """
window.shifts = 0;
window.shifted = [];
const add = (each) => {
  if (each.hadRecentInput) return;
  window.shifts += each.value;
  const at = ({ x, y, width, height }) => `${x},${y} ${width}x${height}`;
  for (const { node, previousRect, currentRect } of each.sources) {
    const what = node?.outerHTML?.slice(0, 160) ?? `${node?.nodeName} ${node?.textContent?.slice(0, 60)}`;
    if (window.shifted.length < 40) window.shifted.push(`${at(previousRect)} → ${at(currentRect)} ${what}`);
  }
};
new PerformanceObserver((list) => list.getEntries().forEach(add)).observe({ type: "layout-shift", buffered: true });
"""
_AWAY = ("ERR_CONNECTION_REFUSED", "ERR_EMPTY", "ERR_CONNECTION_RESET", "ERR_INCOMPLETE")


class Aside:
    """An event loop in a thread of its own; `ask` runs something there."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        return self.begin(work).result()

    def close(self) -> None:
        self.ask(_end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_tasks() -> None:
    """Let everything that is left in this loop end."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for each in left:
        each.cancel()
    await asyncio.gather(*left, return_exceptions=True)


class Site(Aside):
    """A store, a worker and the web, aside."""

    def __init__(self, hf: Holdfast, *, works: bool = True) -> None:
        super().__init__()
        self.port = free_port()
        self.hf = hf
        if works:
            self.ask(self.hf.ensure_worker())
        self.open()

    def open(self) -> None:
        """Serve the web, on the same port as before."""
        app = self.hf.web(who=lambda _: Principal("ann", "admin"))
        config = uvicorn.Config(app, port=self.port, lifespan="off", log_level="error", timeout_graceful_shutdown=0)
        self._server = uvicorn.Server(config)
        self._served = self.begin(self._server.serve())
        while not self._server.started:
            assert not self._served.done(), self._served.exception()

    @property
    def connections(self) -> int:
        """How many browsers' connections the server holds."""
        return len(self._server.server_state.connections)

    def shut(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._served.result()

    def close(self) -> None:
        self.shut()
        self.ask(self.hf.close())
        super().close()

    def start(self, agent: str, prompt: str, **options: Any) -> str:
        """Enqueue a run; its id."""

        async def begin() -> str:
            return (await (await self.hf.agents.named(agent)).enqueue(prompt, **options)).id

        return self.ask(begin())

    def __call__(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


class Heard:
    """What a page did that no page may: complaints of its console, dialogs, requests to other hosts."""

    def __init__(self, page: Page) -> None:
        self.complaints: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda problem: self.complaints.append(f"error: {problem}"))
        page.on("dialog", self._dialog)
        page.context.on("request", self._request)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not any(each in message.text for each in _AWAY):
            self.complaints.append(f"console: {message.text} at {message.location.get('url', '')[:200]}")

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Request) -> None:
        if not request.url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            self.complaints.append(f"request: {request.url[:200]}")

    def forget(self, words: str) -> None:
        """A complaint that the test means to cause."""
        self.complaints = [each for each in self.complaints if words not in each]


@contextmanager
def looking(browser: Browser, *, width: int = 1280, height: int = 900, **options: Any) -> Iterator[tuple[Page, Heard]]:
    """A page in a context of its own. Whatever it complains about fails the test at the end."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    context.add_init_script(SHIFTS)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    heard = Heard(page)
    try:
        yield page, heard
        context.close()
        assert heard.complaints == []
    finally:
        context.close()


@contextmanager
def running_chromium() -> Iterator[Browser]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture
def seen(chromium: Browser) -> Iterator[tuple[Page, Heard]]:
    with looking(chromium) as found:
        yield found


@pytest.fixture
def page(seen: tuple[Page, Heard]) -> Page:
    return seen[0]


@pytest.fixture
def heard(seen: tuple[Page, Heard]) -> Heard:
    return seen[1]
