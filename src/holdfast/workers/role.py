"""What one worker is for: who it is, what it takes, and when it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Until = Literal["stopped", "empty", "one"]


SYSTEM_QUEUE = "system"  # of jobs that the runtime gives itself


@dataclass(frozen=True, slots=True)
class Role:
    """Who this worker is and what it takes; everything else comes from the settings."""

    name: str = ""
    id: str = ""
    queues: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] = ()
    until: Until = "stopped"
    agents: tuple[str, ...] | None = None  # of those it could serve, the ones it serves; None: all

    @property
    def served_queues(self) -> tuple[str, ...] | None:
        """The queues it takes from: the runtime's own too, whichever were chosen."""
        return None if self.queues is None else (*self.queues, SYSTEM_QUEUE)

    def takes(self, capability: str) -> bool:
        """Whether this worker offers a capability that it has."""
        sort, _, name = capability.partition(":")
        return sort != "agent" or self.agents is None or name in self.agents
