"""Batches as pages: what went to the provider together, what it says, and what became of each turn."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.agents.states import BatchState
from holdfast.agents.values.batches import BatchRecord, RequestRecord
from holdfast.http.api.fleet import list_batches, list_requests, show_batch
from holdfast.http.api.paging import Paged
from holdfast.http.api.seen import Sight
from holdfast.http.pages.filters import Tab
from holdfast.http.pages.routes import Pages
from holdfast.values import Page

pages = Pages()

TABS = (Tab("", "All"), *(Tab(each.value, each.value.capitalize()) for each in BatchState))


@dataclass(frozen=True, slots=True)
class BatchesView:
    batches: Page[BatchRecord]
    tab_items: tuple[Tab, ...]
    state: str


@dataclass(frozen=True, slots=True)
class BatchView:
    batch: BatchRecord
    requests: Page[RequestRecord]


@pages.page("/batches", "batches.html")
async def show_batches(seen: Sight, page: Paged, state: str | None = None) -> BatchesView:
    return BatchesView(await list_batches(seen, page, state=state or None), TABS, state or "")


@pages.page("/batches/{id}", "batch.html")
async def show_one_batch(seen: Sight, id: str, page: Paged) -> BatchView:
    return BatchView(await show_batch(seen, id), await list_requests(seen, id, page))
