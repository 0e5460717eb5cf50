"""Batches of the simulated provider: taken, lost, slow, ended in every way; and the witness of who made which.

As the real one it shows no custom ids before a batch has ended. What it answers follows from the conversation alone.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from holdfast.models.batches import BatchItem, BatchLine, BatchStatus
from holdfast.models.failures import ModelFailure
from holdfast.models.fold import ReplyFold
from holdfast.models.protocol import ResponseHead, Wire
from holdfast.models.wire import to_events
from tests.simulation.store import Store

FATES: Final = ("batch refused", "batch lost before", "batch lost after", "batch slow")
ENDINGS: Final = ("expired", "errored", "canceled", "missing", "duplicated")


@dataclass
class SimBatch:
    id: str
    made_us: int
    ends_us: int
    items: Sequence[BatchItem]
    fates: dict[str, str]
    cancelled: bool = False
    late: bool = False  # made for a worker that was overtaken
    billed: set[str] = field(default_factory=set)


class BatchBay:
    """Every batch that was ever taken."""

    def __init__(self, store: Store, plan: Callable[[Wire], Any], check: Callable[[str, Wire], None]) -> None:
        self.batches: dict[str, SimBatch] = {}
        self.bought: Counter[tuple[str, int]] = Counter()
        self.usage: dict[str, Wire] = {}  # by custom id
        self._store = store
        self._plan = plan
        self._check = check
        self._chance = Random(f"batches of {store.options.seed}")
        odds = self._chance
        self._odds = {fate: odds.uniform(0.03, 0.18) if odds.random() < 0.6 else 0.0 for fate in (*FATES, *ENDINGS)}

    def _happens(self, fate: str) -> bool:
        if self._store.healed or self._chance.random() >= self._odds[fate]:
            return False
        self._store.rare.hit(f"provider: {fate}")
        return True

    async def submit(
        self, items: Sequence[BatchItem], answered: Callable[[ResponseHead], None], late: Callable[[], bool]
    ) -> BatchStatus:
        await asyncio.sleep(self._chance.random())
        if self._happens("batch refused"):
            raise ModelFailure("overloaded", "come back later", status=529, bought="no")
        if self._happens("batch lost before"):
            raise ModelFailure("cut", "the connection was lost", bought="unknown")
        batch = self._make(items)
        batch.late = late()
        if self._happens("batch slow"):
            await asyncio.sleep(
                self._store.options.settings.lease_ttl.total_seconds() * self._chance.choice((0.5, 1.5))
            )
        if self._happens("batch lost after"):
            raise ModelFailure("cut", "the connection was lost", bought="unknown")
        answered(ResponseHead(request_id=f"req {batch.id}"))
        return self._status(batch)

    def _make(self, items: Sequence[BatchItem]) -> SimBatch:
        now = self._store.now()
        lasts = self._chance.choice((0.0, 2.0, 10.0, 20.0))
        id = f"msgbatch_{len(self.batches) + 1}"
        fates = {item.custom_id: self._ending() for item in items}
        for item in items:
            self._check(item.custom_id, json.loads(item.params))
        batch = self.batches[id] = SimBatch(id, now, now + round(lasts * 1e6), items, fates)
        return batch

    def _ending(self) -> str:
        return next((fate for fate in ENDINGS if self._happens(fate)), "succeeded")

    def _status(self, batch: SimBatch) -> BatchStatus:
        ended = batch.cancelled or self._store.now() >= batch.ends_us
        counts = {"processing": 0 if ended else len(batch.items), "succeeded": len(batch.items) if ended else 0}
        return BatchStatus(
            id=batch.id,
            status="ended" if ended else "in_progress",
            created_us=batch.made_us,
            expires_us=None,
            ended_us=batch.ends_us if ended else None,
            counts=counts,
        )

    def accountable(self) -> list[list[str]]:
        """For each batch that came in time, its id and those of the late ones with its requests.

        Nobody may be left who can tell of a late one. If it is found among the provider's, its results are those of the
        batch in its place: whoever looks takes one of the two.
        """
        late: defaultdict[frozenset[str], list[str]] = defaultdict(list)
        for batch in self.batches.values():
            if batch.late:
                late[frozenset(batch.fates)].append(batch.id)
        return [[batch.id, *late.get(frozenset(batch.fates), ())] for batch in self.batches.values() if not batch.late]

    async def get(self, id: str) -> BatchStatus:
        await asyncio.sleep(0.1 * self._chance.random())
        return self._status(self.batches[id])

    async def listed(self, since_us: int) -> list[BatchStatus]:
        await asyncio.sleep(0.1 * self._chance.random())
        found = [batch for batch in self.batches.values() if batch.made_us >= since_us]
        return [self._status(batch) for batch in reversed(found)]

    async def cancel(self, id: str) -> BatchStatus:
        batch = self.batches[id]
        if self._store.now() < batch.ends_us:
            batch.cancelled = True
            batch.fates = dict.fromkeys(batch.fates, "canceled")
        return self._status(batch)

    async def results(self, id: str) -> AsyncGenerator[BatchLine, None]:
        batch = self.batches[id]
        lines = [line for item in batch.items for line in self._lines(batch, item)]
        self._chance.shuffle(lines)
        for line in lines:
            if self._chance.random() < 0.2:
                await asyncio.sleep(0.05 * self._chance.random())
            yield line

    def _lines(self, batch: SimBatch, item: BatchItem) -> list[BatchLine]:
        match batch.fates[item.custom_id]:
            case "missing":
                return []
            case "errored":
                error = {"type": "api_error", "message": "internal"}
                return [BatchLine(item.custom_id, "errored", None, error)]
            case ("expired" | "canceled") as type:
                return [BatchLine(item.custom_id, type, None, None)]
            case fate:
                line = BatchLine(item.custom_id, "succeeded", self._message(batch, item), None)
                return [line, line] if fate == "duplicated" else [line]

    def _message(self, batch: SimBatch, item: BatchItem) -> Wire:
        body = json.loads(item.params)
        run, turn, attempt = item.custom_id.rsplit("_", 2)
        folding = ReplyFold()
        for event in to_events(self._plan(body), body, call=f"{run}/{turn}/{attempt}"):
            folding.feed(event)
        reply = folding.reply()
        if item.custom_id not in batch.billed:
            batch.billed.add(item.custom_id)
            self.bought[run, int(turn)] += 1
        self.usage[item.custom_id] = reply.usage
        return {
            "id": reply.id,
            "model": reply.model,
            "content": reply.blocks,
            "stop_reason": reply.stop_reason,
            "stop_details": reply.stop_details,
            "usage": reply.usage,
        }
