"""Cut the code blocks out of a document: `python tools/cut_document.py DOCUMENT FOLDER`.

Each block becomes a text file of its own, named by the heading above it, and stays exactly as it is printed. The tests
in tests/facades keep blocks this way, so that they run a document's programs unedited.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

ENDINGS = {"python": "py.txt", "sql": "sql.txt"}


def blocks(text: str) -> dict[str, str]:
    """The code blocks of a page, by the names of their files; pictures are left out."""
    found: dict[str, str] = {}
    heading, seen = "", Counter[str]()
    fence = re.compile(
        r"^(?:#+ (?P<heading>[^\n]+)|```(?P<language>\w+)\n(?P<code>.*?)^```$)", re.MULTILINE | re.DOTALL
    )
    for match in fence.finditer(_without_comments(text)):
        if match["heading"]:
            heading = re.sub(r"\W+", "_", match["heading"].lower()).strip("_")
        elif match["language"] in ENDINGS:
            seen[heading] += 1
            number = f"_{seen[heading]}" if seen[heading] > 1 else ""
            found[f"{heading}{number}.{ENDINGS[match['language']]}"] = match["code"].replace("\0", "#")
    return found


def _without_comments(text: str) -> str:
    """Comments in code are no headings: their sign is another one until the blocks are cut."""
    code = re.compile(r"^```\w+\n.*?^```$", re.MULTILINE | re.DOTALL)
    return code.sub(lambda match: match[0].replace("#", "\0"), text)


def main(document: str, folder: str) -> None:
    for name, code in blocks(Path(document).read_text()).items():
        (Path(folder) / name).write_text(code)
        print(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
