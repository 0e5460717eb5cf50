"""Texts that would be programs, if a page took them for anything but text: in every field, and while they are written.

The browser keeps to the pages' policy here. Nothing runs, nothing is asked of another host, no element is made of a
text, and the console has no complaint, not even that the policy refused something.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast import Holdfast
from holdfast.http.pages.layout import PLACES
from holdfast.http.pages.serving import ROUTES
from holdfast.models.script import Script, say
from holdfast.settings import Settings
from tests.http.full_store import FullStore
from tests.http.renaming import rename
from tests.http.site import Site, looking

PAYLOADS = [json.loads(line) for line in Path(__file__).with_name("payloads.jsonl").read_text().splitlines()]
LINE = "x" * 1_000_000
TOGETHER = 20  # payloads in one text
SENTINEL = "window.ran = 0; window.pwned = () => { window.ran += 1; };"
LOOK = r"""() => {
  const odd = "script:not([src]), style, iframe, object, embed, base, img, video, audio, frame, applet, math, " +
    "form form, [style]:not(th), meta[http-equiv], link:not([rel=icon], [rel=stylesheet], [rel=expect]), " +
    "[srcdoc], foreignObject";
  const commands = /[\u202a-\u202e\u2066-\u2069\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]/;
  const named = (each, kind) => each.getAttributeNames().some((name) => kind.test(name));
  const all = [...document.querySelectorAll("*")];
  const shown = (each) => each.outerHTML.slice(0, 160);
  const leading = ["href", "src", "data-href", "hx-get", "action", "formaction", "data-stream"];
  const places = all.flatMap((each) => leading.map((name) => each.getAttribute(name)));
  return {
    ran: window.ran,
    odd: [...document.querySelectorAll(odd)].map(shown),
    handlers: all.filter((each) => named(each, /^(on|hx-on)/)).map(shown),
    schemes: places.filter((each) => each && !/^([/#?]|https?:|mailto:)/.test(each)).map((each) => each.slice(0, 160)),
    commands: commands.test(document.documentElement.outerHTML),
    wide: document.documentElement.scrollWidth > innerWidth,
    follow: all.map((each) => (each.matches("a") ? each.getAttribute("href") : each.dataset.href)).filter(Boolean),
  };
}"""

pytestmark = pytest.mark.slow


def texts(payloads: Sequence[str]) -> list[str]:
    """A few payloads make one text, and a line of a million characters is one."""
    groups = [payloads[at : at + TOGETHER] for at in range(0, len(payloads), TOGETHER)]
    return [*("\n".join(group) if number % 2 else " ".join(group) for number, group in enumerate(groups)), LINE]


@pytest.fixture(
    scope="module",
    params=[pytest.param(PAYLOADS[::25], id="8"), pytest.param(PAYLOADS, id="200", marks=pytest.mark.long)],
)
def hostile(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site whose store has the payloads in all its texts and all its names."""
    folder = tmp_path_factory.mktemp("hostile")
    file, payloads = folder / "store.db", request.param
    told = texts(payloads)
    filling = Site(Holdfast(f"sqlite:///{file}", embedded=False), works=False)
    store = FullStore(filling.hf, folder, told, rows=len(told))
    filling.ask(store.fill())
    filling.close()
    assert rename(file, payloads) > 20 * len(told)
    site = Site(_declared_again(file, folder), works=False)
    yield site
    site.close()


def _declared_again(file: Path, folder: Path) -> Holdfast:
    """A program that declares the machines, so that they are drawn, and nothing else."""
    hf = Holdfast(f"sqlite:///{file}", embedded=False)
    for each in folder.glob("article_*.yml"):
        hf.machine(each)
    return hf


@pytest.mark.timeout(1_800)  # hundreds of pages; a slow machine is no failure
def test_nothing_that_is_stored_runs_or_leaves(
    hostile: Site, chromium: Browser, request: pytest.FixtureRequest
) -> None:
    """Every page that links lead to, and each kind of page again after it has refreshed itself.

    With few payloads, two of each kind: jobs are shown alike.
    """
    most = 2 if "[8]" in request.node.name else 1_000
    todo = [place.path for place in PLACES] + [
        "/calls",
        "/runs/retry?state=failed",
        "/pools?all=true",
        "/workers?all=true",
    ]
    seen: set[str] = set()
    kinds: Counter[str] = Counter()
    problems: list[str] = []
    with looking(chromium) as (page, _):
        page.add_init_script(SENTINEL)
        while todo:
            link = todo.pop()
            if link in seen or kinds[_kind(link)] >= most:
                continue
            seen.add(link)
            answer = page.goto(hostile(link))
            assert answer is not None
            problems += [] if answer.status == 200 else [f"{link} {answer.status}"]
            found, follow = check(page)
            todo += [each.partition("#")[0] for each in follow if _is_page(each)]
            kinds[_kind(link)] += 1
            if kinds[_kind(link)] == 1:
                refresh(page)
                page.set_viewport_size({"width": 360, "height": 740})
                found |= check(page)[0]
                page.set_viewport_size({"width": 1280, "height": 900})
            problems += [f"{link} {found}"] if found else []
            assert len(problems) < 10, problems
    assert problems == []
    assert {route.path for route in ROUTES if route.method == "GET"} - kinds.keys() <= NOT_LINKED


NOT_LINKED = {
    "/now/health",
    "/failures",
    "/runs/{id}/said",
    "/sessions/{id}/window",
    "/find",
    "/money.csv",
    "/why",
    "/jobs/retry",
    "/jobs/cancel",
    "/runs/cancel",
    "/runs/compare",
    "/batches/{id}",
}


def check(page: Page) -> tuple[dict[str, Any], list[str]]:
    """What on the page is more than text, and the links that it has."""
    found: dict[str, Any] = page.evaluate(LOOK)
    follow: list[str] = found.pop("follow")
    return {name: value for name, value in found.items() if value}, follow


def refresh(page: Page) -> None:
    """Let the page fetch itself again, as it does every few seconds."""
    if page.locator("[data-live]").count():
        with page.expect_response(lambda answer: answer.request.headers.get("hx-request") == "true"):
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def _is_page(link: str) -> bool:
    split = urlsplit(link)
    if split.netloc or not split.path.startswith("/") or split.path.startswith(("/api/", "/assets/", "/money.csv")):
        return False
    return not split.query or "after=" in split.query


def _kind(link: str) -> str:
    """The route that a link leads to."""
    path = urlsplit(link).path
    fits = [each.path for each in ROUTES if each.method == "GET" and re.fullmatch(_pattern(each.path), path)]
    return min(fits, key=lambda each: each.count("{"), default=path)


def _pattern(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "[^/]+", path)


@pytest.mark.long
def test_nothing_that_is_being_written_runs_or_leaves(chromium: Browser, tmp_path: Path) -> None:
    """A model's words, as they come over the stream, and once they are an answer."""
    words = "\n\n".join(each.replace("\0", "") for each in PAYLOADS)
    hf = Holdfast(f"sqlite:///{tmp_path / 'store.db'}", settings=Settings(script_pace=timedelta(milliseconds=2)))
    hf.script("poet", Script(say(words)))
    hf.agent("poet", model="scripted:poet")
    site = Site(hf)
    try:
        with looking(chromium) as (page, _):
            page.add_init_script(SENTINEL)
            run = site.start("poet", words)
            page.goto(site(f"/runs/{run}"))
            expect(page.locator("#head .badge")).to_have_text("completed")
            assert check(page)[0] == {}
    finally:
        site.close()
