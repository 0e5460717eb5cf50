"""What one worker is for: who it is, what it takes, and when it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Until = Literal["stopped", "empty", "one"]


@dataclass(frozen=True, slots=True)
class Role:
    """Who this worker is and what it takes; everything else comes from the settings."""

    name: str = ""
    id: str = ""
    queues: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] = ()
    until: Until = "stopped"
