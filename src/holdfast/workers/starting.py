"""Starting attempts: the task of each, soon or at once.

At once means that the handler runs up to its first wait before the call returns, which saves the loop a round for
each job. Python has that since 3.12. Only what was just claimed is started so: an attempt that ends starts the next
one soon, so that handlers which never wait cannot keep the loop for longer than its slots allow.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

Start = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

_NAME = "attempt"  # the same for all: a name for each job would be made for nobody


def start_soon(attempt: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(attempt, name=_NAME)


if sys.version_info >= (3, 12):

    def start_at_once(attempt: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        loop = asyncio.get_running_loop()
        if loop.get_task_factory() is not None:  # whoever has one wants to make every task
            return start_soon(attempt)
        return asyncio.Task(attempt, loop=loop, name=_NAME, eager_start=True)

else:
    start_at_once = start_soon
