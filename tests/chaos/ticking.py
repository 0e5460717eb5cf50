"""An app of its own for flow control under faults: a schedule that fires every second, and a job with a narrow lane."""

from __future__ import annotations

import asyncio
import os
import time

from holdfast.app import Holdfast
from holdfast.settings import Settings
from tests.chaos.jobs import note

hf = Holdfast(settings=Settings(), embedded=False)


@hf.schedule("every 1s", name="ticks", catch_up="all")
async def tick() -> None: ...


@hf.job(name="narrow", concurrency=2)
async def narrow(witness: str) -> None:
    note(witness, f"in {time.monotonic_ns()} {os.getpid()}")
    await asyncio.sleep(0.02)
    note(witness, f"out {time.monotonic_ns()} {os.getpid()}")
