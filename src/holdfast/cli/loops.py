"""The event loop of a worker process: uvloop where it is installed, else asyncio's own.

Only `holdfast worker` chooses. A worker in somebody's program runs on the loop of that program.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import ModuleType

from holdfast.errors import MissingExtra

log = logging.getLogger("holdfast.worker")

LOOPS = ("auto", "asyncio", "uvloop")


def loop_factory(wanted: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the wanted loop, one of `LOOPS`; None is asyncio's own. `MissingExtra` when it is not installed."""
    uvloop = None if wanted == "asyncio" else _uvloop()
    if uvloop is None:
        if wanted == "uvloop":
            raise MissingExtra("fast", "--loop uvloop")
        log.info("this worker runs on asyncio's own event loop")
        return None
    log.info("this worker runs on uvloop %s", uvloop.__version__)
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _uvloop() -> ModuleType | None:
    try:
        import uvloop
    except ImportError:  # also one that is installed for another Python: a worker works without it
        return None
    found: ModuleType = uvloop
    return found
