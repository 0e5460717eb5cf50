"""How pages look to everybody: axe-core finds nothing, light and dark, wide and on a phone; nothing moves by itself.

axe-core runs in a context that bypasses the pages' policy; no other test does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from holdfast import Holdfast
from holdfast.http.pages.layout import PLACES
from tests.http.full_store import FullStore
from tests.http.site import Site, looking
from tests.http.test_payloads import _is_page, _kind, refresh
from tests.support.axe import axe_source

TEXTS = (
    "Which way is it to the **harbour**? It has to be before noon, and I carry two heavy boxes.",
    "The order is late. Please look where it is, and tell the customer what you find.",
    "Sum up what happened during the night:\n\n- which jobs failed\n- what they cost",
)
FIRST = (
    *(place.path for place in PLACES),
    "/calls",
    "/why",
    "/runs/retry?state=failed",
    "/pools?all=true",
    "/nowhere",
    "/login",
)
EXAMINE = """async (dialog) => {
  const why = (node) => node.any.map((each) => each.message);
  const told = (each, node) => [each.id, node.target.join(" "), node.html.slice(0, 120), ...why(node)];
  const place = dialog ? document.getElementById(dialog) : document;
  const found = (await axe.run(place, { resultTypes: ["violations"] })).violations;
  return found.flatMap((each) => each.nodes.map((node) => told(each, node).join(" ")));
}"""
DIALOGS = """() => [...document.querySelectorAll("dialog[id]")].map((each) => each.id)"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("looks")
    site = Site(Holdfast(f"sqlite:///{folder / 'store.db'}", embedded=False), works=False)
    site.ask(FullStore(site.hf, folder, TEXTS, rows=3).fill())
    yield site
    site.close()


@pytest.fixture(scope="module")
def paths(site: Site, chromium: Browser) -> list[str]:
    """One page of each kind."""
    found: dict[str, str] = {}
    todo = list(FIRST)
    with looking(chromium) as (page, heard):
        while todo:
            link = todo.pop(0)
            if _kind(link) in found:
                continue
            page.goto(site(link))
            found[_kind(link)] = link
            links = page.evaluate("[...document.querySelectorAll('a[href]')].map((each) => each.getAttribute('href'))")
            todo += [each for each in links if _is_page(each)]
        heard.forget("404")
    return list(found.values())


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(("scheme", "width"), [("dark", 360), ("light", 1280)])  # colors do not depend on the width
def test_everybody_can_use_every_page(site: Site, chromium: Browser, paths: list[str], scheme: Any, width: int) -> None:
    assert examined(site, chromium, paths, scheme, width) == []


def examined(site: Site, chromium: Browser, paths: list[str], scheme: Any, width: int) -> list[str]:
    """What axe-core finds on each page, and in each kind of dialog."""
    source, problems, known = axe_source(), [], set[str]()
    with looking(chromium, width=width, color_scheme=scheme, bypass_csp=True) as (page, heard):
        for path in paths:
            page.goto(site(path))
            page.wait_for_load_state("networkidle")
            page.evaluate(source)
            problems += [f"{path} {each}" for each in page.evaluate(EXAMINE)]
            for dialog in page.evaluate(DIALOGS):
                if dialog.rstrip("0123456789") not in known:
                    known.add(dialog.rstrip("0123456789"))
                    page.evaluate("(id) => document.getElementById(id).showModal()", dialog)
                    problems += [f"{path} #{dialog} {each}" for each in page.evaluate(EXAMINE, dialog)]
                    page.evaluate("(id) => document.getElementById(id).close()", dialog)
        heard.forget("404")
    return problems


@pytest.mark.long
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_moves_when_pages_refresh_themselves(
    site: Site, chromium: Browser, paths: list[str], width: int
) -> None:
    """While others change what is shown."""
    with looking(chromium, width=width) as (page, heard):
        for path in paths:
            page.goto(site(path))
            page.wait_for_load_state("networkidle")
            for _ in range(2):
                refresh(page)
            assert page.evaluate("window.shifts") == 0, (path, page.evaluate("window.shifted"))
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        heard.forget("404")
