"""Markdown: what a model wrote, as HTML. Raw HTML and images in it are text. Pure.

Reading a character of markup takes a hundred times as long as reading a letter. So a message and a page have a limit of
such characters, and what is beyond it is shown as it was written. What makes more of a text than is written in it, as
references do, is not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

# Characters of markup, and cells of tables. At worst, which is lines that continue twenty quotes, reading takes 0.12 s
# for a message and 0.5 s for a page, as measured; the HTML is six times as long as the text.
IN_MESSAGE, ON_PAGE = 3_000, 12_000
_MARKUP = str.maketrans("", "", "![]()<>*_~`&\\|#:-+\n")


class Prose:
    """The messages of one page, and how much markup may still be read there."""

    def __init__(self) -> None:
        self._left = ON_PAGE

    def html(self, text: str) -> Markup:
        marks = len(text) - len(text.translate(_MARKUP)) + _most_cells(text)
        if marks > min(self._left, IN_MESSAGE):
            return Markup('<div class="said">{}</div>').format(text)
        self._left -= marks
        return Markup(as_html(text))


def _most_cells(text: str) -> int:
    """More cells than its tables can have: a row has as many as the head, however little is written in it."""
    count = rows = widest = 0
    for line in text.replace("\r", "\n").split("\n"):
        if line.strip(" \t"):
            rows, widest = rows + 1, max(widest, line.count("|"))
        else:
            count, rows, widest = count + (rows * (widest + 1) if widest else 0), 0, 0
    return count + (rows * (widest + 1) if widest else 0)


def as_html(text: str) -> str:
    """Safe HTML: every tag in it is one of ours, and a link leads to http, https or mailto."""
    return str(_reader().render(text))


@cache
def _reader() -> MarkdownIt:
    reader = _Reader("commonmark", {"html": False, "linkify": False}).enable(["table", "strikethrough"])
    reader.disable(["image", "html_block", "html_inline"])
    # Each use of a reference repeats its address. A heading above a line of = reads all that follows, for each quote.
    reader.disable(["reference", "lheading"])
    reader.add_render_rule("link_open", _link)
    return reader


def _link(self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """A link of a model's leads away: it tells nobody from where."""
    tokens[index].attrSet("rel", "noreferrer nofollow")
    return str(self.renderToken(tokens, index, options, env))


class _Reader(MarkdownIt):
    def validateLink(self, url: str) -> bool:  # noqa: N802  theirs
        return url.strip().lower().startswith(("https://", "http://", "mailto:"))
