"""Exchanges: what one run was asked and what it answered. Somebody may take one out of what models are sent.

It is taken out whole, so that no call is parted from its results, nor an answer from what it answers. It is kept, and
marked, for those who read the session. Runs that came before it was taken out have seen it: their forks and replays
see it too.
"""

from __future__ import annotations

from holdfast.agents.events.log import Changes
from holdfast.agents.forks.past import OUTDATED
from holdfast.agents.statements import ContentSql, SessionsSql
from holdfast.errors import NotFound, SessionBusy, UsageError
from holdfast.kernel.database import Transaction


async def retire(tx: Transaction, session: str, message: str, prefix: str) -> None:
    """Take the exchange that a message is part of out of what is sent. A second time does nothing."""
    if await tx.one(SessionsSql.lock_session, id=session) is None:  # a transaction that adds a run waits for this
        raise NotFound(f"there is no session {session} in this database.")
    found = await tx.one(ContentSql.find_message, id=message, session=session)
    if found is None:
        raise NotFound(f"there is no message {message} in session {session}.")
    if found.branch:
        raise UsageError(
            f"message {message} belongs to an agent that was called as a tool: retire the result that its caller got."
        )
    if found.kind == "summary":
        raise UsageError(f"message {message} is a summary of others: undo the compaction (restore), then retire those.")
    if (run := await tx.one(ContentSql.open_run, session=session)) is not None:
        raise SessionBusy(f"session {session} has a run that has not ended ({run.id}): wait for its end, or cancel it.")
    gone = await tx.many(ContentSql.retire_exchange, session=session, run=found.run)
    if not gone:
        return
    first = min(each.ordinal for each in gone)
    await tx.run(ContentSql.outdate_thinking, session=session, after=first, mark=OUTDATED)
    changes = Changes(prefix)
    ids = [each.id for each in sorted(gone, key=lambda each: each.ordinal) if each.made_by is None]
    changes.tell(found.run, "messages_retired", {"messages": ids, "reason": "taken out of the session"})
    await changes.write(tx)
