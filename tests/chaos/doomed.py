"""A worker that kills itself at a failpoint: `python -m tests.chaos.doomed URL OPERATION WHEN NUMBER`.

It dies by SIGKILL right before or right after its NUMBERth call of an operation is committed: no `finally` runs, no
connection is closed. The switch is here, not in the product.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.app import core_of
from tests.chaos.jobs import hf
from tests.support.apps import settings_with


def arm(transact: Callable[..., Awaitable[Any]], name: str, when: str, number: int) -> Callable[..., Awaitable[Any]]:
    count = 0

    async def doomed(operation: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        if operation.__name__ != name:
            return await transact(operation, *args, **kwargs)
        if when == "before":
            count += 1
            if count == number:
                die()
        answer = await transact(operation, *args, **kwargs)
        if when == "after" and (answer or name != "claim"):  # a claim of nothing is none
            count += 1
            if count == number:
                die()
        return answer

    return doomed


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(url: str, name: str, when: str, number: int) -> None:
    hf.settings = settings_with(url=url, concurrency=3, prefetch=0, rescue_backoff="50ms")
    database = core_of(hf).runtime().database
    armed: Any = arm(database.transact, name, when, number)
    database.transact = armed  # type: ignore[method-assign]
    await hf.work()


if __name__ == "__main__":
    logging.basicConfig(level="INFO")
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
