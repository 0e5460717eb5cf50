"""Rescue of runs that a living worker holds and that make no progress. What counts is progress, never age."""

from __future__ import annotations

import logging

from holdfast.agents.statements import RunsSql
from holdfast.durations import microseconds
from holdfast.kernel.database import Transaction, reading
from holdfast.settings import Settings
from holdfast.shown_text import plural
from holdfast.workers.layer import Chore

log = logging.getLogger("holdfast.agents")

_LIMIT = 100


@reading
async def is_stuck(tx: Transaction, settings: Settings) -> bool:
    return bool(await tx.many(RunsSql.find_stuck, timeout_us=microseconds(settings.rescue_timeout), limit=1))


async def rescue(tx: Transaction, settings: Settings) -> int:
    """End the leases of runs without progress: the sweep requeues them, or fails them at their last rescue."""
    timeout_us = microseconds(settings.rescue_timeout)
    stuck = await tx.many(RunsSql.find_stuck, timeout_us=timeout_us, limit=_LIMIT)
    if stuck:
        them = "it" if len(stuck) == 1 else "them"
        said = "%s made no progress for %s; Holdfast takes %s back"
        log.warning(said, plural(len(stuck), "run"), settings.rescue_timeout, them)
        await tx.run(RunsSql.lapse, seqs=[run.seq for run in stuck], timeout_us=timeout_us)
    return len(stuck)


CHORE = Chore(lambda settings: settings.rescue_interval, rescue, is_stuck)
