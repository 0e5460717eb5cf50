"""Bounds: what the code that runs now may do in the store, whatever operation it asks for.

The web sets them around a request, and drivers keep them. Reads go over connections of their own, which change nothing
and end a query that takes too long. What belongs to a tenant is read and changed under row security, where that is on.
A task inherits the bounds of the code that starts it, so a task that serves others too is started `unbound`.

What a worker does for all of its jobs is `urgent`: it must not wait for a connection behind calls that wait for locks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Bounds(NamedTuple):
    """`reads`: nothing may be changed, and no query may take long. `tenant`: whose rows there are; None: all."""

    reads: bool
    tenant: str | None = None


READS = Bounds(reads=True)
_urgent: ContextVar[bool] = ContextVar("holdfast_urgent", default=False)
_current: ContextVar[Bounds | None] = ContextVar("holdfast_bounds", default=None)


def bounds_now() -> Bounds | None:
    return _current.get()


@contextmanager
def bound(bounds: Bounds | None) -> Iterator[None]:
    """Around code that must keep within these bounds."""
    before = _current.set(bounds)
    try:
        yield
    finally:
        _current.reset(before)


@contextmanager
def urgent(*, when: bool = True) -> Iterator[None]:
    """Around one call of a worker's own that takes no time and waits for nobody's lock. It starts no task."""
    before = _urgent.set(when)
    try:
        yield
    finally:
        _urgent.reset(before)


def is_urgent() -> bool:
    return _urgent.get()


def unbound() -> AbstractContextManager[None]:
    """Around what the process does for itself while it serves a request."""
    return bound(None)
