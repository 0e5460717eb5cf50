"""Search: jobs by how their ids begin, queues and workers by how their names do. Every look is bounded."""

from __future__ import annotations

from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.listing_rows import Match
from holdfast.kernel.statements import ListingSql

LOOK = 1_000


@reading
async def search_jobs(
    tx: Transaction, ids: tuple[str, str] | None, text: str, tenant: str | None, limit: int
) -> list[tuple[str, Match]]:
    """What it found, each with its noun. `ids` are the first and the last id that begins with the text. Queues and
    workers belong to no tenant."""
    found: list[tuple[str, Match]] = []
    if ids is not None:
        given = {"low": ids[0], "high": ids[1], "tenant": tenant, "look": LOOK, "limit": limit}
        found += [("job", row) for row in await tx.many(ListingSql.jobs_from, **given)]
    if tenant is None:
        found += [("queue", row) for row in await tx.many(ListingSql.queues_called, text=text, limit=limit)]
        found += [
            ("worker", row) for row in await tx.many(ListingSql.workers_called, text=text, look=LOOK, limit=limit)
        ]
    return found
