"""Batches as a program sees them: `hf.batches`."""

from __future__ import annotations

from holdfast import validation
from holdfast.agents.api.lists import Collection, newest_first
from holdfast.agents.batches import steps
from holdfast.agents.states import BATCH
from holdfast.agents.values.batches import BatchRecord, RequestRecord, batch_of, request_of
from holdfast.errors import NotFound
from holdfast.values.page import Page, page_of, place


class BatchesList(Collection):
    """`hf.batches`: what goes to the provider together."""

    async def get(self, id: str) -> BatchRecord:
        found = await self._transact(steps.find_batch, id)
        if found is None:
            raise NotFound(f"there is no batch {id} in this database.")
        return batch_of(found)

    async def list(self, *, state: str | None = None, after: str | None = None, limit: int = 100) -> Page[BatchRecord]:
        """Batches, the newest first."""
        validation.one_of(state, "state", BATCH.names)
        before, most = newest_first(after), validation.page(limit)
        found = await self._transact(steps.list_batches, state=state, before=before, limit=most)
        return page_of(found, limit, batch_of, lambda row: (row.created_at, row.id))

    async def requests(self, id: str, *, after: str | None = None, limit: int = 1_000) -> Page[RequestRecord]:
        """The turns in a batch, and what became of each."""
        await self.get(id)
        (last,) = ("",) if after is None else place(after, str)
        found = await self._transact(steps.batch_requests, id, after=last, limit=validation.page(limit))
        return page_of(found, limit, request_of, lambda row: (row.custom_id,))
