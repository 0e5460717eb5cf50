"""An hour with open pages: `make soak-web`, or `MINUTES=5 make soak-web`. Each minute it says what they cost.

Three pages stay open while agents work: the first page, the list of runs, and the workers. It fails when one of
them has grown since its fifth minute, or since its first if there are fewer than ten.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from holdfast import Holdfast
from holdfast.models.script import Script, say
from holdfast.settings import Settings
from tests.http.memory import Footprint, Scale, grown
from tests.http.site import Site
from tests.support.chromium import find_chromium

_WORDS = "It is a long way, and every word of it is written slowly. " * 40


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.http.soak", description=__doc__)
    parser.add_argument("--minutes", type=int, default=60)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as folder:
        site = Site(_program(Path(folder)))
        try:
            problems = _watch(site, minutes)
        finally:
            site.close()
    sys.exit("\n".join(problems) if problems else 0)


def _program(folder: Path) -> Holdfast:
    hf = Holdfast(f"sqlite:///{folder / 'soak.db'}", settings=Settings(script_pace=timedelta(milliseconds=50)))
    hf.script("guide", Script(say(_WORDS)))
    hf.agent("guide", model="scripted:guide")
    return hf


def _watch(site: Site, minutes: int) -> list[str]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        pages = {path: browser.new_context().new_page() for path in ("/", "/runs", "/workers")}
        for path, page in pages.items():
            page.goto(site(path))
        first: dict[str, Footprint] = {}
        last: dict[str, Footprint] = {}
        for minute in range(1, minutes + 1):
            _pass_a_minute(site, next(iter(pages.values())))
            for path, page in pages.items():
                last[path] = Scale(site, page).weigh()
                print(f"minute {minute:3} {path[:12]:12} {last[path]}", flush=True)
            if minute <= (5 if minutes >= 10 else 1):
                first = dict(last)
        browser.close()
    return [f"{path}: {each}" for path in first for each in grown(first[path], last[path])]


def _pass_a_minute(site: Site, page: Page) -> None:
    """A run at each quarter of it."""
    for _ in range(4):
        site.start("guide", "Go on")
        page.wait_for_timeout(15_000)


if __name__ == "__main__":
    main()
