"""Many at once: what a change of many runs or jobs would do, and what it did, as one page for both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.agents.glance_rows import OpenBelow
from holdfast.values.bulk import Bulk


@dataclass(frozen=True, slots=True)
class BulkView:
    """`choice` says which were meant; `done` is false while a person is asked.

    `ids` are those that were ticked, and `below` what ends with them.
    """

    noun: Literal["run", "job"]
    verb: str
    found: Bulk
    choice: dict[str, str | None]
    done: bool
    reason: str = ""
    ids: tuple[str, ...] = ()
    below: OpenBelow | None = None
