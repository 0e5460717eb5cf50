"""Owners: names that hold leases and are no processes of ours.

An owner's row shows no presence. A caller that knows its name may speak for it, in any process; its leases end by
their own time. A name belongs to the principal that registered it.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.errors import DuplicateWorker, StoreBusy
from holdfast.kernel.broker_rows import NOWHERE
from holdfast.kernel.database import Transaction
from holdfast.kernel.statements import BrokersSql
from holdfast.kernel.workers import Registration, insert_worker, lose

_TRIES = 20


class RegisteredOwner(NamedTuple):
    """An owner's number, and the one it had before, if it was given up just now."""

    seq: int
    before: int | None = None


async def register_owner(tx: Transaction, who: Registration, *, ttl_us: int, replace: bool = False) -> RegisteredOwner:
    """The number of the owner of this id, which is registered when it has none.

    `replace`: it begins a new life, and what it was before is given up; `transfer_leases` hands its leases over. Raises
    `DuplicateWorker` when a worker or another principal has the id.
    """
    before: int | None = None
    for _ in range(_TRIES):
        other = await tx.one(BrokersSql.find_live_owner, id=who.id)
        if other is not None and (other.host != NOWHERE or other.principal != who.principal):
            raise DuplicateWorker(who.id, other.hostname, other.pid)
        if other is not None and replace:
            await lose(tx, other.seq, reason="replaced by a new owner of the same id")
            before = other.seq
        elif other is not None and await tx.one(BrokersSql.refresh_owner, seq=other.seq, ttl_us=ttl_us):
            return RegisteredOwner(other.seq, before)
        new = await insert_worker(tx, who._replace(host=NOWHERE), ttl_us=ttl_us)
        if new is not None:
            return RegisteredOwner(new, before)
    raise StoreBusy(f"the owner {who.id!r} is being registered by many at once; try again.")
