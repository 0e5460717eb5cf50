"""The tasks of attempts: one for each, started at once or soon.

At once means that the handler runs up to its first wait before the call returns, which saves the loop a round for
each job. Python can do that since 3.12. Only the slots that a claim finds free are filled so: then handlers which
never wait keep the loop no longer than there are slots, as they would otherwise.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any

from holdfast.workers.holdings import Holding
from holdfast.workers.slots import Slots

Attempt = Coroutine[Any, Any, None]

_NAME = "attempt"  # the same for all: a name for each job would be made for nobody


class AttemptTasks:
    def __init__(self, attempt: Callable[[Holding], Attempt]) -> None:
        self._attempt = attempt
        self._filling = False
        self._around = Context()

    def claimed(self, slots: Slots) -> None:
        """Start what was just claimed. All of it is held by now, and so renewed: a handler may keep the loop busy."""
        self._around = copy_context()
        self._filling = True
        try:
            for _ in range(slots.free):
                if (holding := slots.next()) is None:
                    break
                holding.task = start_at_once(self._attempt(holding))
        finally:
            self._filling = False
        self._start(slots)

    def freed(self, slots: Slots) -> None:
        """An attempt has ended: start the next. Nothing of what its handler left in its context continues with that."""
        if slots.ready and not self._filling:
            self._around.copy().run(self._start, slots)

    def _start(self, slots: Slots) -> None:
        while (holding := slots.next()) is not None:
            holding.task = start_soon(self._attempt(holding))


def start_soon(attempt: Attempt) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(attempt, name=_NAME)


if sys.version_info >= (3, 12):

    def start_at_once(attempt: Attempt) -> asyncio.Task[None]:
        loop = asyncio.get_running_loop()
        if loop.get_task_factory() is not None:  # its owner wants to make every task
            return start_soon(attempt)
        return asyncio.Task(attempt, loop=loop, name=_NAME, eager_start=True)

else:
    start_at_once = start_soon
