"""Files that the provider keeps: what is known of one, and who can upload one."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

SHORTEST, LONGEST = 3_600, 7_776_000
"""Seconds for which a file may be kept, if it is not to be kept until it is deleted."""


class StoredFile(NamedTuple):
    id: str
    name: str
    media_type: str
    size: int
    expires_us: int | None


@runtime_checkable
class Files(Protocol):
    """A provider that keeps files."""

    async def upload_file(
        self, path: Path, media_type: str, *, expires_in: int | None = None, total: float = 600.0
    ) -> StoredFile:
        """Upload a file, to be kept for so many seconds, or until it is deleted; raises `ModelFailure`."""
