"""Pictures of the pages for the documentation: light, dark and on a phone.

`make screenshots` plays the demo and opens a shop, serves both stores on loopback, and lets Chromium look at them.
`tools/screenshots.py FOLDER` takes every page in every look into a folder, to look through them.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import uvicorn
from page_shop import Shop, open_shop
from playwright.sync_api import Browser, Page, sync_playwright

from holdfast import Holdfast
from holdfast.http import Principal

T = TypeVar("T")

IMAGES = Path(__file__).parents[1] / "docs" / "images"
EVERY_LOOK = ("light", "dark", "phone", "wide")


class Look(NamedTuple):
    width: int
    height: int
    dark: bool = False


LOOKS = {
    "light": Look(1280, 860),
    "dark": Look(1280, 860, dark=True),
    "phone": Look(360, 740),
    "wide": Look(1920, 1080),
}


class Picture(NamedTuple):
    """A page, and the looks of it that the documentation has."""

    name: str
    path: str
    looks: tuple[str, ...] = ("light",)


def pictures(shop: Shop) -> tuple[Picture, ...]:
    three = ("light", "dark", "phone")
    return (
        Picture("now", "/", three),
        Picture("inbox", "/inbox", three),
        Picture("runs", "/runs"),
        Picture("chat", f"/sessions/{shop.session}", three),
        Picture("jobs", "/jobs"),
        Picture("why", f"/why?id={shop.job}"),
        Picture("queues", "/queues"),
        Picture("workers", "/workers"),
        Picture("calls", "/calls"),
        Picture("money", "/money?by=tenant"),
        Picture("audit", "/audit"),
        Picture("machines", f"/executions/{shop.execution}"),
        Picture("triggers", "/triggers"),
        Picture("batch", f"/batches/{shop.batch}"),
    )


def main(folder: Path | None) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("Chromium is missing: apt-get install chromium fonts-noto-color-emoji")
    with tempfile.TemporaryDirectory() as store, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        killed = _demo(store)
        with _served(Holdfast(f"sqlite:///{store}/demo.db", embedded=False)) as (place, _):
            _take(browser, place, Picture("run", f"/runs/{killed}", ("light", "dark", "phone")), folder)
        hf = Holdfast(f"sqlite:///{store}/shop.db", embedded=False)
        with _served(hf, columns=("customer",), filters=("plan",)) as (place, ask):
            shop = ask(open_shop(hf))
            _drain(browser, place, shop.worker)
            for picture in pictures(shop):
                _take(browser, place, picture, folder)
        browser.close()


def _demo(store: str) -> str:
    """Play the demo; the run whose worker was killed in the middle of a turn."""
    demo = [sys.executable, "-m", "holdfast", "demo", "--json", "--url", f"sqlite:///{store}/demo.db"]
    told = json.loads(subprocess.run(demo, check=True, capture_output=True).stdout)
    run: str = told["kills"][0]["run"]
    return run


@contextmanager
def _served(hf: Holdfast, **options: Any) -> Iterator[tuple[str, Any]]:
    """A server in a thread of its own: where it is, and a function that runs something there."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def ask(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    app = hf.web(who=lambda _: Principal("ann", "admin"), **options)
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_level="error"))
    serving = asyncio.run_coroutine_threadsafe(server.serve(), loop)
    while not server.started:
        threading.Event().wait(0.05)
    port: int = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}", ask
    finally:
        server.should_exit = server.force_exit = True
        serving.result()
        ask(hf.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def _drain(browser: Browser, place: str, worker: str) -> None:
    """As a person does it, so that the audit says who it was."""
    page = browser.new_page()
    page.goto(f"{place}/workers/{worker}")
    page.get_by_role("button", name="Drain").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("It gets a new disk.")
    dialog.get_by_role("button", name="Drain").click()
    page.wait_for_load_state()
    page.close()


def _take(browser: Browser, place: str, picture: Picture, folder: Path | None) -> None:
    for name in picture.looks if folder is None else EVERY_LOOK:
        look = LOOKS[name]
        context = browser.new_context(
            viewport={"width": look.width, "height": look.height}, color_scheme="dark" if look.dark else "light"
        )
        page = context.new_page()
        page.goto(place + picture.path)
        _settle(page)
        page.screenshot(path=(folder or IMAGES) / f"web-{picture.name}-{name}.png")
        context.close()


def _settle(page: Page) -> None:
    """Until what comes by itself has come."""
    page.get_by_text("The doctor looks").wait_for(state="detached")
    page.evaluate("scrollTo(0, 0)")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
