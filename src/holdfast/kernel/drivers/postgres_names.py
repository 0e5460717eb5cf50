"""What a server shows of each connection in `pg_stat_activity`: who opened it, and for what."""

from __future__ import annotations

import sys
from pathlib import Path

_LONGEST = 63  # bytes; the server cuts what is longer, and the end is what tells connections apart


def named(owner: str, use: str) -> str:
    """`holdfast <owner> <use>`, such as `holdfast web-1 heartbeat`, of at most 63 bytes and plain characters."""
    plain = owner.encode("ascii", "replace").decode()
    printable = "".join(sign if sign.isprintable() else "?" for sign in plain)
    return f"holdfast {printable[: _LONGEST - len('holdfast  ') - len(use)]} {use}"


def program() -> str:
    """This process, as long as no worker has introduced itself: the program, or the command of ours that runs."""
    path = Path(sys.argv[0] if sys.argv else "")
    name = path.parent.name if path.stem == "__main__" else path.name
    if name == "holdfast" and len(sys.argv) > 1 and sys.argv[1].isalpha():
        return sys.argv[1]
    return name or "python"
