"""The app of `holdfast demo`: jobs of three steps, each witnessed in a file outside the database."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from holdfast.app import Holdfast
from holdfast.settings import Settings
from holdfast.workers.context import JobContext

hf = Holdfast(settings=Settings.from_environment())

STEPS = ("fetch", "resize", "publish")
_SECONDS = 0.12


@hf.job
async def picture(ctx: JobContext, number: int, witness: str) -> str:
    """Three steps; what is stored of them survives the process that did them."""
    for step in STEPS:
        await ctx.step(step, work, witness, number, step)
    return f"picture {number} is published"


async def work(witness: str, number: int, step: str) -> str:
    await asyncio.sleep(_SECONDS)
    _append(Path(witness), f"{number} {step} {os.getpid()}\n")
    return f"{step} done"


def _append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line)
