"""Compaction by itself: after a run, by a job of its own, and by a run before a call that would not fit.

Only where an agent asks for it, and never inside an open tool loop. What it cannot do it leaves: a session that is busy
is looked at again by the run that keeps it busy.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from holdfast.agents.asking import facts_of
from holdfast.agents.compaction.compacting import Acting, Compactor
from holdfast.agents.compaction.config import Compaction
from holdfast.agents.compaction.measuring import Teller
from holdfast.agents.definitions import AgentSpec
from holdfast.agents.statements import Compactions
from holdfast.agents.system import system_definition, system_job
from holdfast.errors import NotFound, SessionBusy, UsageError
from holdfast.kernel import encoding
from holdfast.kernel.database import Transaction
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import derived_id
from holdfast.models import ModelFailure, Request
from holdfast.outcomes import Outcome, Snooze
from holdfast.workers.context import JobContext
from holdfast.workers.definitions import Definition

if TYPE_CHECKING:
    from holdfast.agents.records import LoadedRun

log = logging.getLogger("holdfast.agents")

COMPACT = "system:compact"
_LOOK = 0.9  # of the trigger: so near to it a job looks, and measures
_PAUSE = "1s"
_LONGEST_PAUSE = 60.0

_parse = lru_cache(maxsize=1_000)(AgentSpec.parse)


async def is_current(tx: Transaction, run: LoadedRun) -> bool:
    """Whether the history is still the one the run was loaded with; while this transaction lasts, it stays so."""
    if run.parent is not None:  # the run that called it is under way
        return True
    held = await tx.one(Compactions.hold_generation, id=run.session)
    return held is None or held.generation == run.generation


async def compact_after(tx: Transaction, run: LoadedRun) -> None:
    """Where a run has ended near its agent's trigger: have a worker look, as part of the same transaction."""
    config = _config_of(_parse(run.definition))
    if config is None or run.parent is not None:
        return
    used = await tx.one(Compactions.last_usage, session=run.session)
    model = str(encoding.decode(run.options).get("model") or _parse(run.definition).model)
    limit = config.trigger * (config.window or facts_of(model).window)
    if used is None or used.sent + used.said < _LOOK * limit:
        return
    payload = {"session": run.session, "config": config.plain()}
    job, route = system_job(COMPACT, derived_id(run.id, "compact"), payload, tenant=run.tenant)
    await enqueue(tx, [job], [route])


def compact_definition(compactor: Compactor) -> Definition:
    """How a worker looks at a session after a run of it."""

    async def compact(ctx: JobContext, session: str, config: dict[str, Any]) -> str:
        try:
            done = await compactor.compact_if_needed(ctx.database, session, Compaction.of(config), Acting("after_run"))
        except (SessionBusy, NotFound) as reason:
            return f"left alone: {reason}"
        except ModelFailure as failure:
            if failure.transient:
                raise
            log.warning("session %s is not compacted: %s", session, failure)
            return f"not compacted: {failure}"
        return "no need" if done is None else f"compacted: {done.tokens_before} to {done.tokens_after} tokens"

    return system_definition(COMPACT, compact)


async def make_room(
    compactor: Compactor,
    ctx: JobContext,
    run: LoadedRun,
    spec: AgentSpec,
    *,
    request: Request,
    prompt: Sequence[dict[str, Any]],
) -> Literal["enough", "full"] | Outcome | None:
    """Before the first call of a run: see that it fits. None: the history was compacted, load it again.

    "full": it does not fit and cannot be made to, so it is not worth sending. An outcome: try again later.
    """
    config = _config_of(spec)
    if config is None or run.prompted or run.parent is not None:
        return "enough"
    teller = Teller(request.model, spec)
    window = teller.window(config)
    most = window - min(request.max_tokens, window // 2)
    judged = await compactor.judge(ctx.database, run.session, config, teller=teller, prompt=prompt, limits=(most,))
    fits = judged.size.tokens <= most
    plan = None if fits and not judged.is_due else judged.plan()
    if plan is None or (fits and not judged.is_worth(plan)):
        return "enough" if fits else "full"
    try:
        await compactor.carry_out(ctx.database, judged, plan, Acting("before_call", run.id, ctx.lease))
    except SessionBusy as reason:
        return Snooze(_PAUSE, str(reason))
    except (ModelFailure, UsageError) as failure:
        if fits:
            log.warning("session %s is not compacted before run %s: %s", run.session, run.id, failure)
            return "enough"
        tried = 1 + (judged.read.open.attempts if judged.read.open is not None else 0)
        if isinstance(failure, ModelFailure) and failure.transient and tried < spec.attempts:
            pause = failure.retry_after or min(_LONGEST_PAUSE, 0.5 * 2**tried)
            return Snooze(f"{round(pause * 1e6)}us", f"the summariser failed: {failure}")
        return "full"
    return None


def _config_of(spec: AgentSpec) -> Compaction | None:
    """What is done by itself; the provider's own way is not ours to do."""
    config = Compaction.of(spec.compaction) if spec.compaction else None
    return None if config is None or config.strategy == "provider" else config
