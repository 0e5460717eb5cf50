"""What one call changed of many, as programs see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulk:
    """What one call changed: how many fitted, how many were changed, and where to continue.

    `refused` are those that could not be changed, by id, each with the reason. `next` is None at the end.
    """

    matched: int
    changed: int
    refused: dict[str, str]
    next: str | None
    dry_run: bool
