"""Search: what begins like a text. Ids of everything, keys of sessions, names of agents; every look is bounded."""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.agents.statements import SearchSql
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.listing_rows import Match
from holdfast.kernel.sql import Many

LOOK = 1_000
_BY_ID: Mapping[str, Many[Match]] = {
    "run": SearchSql.runs_from,
    "session": SearchSql.sessions_from,
    "call": SearchSql.calls_from,
    "inquiry": SearchSql.inquiries_from,
    "agent": SearchSql.agents_from,
}
_SHAPE = "00000000-0000-0000-0000-000000000000"
_HEX = re.compile(r"[0-9a-f-]{4,36}")


def ids_from(text: str) -> tuple[str, str] | None:
    """The first and the last id that begins so; None when no id does."""
    text = text.lower()
    if not _HEX.fullmatch(text) or any((a == "-") != (b == "-") for a, b in zip(text, _SHAPE, strict=False)):
        return None
    rest = _SHAPE[len(text) :]
    return text + rest, text + rest.replace("0", "f")


@reading
async def search_agents(tx: Transaction, text: str, tenant: str | None, limit: int) -> list[tuple[str, Match]]:
    """What it found, each with its noun."""
    given = {"tenant": tenant, "limit": limit}
    found: list[tuple[str, Match]] = []
    if (ids := ids_from(text)) is not None:
        for noun, statement in _BY_ID.items():
            rows = await tx.many(statement, low=ids[0], high=ids[1], look=LOOK, **given)
            found += [(noun, row) for row in rows]
    keyed = await tx.many(SearchSql.sessions_keyed, low=text, high=text + "\U0010ffff", look=LOOK, **given)
    found += [("session", row) for row in keyed]
    found += [("agent", row) for row in await tx.many(SearchSql.agents_called, text=text, **given)]
    return found
