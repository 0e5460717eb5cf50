"""The tools of a worker: names that plans may use, each resolved to one absolute path when the worker starts."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import UsageError

CARD_CAP = 65_536
# What a plan may use if the owner of the worker names nothing. Each turns what it reads into what it writes, and has no
# option or argument that runs a program or writes a file. `sort` has both and `uniq IN OUT` writes: they are missing,
# as are `sed`, `awk`, `find`, `xargs`, `tar`, `tee`, `split`. base64 has -o FILE on other systems than Linux.
TEXT_TOOLS = (
    *(["base64"] if sys.platform == "linux" else []), "cat", "cksum", "column", "comm", "cut", "echo", "expand", "fmt",
    "fold", "grep", "head", "join", "jq", "md5sum", "nl", "od", "paste", "printf", "rev", "seq", "sha1sum", "sha256sum",
    "sha512sum", "tac", "tail", "tr", "unexpand", "wc",
)  # fmt: skip


class NotAllowed(UsageError):
    """The plan names a command that this worker does not have; nothing of it was run."""


@dataclass(frozen=True, slots=True)
class UnixTools:
    """`cards` are what agentic units say of themselves when they are called with --describe."""

    paths: Mapping[str, str]
    units: tuple[str, ...] = ()
    cards: Mapping[str, object] = field(default_factory=dict)

    @property
    def tools(self) -> list[str]:
        return [name for name in self.paths if name not in self.units]

    def path_of(self, command: str) -> str:
        path = self.paths.get(command)
        if path is None:
            raise NotAllowed(f"{command[:64]!r} is not a tool of this worker")
        return path


def find_tools(names: Iterable[str], *, search: str | None = None) -> dict[str, str]:
    """Where each tool is. `search` is a PATH; default: the one of this process."""
    found: dict[str, str] = {}
    for name in names:
        if not name or "/" in name:
            raise UsageError(f"a tool is given by its name, not by a path: {name!r}.")
        path = shutil.which(name, path=search)
        if path is None:
            raise UsageError(f"there is no tool {name!r} on PATH.")
        found[name] = str(Path(path).absolute())
    return found


def find_text_tools(*, search: str | None = None) -> dict[str, str]:
    """Those of the text tools that are there, for a worker whose owner names none. It may have no sandbox."""
    return find_tools([name for name in TEXT_TOOLS if shutil.which(name, path=search)], search=search)


def read_card(name: str, output: bytes) -> object:
    """The description that a unit has printed."""
    try:
        card = json.loads(output[:CARD_CAP].decode())
    except (ValueError, RecursionError):
        raise UsageError(f"{name} --describe does not print JSON, so it is not an agentic unit.") from None
    if not isinstance(card, dict) or not isinstance(card.get("name"), str):
        raise UsageError(f"{name} --describe prints no card with a name.")
    return card
