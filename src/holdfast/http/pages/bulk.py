"""Many at once: what a change of many runs or jobs would do, and what it did, as one page for both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from holdfast.agents.glance_rows import OpenBelow
from holdfast.http.api.jobs import ManyJobs
from holdfast.http.api.runs import ManyRuns
from holdfast.values.bulk import Bulk

Many = TypeVar("Many", ManyRuns, ManyJobs)

_PAGES = 10  # of a thousand that one question looks at
_ENOUGH = 1_000  # that one press of a button changes


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


async def over_pages(change: Callable[[Many], Awaitable[Bulk]], many: Many) -> Bulk:
    """What a change does, or would do. Those of a group of failures may be far apart: it looks at several pages."""
    found = await change(many)
    for _ in range(_PAGES - 1 if many.error or many.message else 0):
        if found.next is None or found.changed >= _ENOUGH:
            break
        part = await change(many.model_copy(update={"after": found.next}))
        found = Bulk(
            matched=found.matched + part.matched,
            changed=found.changed + part.changed,
            refused={**found.refused, **part.refused},
            next=part.next,
            dry_run=part.dry_run,
        )
    return found
