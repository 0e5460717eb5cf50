"""The lists of `llms.txt`: every page in the navigation of the site, with its title and how it begins."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs"
FILE = ROOT / "llms.txt"
FIRST_LIST = "\n## "
EXAMPLES = "- [Examples](examples/quickstart.py): programs that the tests run"
SKIPPABLE = "Inside"  # readers of llms.txt may leave out what stands under "Optional"
SHORT = 40  # characters below which a sentence alone says too little

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_NOT_PROSE = re.compile(r"[#|!<>-]|```|\d+\. ")
_LINK = re.compile(r"!?\[([^]]*)\]\([^)]*\)", re.DOTALL)
_SENTENCE = re.compile(r"\S.*?[.?](?=\s+[^a-z\s]|$)")


class _Navigation(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML ships no types
    """Reads mkdocs.yml, and nothing of what its tags would import."""


_Navigation.add_multi_constructor("", lambda loader, suffix, node: None)


def llms(made: Mapping[Path, str]) -> str:
    """The file, with the lists made anew; what stands above them is written by hand. `made`: pages as they will be."""
    by_hand, _, _ = FILE.read_text().partition(FIRST_LIST)
    navigation = yaml.load((ROOT / "mkdocs.yml").read_text(), _Navigation)["nav"]
    lines = [by_hand.rstrip()]
    for title, pages in _sections(navigation):
        lines += ["", f"## {'Optional' if title == SKIPPABLE else title}", "", *(_line(page, made) for page in pages)]
    return "\n".join([*lines, EXAMPLES, ""])


def _sections(navigation: list[Any]) -> Iterator[tuple[str, list[str]]]:
    yield "Documentation", [each for each in navigation if isinstance(each, str)]
    for section in navigation:
        if isinstance(section, dict):
            yield from section.items()


def _line(page: str, made: Mapping[Path, str]) -> str:
    path = PAGES / page
    title, beginning = beginning_of(made.get(path) or path.read_text())
    return f"- [{title}](docs/{page}): {beginning}"


def beginning_of(text: str) -> tuple[str, str]:
    """The title of a page, and the first sentence below it, or the first two if that is short."""
    title, _, rest = _COMMENT.sub("", text).strip().partition("\n")
    prose, _, _ = rest.strip().partition("\n\n")
    sentences = [] if _NOT_PROSE.match(prose) else _SENTENCE.findall(" ".join(_LINK.sub(r"\1", prose).split()))
    if not title.startswith("# ") or not sentences:
        raise ValueError(f"the page {title!r} does not begin with its title and a sentence.")
    return title.removeprefix("# "), " ".join(sentences[: 1 if len(sentences[0]) >= SHORT else 2])
