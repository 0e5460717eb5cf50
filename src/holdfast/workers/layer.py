"""A layer: what a part of the runtime above the workers plugs into them.

A layer owns jobs by their kinds, and says what workers do for it: slots for its attempts, what to write when a worker
starts, definitions for routes that nobody declared, what it must withhold, its chores and its hints. Workers call a
layer by these names only, and know nothing of what its jobs are for.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from holdfast.kernel.database import Database, Owner, Transaction
from holdfast.kernel.rows import Route
from holdfast.settings import Settings
from holdfast.workers.slots import SlotGroup

log = logging.getLogger("holdfast.worker")


@dataclass(frozen=True, slots=True)
class Chore:
    """Maintenance of a layer, done by the worker that holds the clean-up; doing it twice must be harmless.

    Each call of `operation` is one transaction. One that answers True has left something, and is called again soon.
    `is_due` reads whether there is anything to do, where that costs little: then it takes no turn to write when it
    would find nothing.
    """

    every: Callable[[Settings], timedelta]
    operation: Callable[[Transaction, Settings], Awaitable[Any]]
    is_due: Callable[[Transaction, Settings], Awaitable[bool]] | None = None


class Layer(Owner, Protocol):
    """What a layer says of itself. One that subclasses this says only what differs from a layer without any of it."""

    slots: Sequence[SlotGroup] = ()  # its own, beside those of the program's jobs
    chores: Sequence[Chore] = ()
    own_failures: bool = False
    hints: Mapping[str, Callable[[str], None]] = {}  # by the word, what a worker that hears it calls with the names

    async def held_up(self, tx: Transaction, seqs: Sequence[int]) -> Set[int]:
        """See `Owner`. A layer that writes nothing when its jobs end is held up by nobody."""
        return frozenset()

    async def prepare(self, database: Database) -> None:
        """A worker starts: write what must be in the store before its first attempt. Other workers do the same."""

    async def adopt(self, database: Database, routes: Sequence[Route]) -> None:
        """Declare what this program can serve of these routes, though it does not define it. Called with all routes
        now and then, and with new ones as they appear."""

    def withheld(self) -> Mapping[str, str]:
        """The kinds that a worker here does not offer, each with what is missing."""
        return {}

    async def erase(self, tx: Transaction, tenant: str) -> int:
        """A tenant is erased: remove some of what is this tenant's in tables of the layer's own; how many rows. Called
        after the tenant's jobs are gone, until there is nothing."""
        return 0

    async def started(self, capabilities: Collection[str]) -> None:
        """A worker has started with these capabilities: make ready what its first attempts would wait for. Nobody waits
        for this, and what it raises is logged."""


def hear(layers: Iterable[Layer], word: str, rest: str) -> bool:
    """Pass a hint on to the layer whose word it is; False when it is nobody's."""
    heard = next((layer.hints[word] for layer in layers if word in layer.hints), None)
    if heard is None:
        return False
    try:
        heard(rest)
    except Exception:
        log.exception("a layer could not take the hint %r", word)
    return True
