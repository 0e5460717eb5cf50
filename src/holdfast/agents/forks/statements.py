"""The SQL file of forks as Python sees it."""

from __future__ import annotations

from holdfast.agents.compaction.compaction_rows import Generation
from holdfast.agents.forks.fork_rows import Copy, ForkedSession, ForkOf, PastMessage
from holdfast.agents.rows import NewBlock
from holdfast.kernel.sql import Exec, Many, One, Statements

_PACKAGE = "holdfast.agents.sql"


class ForksSql(Statements, package=_PACKAGE, file="forks.sql", rows={"copies": Copy, "blocks": NewBlock}):
    past: Many[PastMessage]
    add_fork: Exec
    find_fork: One[ForkedSession]
    copy_messages: Exec
    copy_blocks: Exec
    add_blocks: Exec
    mark_fork: Exec
    generation_seen: One[Generation]
    fork_of: One[ForkOf]
