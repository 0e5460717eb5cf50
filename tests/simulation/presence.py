"""Signs of life, as the operating system or the server keeps them for processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from holdfast.errors import StoreUnavailable
from holdfast.kernel.database import ignore_change

if TYPE_CHECKING:
    from tests.simulation.store import Caller, Store


class Signs:
    """Signs of life: which process shows one for which worker."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: dict[int, Caller] = {}
        self.gone: set[int] = set()  # workers whose sign someone missed, or who left
        self.quiet_until = 0.0

    @property
    def shown(self) -> bool:
        return self._store.options.presence != "none"

    def show(self, worker: int, caller: Caller) -> None:
        self._held[worker] = caller

    def hide(self, worker: int) -> None:
        self._held.pop(worker, None)

    def drop(self, caller: Caller) -> None:
        """The system noticed that a process is dead."""
        for worker in [worker for worker, holder in self._held.items() if holder is caller]:
            del self._held[worker]

    def flap(self, seconds: float) -> None:
        """Take one sign away for a while, although its process lives."""
        if self._held:
            worker = self._store.chance.choice(list(self._held))
            caller = self._held.pop(worker)
            self._store.loop.call_later(seconds, self._again, worker, caller, context=self._store.context)

    def _again(self, worker: int, caller: Caller) -> None:
        if not caller.dead:
            self._held[worker] = caller

    def missing(self, workers: Iterable[int]) -> set[int]:
        if not self.shown or self._store.seconds < self.quiet_until:
            return set()
        missing = {worker for worker in workers if worker not in self._held}
        self.gone |= missing
        return missing


class SimPresence:
    def __init__(self, store: Store, caller: Caller) -> None:
        self._store = store
        self._caller = caller

    async def hold(self, worker: int, changed: Callable[[], None] = ignore_change) -> bool:
        self._require_store()
        if self._store.signs.shown:
            self._store.signs.show(worker, self._caller)
        return self._store.signs.shown

    def shows(self, worker: int) -> bool:
        return self._store.signs.shown  # a sign that flaps is missed by others, not by its owner

    def disputed(self, worker: int) -> bool:
        return False

    async def withdraw(self, worker: int) -> None:
        self._store.signs.hide(worker)

    async def absent(self, workers: Iterable[int]) -> set[int]:
        self._require_store()
        return self._store.signs.missing(workers)

    def _require_store(self) -> None:
        if self._store.away:
            raise StoreUnavailable("the simulated store is away.")
