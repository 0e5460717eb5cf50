"""Pools: groups of worker processes that grow and shrink with their work."""

from holdfast.pools.launchers import Exit, Launcher, Place, StartedWorker, Subprocesses
from holdfast.pools.pool import Pool
from holdfast.pools.size import WorkerPool
from holdfast.pools.stats import PoolStats, PoolWorker

__all__ = [
    "Exit",
    "Launcher",
    "Place",
    "Pool",
    "PoolStats",
    "PoolWorker",
    "StartedWorker",
    "Subprocesses",
    "WorkerPool",
]
