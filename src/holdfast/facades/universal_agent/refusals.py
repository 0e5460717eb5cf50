"""What this interface refuses, as errors that are Python's own `ValueError` too: its callers catch that one."""

from __future__ import annotations

from holdfast.errors import NotFound, UsageError


class UnknownSession(NotFound, ValueError):
    """No session has this id. Nothing is created in its place."""

    remedy = "Look at the list of sessions; create_session makes one."

    def __init__(self, session_id: str) -> None:
        super().__init__(f"Unknown session_id: {session_id}. create_session makes one.")


class BadName(UsageError, ValueError):
    """An id, an owner or a path that cannot be used as it is written."""
