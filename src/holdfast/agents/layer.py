"""The layer of agents: everything that workers do for agents, in one place. See `workers.layer`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from holdfast.agents import lanes, leftovers, tallies
from holdfast.agents.adoption import ServedAgents
from holdfast.agents.batches import steps
from holdfast.agents.keys import Keys
from holdfast.agents.retention import cleanup as retaining
from holdfast.agents.runs import rescue
from holdfast.agents.runs.end import AgentJobs
from holdfast.agents.slots import BATCHED, RUNS, TOOLS
from holdfast.kernel.database import Database, Transaction
from holdfast.kernel.rows import Route
from holdfast.workers.layer import Chore, Layer


class AgentLayer(AgentJobs, Layer):
    """Agents, as workers know them."""

    slots = (RUNS, BATCHED, TOOLS)

    def __init__(
        self,
        keys: Keys,
        serving: ServedAgents,
        *,
        announced: Callable[[], str],
        notify: Callable[[], bool],
        output_cap: Callable[[], int],
    ) -> None:
        super().__init__(announced, notify, output_cap)
        self._keys = keys
        self._serving = serving
        self.chores: Sequence[Chore] = (
            rescue.CHORE,
            leftovers.CHORE,
            steps.CHORE,
            lanes.chore(),
            retaining.CHORE,
            *tallies.CHORES,
        )
        self.hints: Mapping[str, Callable[[str], None]] = {"run": _left_to_readers}
        self.preparing: list[Callable[[Transaction], Awaitable[Any]]] = []  # each in a transaction of its own

    async def prepare(self, database: Database) -> None:
        for operation in self.preparing:
            await database.transact(operation)

    async def adopt(self, database: Database, routes: Sequence[Route]) -> None:
        await self._serving.adopt(database, routes)

    def withheld(self) -> Mapping[str, str]:
        return self._keys.withheld()

    async def started(self, capabilities: Collection[str]) -> None:
        await self._keys.attend(capabilities)


def _left_to_readers(runs: str) -> None:
    """Something happened to these runs. Readers of their events listen for themselves; a worker has nothing to do."""
