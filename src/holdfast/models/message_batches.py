"""The Message Batches API, over an HTTP client that somebody else knows.

A submit that failed before its last byte left us is surely none. After that only a clean refusal says so; whatever else
happens, the provider may have the batch.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

from holdfast.models.batch_wire import Upload, read_lines, status_of
from holdfast.models.batches import BatchItem, BatchLine, BatchStatus, check_items
from holdfast.models.failures import Bought, ModelFailure
from holdfast.models.protocol import Answered

_PATH = "/v1/messages/batches"
_PAGE = 100
_ASKING = 60.0  # seconds for an answer about a batch
_IDLE = 120.0  # seconds without a byte of the results


class MessageBatches(ABC):
    """`Batches`, for who can send a request and read its answer."""

    @abstractmethod
    async def _ask(
        self,
        method: str,
        path: str,
        *,
        total: float,
        query: Mapping[str, object] | None = None,
        upload: Upload | None = None,
        call: str = "",
        answered: Callable[[Answered], None] | None = None,
    ) -> bytes:
        """The whole body of the answer; `ModelFailure` for every other."""

    @abstractmethod
    def _download(self, path: str, idle: float) -> AsyncGenerator[bytes, None]:
        """The body of the answer as it comes; `ModelFailure("cut")` if it ends before it is whole."""

    async def submit_batch(
        self, items: Sequence[BatchItem], *, call: str, total: float, answered: Callable[[Answered], None]
    ) -> BatchStatus:
        check_items(items)
        upload = Upload(items)
        try:
            answer = await self._ask("POST", _PATH, total=total, upload=upload, call=call, answered=answered)
        except ModelFailure as failure:
            if not upload.handed_over:
                failure.bought = "no"
            raise
        return status_of(_decoded(answer, "unknown"), "unknown")

    async def get_batch(self, id: str) -> BatchStatus:
        return status_of(await self._about("GET", f"{_PATH}/{quote(id, safe='')}"))

    async def list_batches(self, since_us: int) -> list[BatchStatus]:
        found: list[BatchStatus] = []
        query: dict[str, object] = {"limit": _PAGE}
        while True:
            page = await self._about("GET", _PATH, query)
            batches = [status_of(each) for each in _listed(page)]
            found += [batch for batch in batches if batch.created_us >= since_us]
            if not batches or not page.get("has_more") or batches[-1].created_us < since_us:
                return found
            if query.get("after_id") == batches[-1].id:
                raise ModelFailure("malformed", f"two pages of batches end in {batches[-1].id}.", bought="no")
            query["after_id"] = batches[-1].id

    async def cancel_batch(self, id: str) -> BatchStatus:
        return status_of(await self._about("POST", f"{_PATH}/{quote(id, safe='')}/cancel"))

    async def batch_results(self, id: str) -> AsyncGenerator[BatchLine, None]:
        try:
            async with (
                aclosing(self._download(f"{_PATH}/{quote(id, safe='')}/results", _IDLE)) as chunks,
                aclosing(read_lines(chunks)) as lines,
            ):
                async for line in lines:
                    yield line
        except ModelFailure as failure:
            failure.bought = "no"
            raise

    async def _about(self, method: str, path: str, query: Mapping[str, object] | None = None) -> dict[str, Any]:
        """An object that says how things are. Asking buys nothing, however it fails."""
        try:
            return _decoded(await self._ask(method, path, total=_ASKING, query=query), "no")
        except ModelFailure as failure:
            failure.bought = "no"
            raise


def _decoded(answer: bytes, bought: Bought) -> dict[str, Any]:
    try:
        value = json.loads(answer.decode())
    except (ValueError, RecursionError) as problem:
        raise ModelFailure("malformed", f"the answer is not JSON: {answer[:200]!r}.", bought=bought) from problem
    if not isinstance(value, dict):
        raise ModelFailure("malformed", f"the answer is not an object: {answer[:200]!r}.", bought=bought)
    return value


def _listed(page: dict[str, Any]) -> list[Any]:
    data = page.get("data")
    if not isinstance(data, list):
        raise ModelFailure("malformed", "the list of batches has no data.", bought="no")
    return data
