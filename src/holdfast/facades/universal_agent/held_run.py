"""Under which lease the code that runs now handles a run.

A worker sets it around its handler. What the handler writes is written under the lease of its own attempt, never under
one that the run has by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from holdfast.kernel.rows import Lease

_current: ContextVar[tuple[str, Lease] | None] = ContextVar("holdfast_universal_agent_held_run", default=None)


def lease_of(run_id: str) -> Lease | None:
    """The lease of this run if it is handled here, else None."""
    held = _current.get()
    return held[1] if held is not None and held[0] == run_id else None


@contextmanager
def holding(run_id: str, lease: Lease) -> Iterator[None]:
    """Around a handler."""
    before = _current.set((run_id, lease))
    try:
        yield
    finally:
        _current.reset(before)
