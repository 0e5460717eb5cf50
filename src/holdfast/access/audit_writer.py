"""Rows of the audit that are written at the same time share a commit.

Each row has a hash over the one before it, so they are written one after the other, and each waited for the commit of
the one before. Now one write is under way; rows that come meanwhile travel together in the next. Who writes a row still
waits until it is stored: an intent before anything is done, an outcome before it is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from holdfast.kernel.bounds import unbound

AuditValues = Mapping[str, Any]
Store = Callable[[Sequence[AuditValues]], Awaitable[Sequence[int]]]

_TOGETHER = 200


class AuditCall(NamedTuple):
    row: AuditValues
    number: asyncio.Future[int]


class AuditWriter:
    def __init__(self, store: Store) -> None:
        """`store` writes rows in one transaction, and returns their numbers."""
        self._store = store
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, list[AuditCall]] = WeakKeyDictionary()
        self._writing: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = WeakKeyDictionary()

    async def write(self, row: AuditValues) -> int:
        """Write a row; returns its number. A caller that is cancelled has written it nevertheless, or will have."""
        loop = asyncio.get_running_loop()
        call = AuditCall(row, loop.create_future())
        self._waiting.setdefault(loop, []).append(call)
        if loop not in self._writing:
            with unbound():  # what a tenant does is written where tenants cannot read
                self._writing[loop] = loop.create_task(self._write_all(loop))
        return await call.number

    async def _write_all(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while group := self._waiting[loop][:_TOGETHER]:
                del self._waiting[loop][:_TOGETHER]
                await self._write_some(group)
        finally:
            del self._writing[loop]
            for call in self._waiting.pop(loop, ()):
                call.number.cancel()  # the loop is being closed

    async def _write_some(self, group: Sequence[AuditCall]) -> None:
        try:
            numbers = await self._store([call.row for call in group])
        except Exception as problem:  # noqa: BLE001  the waiting callers must get the error, whatever it is
            for call in group:
                if not call.number.done():
                    call.number.set_exception(problem)
            return
        finally:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                for call in group:
                    call.number.cancel()
        for call, number in zip(group, numbers, strict=True):
            if not call.number.done():
                call.number.set_result(number)
