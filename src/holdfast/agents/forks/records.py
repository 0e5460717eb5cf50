"""Rows of forks. Each record's fields stand in the order of its statement's columns."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.agents.compaction.records import Generation
from holdfast.agents.rows import NewBlock
from holdfast.kernel.sql import Exec, Many, One, Statements


class PastMessage(NamedTuple):
    """A message as a fork looks at it, whether it is still sent or not."""

    id: str
    ordinal: int
    kind: str
    run: str
    turn: int
    live: int
    compacted: str | None
    made_by: str | None
    asks: int  # whether it calls a tool that the client must answer
    answers: int  # whether it holds answers to such calls
    retired: int | None  # the place in line of the last run that has seen it, if somebody took it out
    fingerprint: str | None  # under which request it was said, where that is not what its turn says


class MessageCopy(NamedTuple):
    """A message of a fork: which one it is a copy of, and whose it is there. Without a fingerprint, the original's."""

    id: str
    source: str
    run: str
    fingerprint: str | None
    edited: int = 0  # its blocks are given, not copied


class ForkSource(NamedTuple):
    id: str
    forked_from: str | None
    forked_at: int | None


class ForkedSession(NamedTuple):
    id: str
    forked_from: str | None
    forked_at: int | None  # the last message that was taken along; None: all that there were


# The SQL file of forks as Python sees it.


_PACKAGE = "holdfast.agents.sql"


class ForksSql(Statements, package=_PACKAGE, file="forks.sql", rows={"copies": MessageCopy, "blocks": NewBlock}):
    past: Many[PastMessage]
    add_fork: Exec
    find_fork: One[ForkedSession]
    copy_messages: Exec
    copy_blocks: Exec
    add_blocks: Exec
    mark_fork: Exec
    generation_seen: One[Generation]
    fork_of: One[ForkSource]
