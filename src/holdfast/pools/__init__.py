"""Pools: groups of worker processes that grow and shrink with their work."""

from holdfast.pools.launchers import Exit, Launcher, Place, StartedWorker
from holdfast.pools.policy import WorkerPool
from holdfast.pools.pool import Pool
from holdfast.pools.stats import PoolStats, PoolWorker
from holdfast.pools.subprocesses import Subprocesses

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
