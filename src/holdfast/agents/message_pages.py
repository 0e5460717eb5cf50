"""Pages of messages: of a branch forwards or backwards, of which some are left out, and of a run."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.agents.rows import MessageRow
from holdfast.agents.statements import MessagesSql
from holdfast.agents.values.sessions import Message, message_of
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, reading

_LAST = 2**62
_LOOK = 10_000


class MessagePage(NamedTuple):
    """In their order. `place` is the number of the message from which on to continue, None when there is no more."""

    messages: list[Message]
    place: int | None


@reading
async def message_page(
    tx: Transaction, session: str, *, branch: str = "", after: int = 0, limit: int = 1_000, archived: bool = False
) -> MessagePage:
    """Messages of a branch from a place on. It looks at 10,000, of which a compaction may have taken out most."""
    look = max(limit, _LOOK)
    where = {"session": session, "branch": branch, "after": after}
    rows = await tx.many(MessagesSql.list_messages, **where, archived=int(archived), look=look, limit=limit)
    if len(rows) == limit:
        return MessagePage(await with_blocks(tx, rows), rows[-1].ordinal)
    end = await tx.one(MessagesSql.end_of_messages, **where, skipped=look - 1)
    return MessagePage(await with_blocks(tx, rows), None if end is None else end.number)


@reading
async def latest_messages(
    tx: Transaction, session: str, *, before: int = _LAST, limit: int = 100, archived: bool = False
) -> MessagePage:
    """The last messages of a conversation before a place."""
    look = max(limit, _LOOK)
    where = {"session": session, "branch": "", "before": before}
    rows = await tx.many(MessagesSql.latest_messages, **where, archived=int(archived), look=look, limit=limit)
    if len(rows) == limit:
        return MessagePage(await with_blocks(tx, rows[::-1]), rows[-1].ordinal)
    end = await tx.one(MessagesSql.begin_of_messages, **where, skipped=look - 1)
    return MessagePage(await with_blocks(tx, rows[::-1]), None if end is None else end.number)


@reading
async def list_messages(
    tx: Transaction,
    session: str,
    *,
    branch: str | None = "",
    run: str | None = None,
    after: int = 0,
    limit: int = 1_000,
    archived: bool = False,
) -> list[Message]:
    """Messages of a run, of a branch, or without either of a whole session, for who copies it."""
    page: dict[str, Any] = {"session": session, "after": after, "archived": int(archived), "limit": limit}
    if run is not None:
        rows = await tx.many(MessagesSql.messages_of_run, run=run, **page)
    elif branch is not None:
        rows = await tx.many(MessagesSql.list_messages, branch=branch, look=_LAST, **page)
    else:
        rows = await tx.many(MessagesSql.messages_of_session, **page)
    return await with_blocks(tx, rows)


async def with_blocks(
    tx: Transaction, rows: Sequence[MessageRow], *, longest: int | None = None, cut: str = ""
) -> list[Message]:
    """The messages with what was said in them; `cut` stands for each part that is longer than `longest` characters."""
    ids = [row.id for row in rows]
    if not rows:
        return []
    if longest is None:
        blocks = await tx.many(MessagesSql.blocks_of, messages=ids)
    else:
        note = json.dumps({"type": "text", "text": cut})
        blocks = await tx.many(MessagesSql.short_blocks_of, messages=ids, most=longest, cut=note)
    bodies: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for block in blocks:
        bodies[block.message].append(codec.decode(block.body))
    return [message_of(row, bodies[row.id]) for row in rows]
