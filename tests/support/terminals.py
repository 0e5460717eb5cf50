"""The `holdfast` command on a terminal, which is where it shows more than elsewhere."""

from __future__ import annotations

import contextlib
import os
import pty
import re
from collections.abc import Mapping
from pathlib import Path

from tests.support.commands import PATIENCE, start

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def terminal(*words: str, cwd: Path, env: Mapping[str, str]) -> str:
    """What a command that ends by itself has shown, without colours."""
    ours, its = pty.openpty()
    with start("-m", "holdfast", *words, cwd=cwd, env=env, stdin=its, stdout=its, stderr=its) as process:
        os.close(its)
        shown = b""
        with contextlib.suppress(OSError):  # Linux reports the end of a terminal as an error
            while read := os.read(ours, 65_536):
                shown += read
        os.close(ours)
        process.wait(PATIENCE)
    return _ESCAPES.sub("", shown.decode()).replace("\r\n", "\n")
