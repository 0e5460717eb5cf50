"""Markdown: what a model wrote, as HTML. Raw HTML and images in it are text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token


def as_html(text: str) -> str:
    """Safe HTML: every tag in it is one of ours, and a link leads to http, https or mailto."""
    return str(_reader().render(text))


@cache
def _reader() -> MarkdownIt:
    reader = _Reader("commonmark", {"html": False, "linkify": False}).enable(["table", "strikethrough"])
    reader.disable(["image", "html_block", "html_inline"])
    reader.add_render_rule("link_open", _link)
    return reader


def _link(self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """A link of a model's leads away: it tells nobody from where."""
    tokens[index].attrSet("rel", "noreferrer nofollow")
    return str(self.renderToken(tokens, index, options, env))


class _Reader(MarkdownIt):
    def validateLink(self, url: str) -> bool:  # noqa: N802  theirs
        return url.strip().lower().startswith(("https://", "http://", "mailto:"))
