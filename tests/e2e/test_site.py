"""The documentation as a site: whole, with a search, with links that lead somewhere, and nothing from another host."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.shape.tree import ROOT, listed
from tests.support.commands import Said, environment, python

pytestmark = pytest.mark.long  # a build takes some seconds

LOADS = {"script", "img", "iframe", "source", "embed", "object", "video", "audio", "style"}
LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}
BROKEN = """
INHERIT: {whole}
docs_dir: pages
site_dir: site
hooks: []
not_in_nav: ""
nav: [README.md]
"""


def build(folder: Path, *options: str) -> Said:
    return python("-m", "mkdocs", "build", *options, cwd=folder, env=environment(NO_MKDOCS_2_WARNING="1"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    said = build(ROOT, "--site-dir", str(folder))
    assert said.code == 0, said.err
    return folder


class Loaded(HTMLParser):
    """The addresses that a browser loads when it shows a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        if tag in LOADS or (tag == "link" and LINKS & set(has.get("rel", "").split())):
            self.found += [has[name] for name in ("src", "srcset", "href", "data", "poster") if name in has]
        if "mermaid" in has.get("class", "").split():
            self.found.append("https://the-program-that-draws-mermaid")


def foreign(site: Path) -> Iterator[str]:
    for page in sorted(site.rglob("*.html")):
        for address in Loaded(page.read_text()).found:
            if "//" in address or (":" in address and not address.startswith("data:")):
                yield f"{page.relative_to(site)}: {address}"
    for style in sorted(site.rglob("*.css")):
        text = style.read_text()
        yield from (f"{style.relative_to(site)}: {each}" for each in ("url(http", "url(//", "@import") if each in text)
    for script in sorted(site.rglob("*.js")):
        if "unpkg.com" in script.read_text():
            yield f"{script.relative_to(site)}: unpkg.com"


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    assert not list(foreign(site)), listed(foreign(site))


def test_what_a_page_loads_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<script src="https://cdn.example/a.js"></script><a href="https://b.example">b</a>'
    )
    (tmp_path / "b.html").write_text('<link rel="stylesheet" href="//fonts.example/f.css"><img src="images/top.svg">')
    assert list(foreign(tmp_path)) == ["a.html: https://cdn.example/a.js", "b.html: //fonts.example/f.css"]


def test_every_page_is_on_the_site_and_in_its_search(site: Path) -> None:
    pages = [page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")]
    names = {page.as_posix().replace("README", "index") for page in pages}
    assert {page for page in names if not (site / page).exists()} == set()
    found = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert {each["location"].partition("#")[0] for each in found} == names
    assert "worker-died.html#what-happens" in {each["location"] for each in found if "presence" in each["text"]}


def test_pages_are_rendered_as_they_are_meant(site: Path) -> None:
    """Lists, tables and blocks that a code host understands and mkdocs does not would stay text."""
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert not [each for each in ("<p>- ", "<p>| ", "<p>```", "unseen:", "not run:") if each in text], page.name


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "mkdocs.yml").write_text(BROKEN.format(whole=ROOT / "mkdocs.yml"))
    page = tmp_path / "pages" / "README.md"
    page.write_text("# A page\n\n[whole](#a-page)\n")
    assert build(tmp_path).code == 0
    page.write_text("# A page\n\n[gone](gone.md) and [nowhere](#nowhere)\n")
    said = build(tmp_path)
    assert said.code != 0
    assert "gone.md" in said.err
    assert "#nowhere" in said.err
