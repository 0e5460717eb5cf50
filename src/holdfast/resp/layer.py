"""The layer of the gateway: what every worker does for its plans, actions and plain data. See `workers.layer`.

The gateway's jobs belong to no layer: its clients play them. A worker that serves no Redis client still removes what is
old, because the one that holds the clean-up may be any. So every app has this layer, and it imports the rest when there
is something to clean up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from holdfast.kernel.database import Database, Transaction
from holdfast.kernel.rows import EndedLease, MovedJob, Route
from holdfast.settings import Settings
from holdfast.workers.layer import Chore, Layer

_LOOK = 100  # actions that one transaction looks at
_KEYS = 500  # keys that one transaction removes


class RespLayer(Layer):
    """The gateway, as workers know it."""

    name = "resp"
    kinds: tuple[str, ...] = ()
    retry_advice = ""
    cancel_advice: Mapping[str, str] = {}

    def __init__(self) -> None:
        self._looked_at = ("", "")  # actions up to here, in this walk
        self.chores: Sequence[Chore] = (
            Chore(lambda settings: settings.cleanup_interval, self._prune_actions),
            Chore(lambda settings: settings.cleanup_interval, _prune_keys),
        )

    async def prepare(self, database: Database) -> None:
        """Nothing is to be written before the first attempt."""

    async def adopt(self, database: Database, routes: Sequence[Route]) -> None:
        """Its jobs are played by who speaks to the gateway."""

    async def started(self, capabilities: Collection[str]) -> None:
        """Nothing is to be made ready."""

    async def ended(self, tx: Transaction, jobs: Sequence[EndedLease | MovedJob]) -> None:
        """No job is the layer's own."""

    async def _prune_actions(self, tx: Transaction, settings: Settings) -> bool:
        """Remove actions that retention has left no job of, some at a time; True when there are more to look at."""
        from holdfast.resp.plans import prune_actions

        upto = await prune_actions(tx, self._looked_at, look=_LOOK)
        self._looked_at = upto or ("", "")
        return upto is not None

    async def erase(self, tx: Transaction, tenant: str) -> int:
        from holdfast.resp import keyspace, plans

        return await plans.erase(tx, tenant, limit=_KEYS) or await keyspace.erase(tx, tenant, limit=_KEYS)


async def _prune_keys(tx: Transaction, settings: Settings) -> bool:
    """Remove plain data that has expired; True when there may be more."""
    from holdfast.resp import keyspace

    return await keyspace.prune(tx, limit=_KEYS) == _KEYS
