"""Topics: what happens to all runs, as the records that outside listeners get, durable and from any point.

The order is that of the transactions. A transaction that is still open may yet put something before what has been
committed since, so on PostgreSQL a reader stays behind the oldest one. A restored database counts its transactions
again: before their number comes the cluster's epoch, which has risen by then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.agents.events.log import payload_of
from holdfast.agents.events.readership import Readership
from holdfast.agents.queries import last_topic, topics_after
from holdfast.agents.retention.gaps import find_horizon
from holdfast.clock import Ports
from holdfast.errors import CursorPruned, UsageError
from holdfast.kernel import codec
from holdfast.kernel.database import Database
from holdfast.values.times import moment

NOW = "now"
_PAGE = 500
_PAUSE = 0.25


@dataclass(frozen=True, slots=True)
class TopicEvent:
    """One change of a run; `at` is when it was stored, in UTC.

    Give `cursor` to `hf.events(after=…)` to continue behind it.
    """

    cursor: str
    topic: str
    run: str
    seq: int
    at: datetime
    payload: dict[str, Any]


async def topics(
    opened: Callable[[], Any], ports: Ports, after: str, names: tuple[str, ...]
) -> AsyncIterator[TopicEvent]:
    """Every change after a cursor, then each as it is committed; without end."""
    at = (-1, 0, 0) if after == NOW else read_topic_cursor(after)
    database: Database = await opened()
    if after == NOW:
        after = await newest_cursor(database)
        at = read_topic_cursor(after)
    if after and at < (gone := await database.transact(find_horizon)):
        raise CursorPruned(after, _as_cursor(gone))
    stirred = asyncio.Event()

    def heard(note: str) -> None:
        if note.startswith("run ") or not note:
            stirred.set()

    readership = Readership(database, ports)
    await database.listen(heard)
    try:
        while True:
            stirred.clear()
            await readership.keep()
            rows = await database.transact(topics_after, at, _PAGE)
            for row in rows:
                at = (row.epoch, row.tx, row.pos)
                if not names or row.topic in names:
                    payload = payload_of(row.topic, codec.decode(row.data))
                    yield TopicEvent(_as_cursor(at), row.topic, row.run, row.seq, moment(row.at), payload)
            if len(rows) < _PAGE:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PAUSE):
                        await stirred.wait()
    finally:
        database.unlisten(heard)  # its row ends by itself: the app may be closed by now


async def newest_cursor(database: Database) -> str:
    """The cursor that "now" stands for: whatever is committed after this call comes after it."""
    at = await database.transact(last_topic)
    return "" if at[0] < 0 else _as_cursor(at)


def _as_cursor(at: tuple[int, int, int]) -> str:
    return ".".join(map(str, at))


def read_topic_cursor(cursor: str) -> tuple[int, int, int]:
    """Where a cursor of topics stands; `UsageError` when it is none."""
    if not cursor:
        return -1, 0, 0
    parts = cursor.split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise UsageError(
            f"{cursor!r} is not a cursor; use the cursor of an event of hf.events(after=…), or '' for the beginning."
        )
    epoch, tx, pos = map(int, parts)
    return epoch, tx, pos
