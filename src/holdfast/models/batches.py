"""Batches: many requests handed to the provider at once, answered within a day for half the price.

`Batches` is what a model may offer beside `Model`; nothing here retries, stores or interprets. The provider never says
which custom ids an open batch holds: a batch whose submit was lost is known again by its results alone.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from holdfast.models.failures import ModelFailure
from holdfast.models.protocol import Answered, Wire

MOST_REQUESTS = 100_000
"""Of one batch, as the provider limits it."""
MOST_BYTES = 256 * 1024 * 1024
"""Of the body of one submit; `upload_size` in `batch_wire` tells how large it will be."""
LASTS_US = 24 * 3600 * 1_000_000
"""What has not been processed so long after the submit expires."""
CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class BatchItem(NamedTuple):
    """One request of a batch."""

    custom_id: str
    """`[A-Za-z0-9_-]{1,64}`, unique in its batch: all that will connect a result to its request."""
    params: str
    """The request body as JSON text, without `stream`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatus:
    """A batch, as the provider speaks of it. Times are microseconds UTC, by the provider's clock."""

    id: str
    status: str
    """`in_progress`, `canceling` or `ended`."""
    created_us: int
    expires_us: int | None
    ended_us: int | None
    counts: Mapping[str, int]
    """Requests by state: processing, succeeded, errored, canceled, expired. All are processing until the batch ends."""

    @property
    def size(self) -> int:
        """How many requests it holds, in whatever state."""
        return sum(self.counts.values())

    @property
    def ended(self) -> bool:
        """Nothing will change any more, and there are results."""
        return self.status == "ended"


class BatchLine(NamedTuple):
    """What became of one request."""

    custom_id: str
    type: str
    """`succeeded`, `errored`, `canceled`, `expired`, or what the provider says next year."""
    message: Wire | None
    """Of `succeeded`: the whole message."""
    error: Wire | None
    """Of `errored`: the provider's error object, `{"type": ..., "message": ...}`."""


@runtime_checkable
class Batches(Protocol):
    """A provider that takes batches. Whatever goes wrong is a `ModelFailure`."""

    async def submit_batch(
        self, items: Sequence[BatchItem], *, call: str, total: float, answered: Callable[[Answered], None]
    ) -> BatchStatus:
        """Make a batch of these requests, within `total` seconds; `call` names the submit to a witness.

        A failure with `bought="unknown"` (no answer, a broken one, an error of the server) may have left a batch at the
        provider: look for it with `list_batches` before submitting again. After `bought="no"` there is none.
        """

    async def get_batch(self, id: str) -> BatchStatus:
        """How a batch stands. Just made, it can be `not_found` for a moment: the provider's servers differ."""

    async def list_batches(self, since_us: int) -> list[BatchStatus]:
        """Every batch of the account that was made at `since_us` or later, newest first."""

    async def cancel_batch(self, id: str) -> BatchStatus:
        """Ask that no more of a batch is processed: it ends soon, with the results of what was processed until then.

        Where it has ended already that is refused, as `bad_request`: read its results.
        """

    def batch_results(self, id: str) -> AsyncGenerator[BatchLine, None]:
        """The results of a batch that has ended, in any order, as they come in: one line is held at a time.

        A line may come twice, or not at all; one that cannot be read comes without custom id. The iteration fails with
        `cut` where the download breaks off, and `not_found` where there are no results, or none yet.
        """


def check_items(items: Sequence[BatchItem]) -> None:
    """Refuse, before anything is sent, what the provider would refuse as a whole."""
    if not 1 <= len(items) <= MOST_REQUESTS:
        raise _refused(f"a batch has between 1 and {MOST_REQUESTS:,} requests, not {len(items):,}")
    seen: set[str] = set()
    for item in items:
        if not CUSTOM_ID.fullmatch(item.custom_id):
            raise _refused(f"custom id {item.custom_id!r} does not match [A-Za-z0-9_-]{{1,64}}")
        if item.custom_id in seen:
            raise _refused(f"custom id {item.custom_id!r} is given to two requests")
        seen.add(item.custom_id)


def _refused(problem: str) -> ModelFailure:
    return ModelFailure("bad_request", f"{problem}.", bought="no")
