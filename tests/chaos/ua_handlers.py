"""Handlers that worker processes import."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path


async def witness(run_id: str, workspace_dir: str) -> bool:
    """Note which process handles the run; one whose id begins with "held" lasts until its gate is there."""
    folder = Path(workspace_dir)
    (folder / "pid.new").write_text(str(os.getpid()))
    (folder / "pid.new").rename(folder / "pid")
    while run_id.startswith("held") and not (folder / "gate").exists():  # noqa: ASYNC110  a file sets no event
        await asyncio.sleep(0.02)
    return not run_id.startswith("bad")


async def never(run_id: str, workspace_dir: str) -> bool:
    """A test lets another process look for it in vain."""
    return False
