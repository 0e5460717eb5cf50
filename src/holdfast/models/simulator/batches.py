"""The simulated provider's batches: made, ended by the clock, listed newest first, each to its own account.

Nothing runs in the background. A batch ends at its time, and what became of its requests is worked out, and billed,
when the provider is next looked at, in whatever way; nobody can tell the difference.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.clock import Clock
from holdfast.models.batches import LASTS_US, rfc3339
from holdfast.models.protocol import Wire
from holdfast.models.simulator.http import RequestRefused
from holdfast.models.spool import Witness

TYPES = ("processing", "succeeded", "errored", "canceled", "expired")


@dataclass(slots=True)
class BatchedRequest:
    """One request of a batch."""

    number: int  # among all requests of all batches, from 1
    custom_id: str
    params: Any
    result: Wire | None = None


@dataclass(slots=True, kw_only=True)
class SimulatedBatch:
    id: str
    account: str
    call: str
    requests: list[BatchedRequest]
    created_us: int
    done_us: int
    """When all of it will have been processed, if nobody interferes."""
    do: Mapping[str, Any]
    """What the rule says that was played when it was made."""
    cancel_us: int | None = None
    ends_us: int = field(init=False)
    ended: bool = False

    def __post_init__(self) -> None:
        self.ends_us = min(self.done_us, self.expires_us)

    @property
    def expires_us(self) -> int:
        return self.created_us + LASTS_US

    @property
    def status(self) -> str:
        if self.ended:
            return "ended"
        return "in_progress" if self.cancel_us is None else "canceling"

    def processed(self) -> int:
        """How many of the requests, in their order, there was time for until it was canceled or expired."""
        until = min(self.expires_us, self.done_us if self.cancel_us is None else self.cancel_us)
        if until >= self.done_us:
            return len(self.requests)
        return len(self.requests) * (until - self.created_us) // (self.done_us - self.created_us)

    def types(self) -> dict[str, str]:
        """What became of each request, by custom id."""
        return {asked.custom_id: asked.result["type"] if asked.result else "processing" for asked in self.requests}

    def wire(self, host: str) -> Wire:
        """The batch, as everybody may see it: without its custom ids."""
        counts = Counter(self.types().values())
        return {
            "id": self.id,
            "type": "message_batch",
            "processing_status": self.status,
            "request_counts": {type: counts[type] for type in TYPES},
            "created_at": rfc3339(self.created_us),
            "expires_at": rfc3339(self.expires_us),
            "ended_at": rfc3339(self.ends_us) if self.ended else None,
            "cancel_initiated_at": rfc3339(self.cancel_us),
            "archived_at": None,
            "results_url": f"http://{host}/v1/messages/batches/{self.id}/results" if self.ended else None,
        }

    def inside(self) -> Wire:
        """The batch, as a test may see it."""
        known = {"id": self.id, "account": self.account, "call": self.call, "processing_status": self.status}
        times = {"created_us": self.created_us, "ends_us": self.ends_us, "cancel_us": self.cancel_us}
        return {**known, **times, "requests": self.types()}


Answer = Callable[[SimulatedBatch, BatchedRequest], Wire]
"""The result of a request that was processed."""


class Bay:
    """All batches of a provider."""

    def __init__(self, *, seed: int, clock: Clock, witness: Witness, seconds: float, answer: Answer) -> None:
        self._seed, self._clock, self._witness, self._answer = seed, clock, witness, answer
        self._seconds = seconds
        self._batches: list[SimulatedBatch] = []
        self._made = self._requests = 0

    def make(
        self, account: str, call: str, requests: Sequence[tuple[str, Any]], do: Mapping[str, Any]
    ) -> SimulatedBatch:
        now = self._clock.wall_us()
        self._made += 1
        asked = [BatchedRequest(self._requests + n, id, params) for n, (id, params) in enumerate(requests, 1)]
        self._requests += len(asked)
        batch = SimulatedBatch(
            id=f"msgbatch_{hashlib.sha256(f'{self._seed}/batch/{self._made}'.encode()).hexdigest()[:24]}",
            account=account,
            call=call,
            requests=asked,
            created_us=now,
            done_us=now + round(do.get("slow_batch", self._seconds) * 1_000_000),
            do=do,
        )
        self._batches.append(batch)
        self._witness.write(event="batch", at=now, batch=batch.id, size=len(asked), call=call)
        return batch

    def settle(self) -> None:
        """End the batches whose time is up."""
        now = self._clock.wall_us()
        for batch in self._batches:
            if not batch.ended and now >= batch.ends_us:
                self._end(batch)

    def _end(self, batch: SimulatedBatch) -> None:
        batch.ended = True
        processed = batch.processed()
        left = "expired" if batch.cancel_us is None else "canceled"
        for at, asked in enumerate(batch.requests):
            asked.result = self._answer(batch, asked) if at < processed else {"type": left}
            asked.params = None
            if asked.result["type"] == "succeeded":
                self._bill(batch, asked.custom_id, asked.result["message"])

    def _bill(self, batch: SimulatedBatch, custom_id: str, message: Wire) -> None:
        bill = {"usage": message["usage"], "model": message["model"], "tier": "batch"}
        self._witness.write(event="billed", at=batch.ends_us, call=custom_id, batch=batch.id, **bill)

    def find(self, account: str, id: str) -> SimulatedBatch:
        for batch in self._batches:
            if (batch.id, batch.account) == (id, account):
                return batch
        raise RequestRefused(f"Message batch {id} not found", status=404, type="not_found_error")

    def page(
        self, account: str, *, limit: int, after: str | None, before: str | None
    ) -> tuple[list[SimulatedBatch], bool]:
        """Batches of an account, newest first, and whether there are more in the direction that was asked for."""
        mine = [batch for batch in reversed(self._batches) if batch.account == account]
        ids = [batch.id for batch in mine]
        for cursor in (after, before):
            if cursor is not None and cursor not in ids:
                raise RequestRefused(f"Message batch {cursor} not found")
        if before is not None:
            newer = mine[: ids.index(before)]
            return newer[-limit:], len(newer) > limit
        older = mine[0 if after is None else ids.index(after) + 1 :]
        return older[:limit], len(older) > limit

    def cancel(self, batch: SimulatedBatch, seconds: float) -> None:
        if batch.ended:
            raise RequestRefused(f"Message batch {batch.id} has already ended and cannot be canceled")
        if batch.cancel_us is None:
            batch.cancel_us = self._clock.wall_us()
            batch.ends_us = batch.cancel_us + round(seconds * 1_000_000)

    def delete(self, batch: SimulatedBatch) -> None:
        if not batch.ended:
            raise RequestRefused(f"Message batch {batch.id} is still processing: cancel it first")
        self._batches.remove(batch)

    def inside(self) -> list[Wire]:
        """Every batch of every account, with what became of its requests."""
        return [batch.inside() for batch in self._batches]
