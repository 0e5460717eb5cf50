"""The cluster epoch: the part of a token that a restored backup or a failover cannot repeat.

Each connection compares the identity of what it reached (server and timeline, or file) with the one noted in
the store. A difference means that commits may be missing, so the epoch rises before anything is claimed.
"""

from __future__ import annotations

from holdfast.kernel.database import Transaction, reading, single
from holdfast.kernel.rows import Cluster
from holdfast.kernel.statements import WorkersSql


async def adopt(tx: Transaction, identity: str) -> Cluster:
    """Note the identity; the returned epoch is new if it differs from the one noted before."""
    cluster = await tx.one(WorkersSql.cluster)
    assert cluster is not None
    if cluster.identity == identity:
        return cluster
    adopted = await tx.one(WorkersSql.adopt_identity, identity=identity, seen=cluster.identity)
    if adopted is not None:
        return adopted
    return await adopt(tx, identity)


@reading
async def read(tx: Transaction) -> Cluster:
    """The epoch as it stands."""
    cluster = await tx.one(WorkersSql.cluster)
    assert cluster is not None
    return cluster


@single
async def bump(tx: Transaction) -> Cluster:
    """Raise the epoch by hand: a step of restoring a backup in a way that keeps the identity."""
    cluster = await tx.one(WorkersSql.bump_epoch)
    assert cluster is not None
    return cluster
