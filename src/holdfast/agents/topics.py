"""Topics: what happens to all runs, as the records that outside listeners get, durable and from any point.

The order is that of the transactions. A transaction that is still open may yet put something before what has been
committed since, so on PostgreSQL a reader stays behind the oldest one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from holdfast.agents.reading import topics_after
from holdfast.errors import UsageError
from holdfast.kernel import encoding
from holdfast.kernel.database import Database

_PAGE = 500
_PAUSE = 0.25


@dataclass(frozen=True, slots=True)
class TopicEvent:
    """One change of a run. Give `cursor` to `hf.events(after=…)` to go on behind it."""

    cursor: str
    topic: str
    run: str
    seq: int
    at: int
    payload: dict[str, Any]


async def topics(opened: Callable[[], Any], after: str, names: tuple[str, ...]) -> AsyncIterator[TopicEvent]:
    """Every change after a cursor, then each as it is committed; without end."""
    tx, pos = _read(after)
    database: Database = await opened()
    stirred = asyncio.Event()
    await database.listen(lambda note: stirred.set() if note.startswith("run ") or not note else None)
    while True:
        stirred.clear()
        rows = await database.transact(topics_after, tx, pos, _PAGE)
        for row in rows:
            tx, pos = row.tx, row.pos
            if not names or row.topic in names:
                yield TopicEvent(f"{tx}.{pos}", row.topic, row.run, row.seq, row.at, encoding.decode(row.data))
        if len(rows) < _PAGE:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE):
                    await stirred.wait()


def _read(cursor: str) -> tuple[int, int]:
    if not cursor:
        return -1, 0
    tx, _, pos = cursor.partition(".")
    if not tx.isdigit() or not pos.isdigit():
        raise UsageError(
            f"{cursor!r} is no cursor; give what an event of hf.events(after=…) has, or '' for the beginning."
        )
    return int(tx), int(pos)
