"""Handlers in processes of their own, which a timeout or a cancel really stops."""

from __future__ import annotations

from typing import Any

from holdfast.workers.context import JobContext
from holdfast.workers.definitions import Definition


class ProcessPool:
    """Warm child processes, one job each at a time."""

    def __init__(self, most: int) -> None:
        self._most = most

    async def run(self, definition: Definition, context: JobContext, payload: Any) -> Any:
        raise NotImplementedError

    async def close(self) -> None: ...
