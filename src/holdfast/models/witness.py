"""The witness: one line of JSON for each call when it arrives and when it ends, independent of what the callers store.

A line is written by one `write` to a file opened for appending, so that several processes can share the file and a
crash loses no line that began before it.
"""

from __future__ import annotations

import json
import os
from collections import deque
from pathlib import Path
from typing import Any

_REMEMBERED = 100_000


class Witness:
    """Lines in memory, the latest hundred thousand, and in a file if there is one."""

    def __init__(self, path: Path | None = None) -> None:
        self.lines: deque[dict[str, Any]] = deque(maxlen=_REMEMBERED)
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, **line: Any) -> None:
        self.lines.append(line)
        if self._file is not None:
            os.write(self._file, json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read_witness(path: Path) -> list[dict[str, Any]]:
    """The lines of a witness file; none if nobody has called yet."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
