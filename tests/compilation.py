"""The processes of xdist compile the tests together: each begins elsewhere, and finds what the others have compiled.

After a fresh checkout each would otherwise compile all of them, at the same time and in the same order.
"""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path

import pytest


def share_compilation(config: pytest.Config) -> None:
    """Import the tests that will be collected. Whatever is wrong with one of them, the collection says."""
    given: dict[str, object] | None = getattr(config, "workerinput", None)
    if given is None:
        return
    number, count = int(str(given["workerid"]).removeprefix("gw")), int(str(given["workercount"]))
    files = [file for folder in config.args for file in sorted(config.rootpath.joinpath(folder).rglob("test_*.py"))]
    for file in beginning_elsewhere(files, number, count):
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(".".join(file.relative_to(config.rootpath).with_suffix("").parts))


def beginning_elsewhere(files: list[Path], number: int, count: int) -> list[Path]:
    """All of them, the first being the first of this process's share."""
    start = len(files) * number // count
    return files[start:] + files[:start]
