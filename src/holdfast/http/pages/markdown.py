"""Markdown: what a model wrote, as HTML. Raw HTML and images in it are text. Pure."""

from __future__ import annotations

from functools import cache

from markdown_it import MarkdownIt


def as_html(text: str) -> str:
    """Safe HTML: every tag in it is one of ours, and a link leads to http, https or mailto."""
    return str(_reader().render(text))


@cache
def _reader() -> MarkdownIt:
    reader = _Reader("commonmark", {"html": False, "linkify": False}).enable(["table", "strikethrough"])
    return reader.disable(["image", "html_block", "html_inline"])


class _Reader(MarkdownIt):
    def validateLink(self, url: str) -> bool:  # noqa: N802  theirs
        return url.strip().lower().startswith(("https://", "http://", "mailto:"))
