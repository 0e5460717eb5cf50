"""The layer of machines: what every worker does for them. See `workers.layer`.

Every app has it, so it imports nothing of what plays a machine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from holdfast.kernel.database import Database, Transaction
from holdfast.kernel.families import parents_of
from holdfast.kernel.rows import EndedLease, MovedJob, Route
from holdfast.kernel.waiting import held_channels, own_channel, wake_some
from holdfast.workers.definitions import Registry
from holdfast.workers.layer import Layer
from holdfast.workers.slots import SlotGroup

if TYPE_CHECKING:
    from holdfast.machines.hooks import HookRegistry

LAYER = "machines"
KIND = "machine:"
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

    async def ended(self, tx: Transaction, jobs: Sequence[EndedLease | MovedJob]) -> None:
        await wake_parents(tx, jobs)


def layer_of(registry: Registry) -> MachineLayer:
    """The layer of this app, plugged in if it is not: a core may be made without an app."""
    for layer in registry.layers:
        if isinstance(layer, MachineLayer):
            return layer
    layer = MachineLayer()
    registry.plug_in(layer)
    return layer


async def wake_parents(tx: Transaction, jobs: Sequence[EndedLease | MovedJob]) -> None:
    """Some children have ended: wake those parents that wait for the first of theirs."""
    for parent in sorted({job.parent for job in jobs if job.parent is not None}):
        await wake_some(tx, children_channel(parent), limit=1)


async def with_held_parents(tx: Transaction, seqs: Sequence[int]) -> set[int]:
    """Those of these jobs whose parents' channels somebody else has locked."""
    channels = {kin.seq: children_channel(kin.parent) for kin in await parents_of(tx, seqs) if kin.parent is not None}
    held = set(await held_channels(tx, channels.values()))
    return {seq for seq, channel in channels.items() if channel in held}


def children_channel(seq: int) -> str:
    """The channel on which an execution waits for the first of its children."""
    return own_channel(f"machine {seq}")
