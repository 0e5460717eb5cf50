"""The layer of machines: what workers do for them. See `workers.layer`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

from holdfast.kernel.database import Database, Transaction
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.rows import Ended, Moved, Route
from holdfast.machines.engine import Engine
from holdfast.machines.family import wake_parents, with_held_parents
from holdfast.machines.hooks import HookRegistry
from holdfast.machines.orders import KIND, LAYER
from holdfast.workers.definitions import Definition
from holdfast.workers.layer import Layer
from holdfast.workers.signatures import Signature
from holdfast.workers.slots import SlotGroup

MACHINES = SlotGroup("machines", lambda settings: settings.concurrency, rank=-3)


class MachineLayer(Layer):
    """Machines, as workers know them."""

    name = LAYER
    kinds = (KIND,)
    retry_advice = "Resume it instead: `holdfast machine resume ID`."
    cancel_advice: Mapping[str, str] = {}
    slots = (MACHINES,)

    def __init__(self) -> None:
        self._hooks: list[HookRegistry] = []

    def attend(self, hooks: HookRegistry) -> None:
        """Tell these hooks when the process stops."""
        if hooks not in self._hooks:
            self._hooks.append(hooks)

    async def tell(self, method: str, *args: Any) -> None:
        """Call a method of all hooks that were used here."""
        for hooks in self._hooks:
            await hooks.used().each(method, *args)

    async def prepare(self, database: Database) -> None:
        """Executions bring all that they need with them."""

    async def adopt(self, database: Database, routes: Sequence[Route]) -> None:
        """Machines need hooks, so a program declares what it serves."""

    async def started(self, capabilities: Collection[str]) -> None:
        """Nothing is to be made ready."""

    async def held_up(self, tx: Transaction, seqs: Sequence[int]) -> Set[int]:
        return await with_held_parents(tx, seqs)

    async def ended(self, tx: Transaction, jobs: Sequence[Ended | Moved]) -> None:
        await wake_parents(tx, jobs)


def machine_definition(kind: str, queue: str, engine: Engine) -> Definition:
    """The definition of a machine's jobs. What its states raise is the machine's business, so it is not retried; what
    the engine raises is."""
    return Definition(
        kind=kind,
        function=engine.play,
        signature=Signature(kind, engine.play),
        queue=queue,
        requires=frozenset(),
        retry=RetryPolicy(),
        timeout_us=None,
        deadline_us=None,
        priority=100,
        isolate=None,
        slots=MACHINES.name,
        layer=LAYER,
    )
