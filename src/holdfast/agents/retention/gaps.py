"""Gaps: a reader of pruned events gets a notice, and never just skips them.

Events of a run are numbered without gap, so a number that is missing was pruned. The public topics have no such
numbers: for them it is stored how far pruning came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.agents.retention.statements import PruningSql
from holdfast.agents.rows import EventRow
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, reading

PRUNED = "events_pruned"
_TOPICS = "topics"

Place = tuple[int, int, int]
"""The epoch, the transaction and the place of an event of a public topic."""


def missing(run: str, first: int, last: int, at: int = 0) -> EventRow:
    """What stands for events that were pruned; its number is that of the last of them."""
    data = codec.encode({"first": first, "last": last}, what="an event", cap=1_000)
    return EventRow(run, last, at, PRUNED, data)


def with_gaps(run: str, rows: Sequence[EventRow], after: int, last: int | None) -> Iterator[EventRow]:
    """The events of a run after one number, with a word for those that are missing; `last` of a run that has ended."""
    for row in rows:
        if row.seq > after + 1:
            yield missing(run, after + 1, row.seq - 1, row.at)
        yield row
        after = row.seq
    if last is not None and after < last:
        yield missing(run, after + 1, last)


async def raise_horizon(tx: Transaction, gone: Sequence[Place]) -> None:
    """Note that events of public topics were removed."""
    if not gone:
        return
    known = await find_horizon(tx)
    furthest = max(gone)
    if furthest > known:
        await tx.run(PruningSql.set_mark, kind=_TOPICS, tenant="", at=0, id=".".join(map(str, furthest)))


@reading
async def find_horizon(tx: Transaction) -> Place:
    """Up to where events of public topics may be missing."""
    mark = await tx.one(PruningSql.find_mark, kind=_TOPICS, tenant="")
    if mark is None:
        return -1, 0, 0
    epoch, number, pos = map(int, mark.id.split("."))
    return epoch, number, pos
