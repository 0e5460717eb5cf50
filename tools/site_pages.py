"""What the site has other than the pages in docs/: mkdocs calls these functions while it builds.

Nothing on the site may come from another host, so that it can be read without a network.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig

_DIAGRAM = re.compile(r"^```mermaid\n.*?^```\n+", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"^<!--.*?-->\n+", re.DOTALL | re.MULTILINE)
_ELSEWHERE = "https://unpkg.com/"


def on_page_markdown(markdown: str, **_: object) -> str:
    """Leave out what only a code host draws, and what only the tests of the pages read.

    The theme would load the program that draws mermaid diagrams from a server. Each of ours has its table beside it.
    """
    return _COMMENT.sub("", _DIAGRAM.sub("", markdown))


def on_post_build(config: MkDocsConfig, **_: object) -> None:
    """Take the addresses from which the theme loads what it lacks (mermaid, a polyfill) out of its script."""
    for script in Path(config.site_dir).rglob("*.js"):
        text = script.read_text(encoding="utf-8")
        if _ELSEWHERE in text:
            script.write_text(text.replace(_ELSEWHERE, ""), encoding="utf-8")
