"""Pictures of the pages for the documentation: a run whose worker was killed, light, dark and on a phone.

`make screenshots` plays the demo, serves its store on loopback, and lets Chromium look at it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import uvicorn
from playwright.sync_api import Browser, sync_playwright

from holdfast import Holdfast
from holdfast.http import Principal

IMAGES = Path(__file__).parents[1] / "docs" / "images"


def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("Chromium is missing: apt-get install chromium fonts-noto-color-emoji")
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'demo.db'}"
        demo = [sys.executable, "-m", "holdfast", "demo", "--json", "--url", url]
        told = json.loads(subprocess.run(demo, check=True, capture_output=True).stdout)
        server, port = _serve(url)
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            _take(browser, f"http://127.0.0.1:{port}/runs/{told['kills'][0]['run']}")
        server.should_exit = True


def _serve(url: str) -> tuple[uvicorn.Server, int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    app = Holdfast(url).web(who=lambda _: Principal("you", "admin"))
    server = uvicorn.Server(uvicorn.Config(app, port=port, lifespan="off", log_level="error"))
    threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True).start()
    while not server.started:
        threading.Event().wait(0.05)
    return server, port


def _take(browser: Browser, address: str) -> None:
    for name, width, height, dark in (
        ("run-light", 1280, 860, False),
        ("run-dark", 1280, 860, True),
        ("run-phone", 360, 740, False),
    ):
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        page = context.new_page()
        page.goto(address)
        page.screenshot(path=IMAGES / f"web-{name}.png")
        context.close()


if __name__ == "__main__":
    main()
