"""The README as a package index shows it: hatchling calls this while it builds the package.

An index has none of our files, and the project has no address yet. So a link to a file becomes its text, a picture is
left out, and so are the comments that the tests read. Links to the web stay.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_COMMENT = re.compile(r"^<!--.*?-->\n+", re.DOTALL | re.MULTILINE)
_PICTURE = re.compile(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n+", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:)[^)]*\)")
_BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def plain(readme: str) -> str:
    """Without comments, and without what leads to a file; the blocks of code stay as they are."""
    readme = _PICTURE.sub("", _COMMENT.sub("", readme))
    text, parts = 0, []
    for block in _BLOCK.finditer(readme):
        parts += [_LINK.sub(r"\1", readme[text : block.start()]), block[0]]
        text = block.end()
    return "".join([*parts, _LINK.sub(r"\1", readme[text:])])


class IndexReadme(MetadataHookInterface):
    """The field `readme` of the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = plain((Path(self.root) / "README.md").read_text(encoding="utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
