"""Compaction by itself: after a run, by a job of its own, and by a run before a call that would not fit.

Only where an agent asks for it, and never inside an open tool loop. What it cannot do it leaves: a session that is busy
is looked at again by the run that keeps it busy. Nothing is bought or ended on an estimate alone: where it matters the
provider counts, and where it does not count, it is sent the call and judges.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from holdfast.agents.compaction.compactor import (
    CompactionPlan,
    CompactionTrigger,
    Compactor,
    MeasuredHistory,
    PlannedCall,
)
from holdfast.agents.compaction.config import Compaction
from holdfast.agents.compaction.measure import RequestModel, Size
from holdfast.agents.compaction.records import CompactionRow, CompactionsSql
from holdfast.agents.content import estimate
from holdfast.agents.definition import AgentSpec
from holdfast.agents.lanes import ProviderWait
from holdfast.agents.money.budgets import ExceededBudget
from holdfast.agents.runs.history import server_tool_is_open
from holdfast.agents.system_jobs import system_definition, system_job
from holdfast.errors import NotFound, SessionBusy, UsageError
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import derived_id
from holdfast.models import ModelFailure, Request
from holdfast.models.facts import facts_for
from holdfast.outcomes import Outcome, Snooze
from holdfast.text import shown
from holdfast.workers.context import JobContext
from holdfast.workers.definitions import Definition
from holdfast.workers.role import SYSTEM_KIND

if TYPE_CHECKING:
    from holdfast.agents.rows import LoadedRun, WindowBlock

log = logging.getLogger("holdfast.agents")

COMPACT = f"{SYSTEM_KIND}compact"
_LOOK = 0.9  # of the trigger: so near to it a job looks, and measures
_DOUBT = 2  # by so much an estimate of what is new may be too low
_PAUSE = "1s"
_LONGEST_PAUSE = 60.0
_OTHERS = "30s"  # after which a worker with a key may have come

_parse = lru_cache(maxsize=1_000)(AgentSpec.parse)


async def is_current(tx: Transaction, run: LoadedRun) -> bool:
    """Whether the history is still the one the run was loaded with; while this transaction lasts, it stays so."""
    if run.parent is not None:  # the run that called it is under way
        return True
    held = await tx.one(CompactionsSql.hold_generation, id=run.session)
    return held is None or held.generation == run.generation


async def compact_after(tx: Transaction, run: LoadedRun) -> None:
    """Where a run has ended near its agent's trigger: have a worker look, as part of the same transaction."""
    config = _config_of(_parse(run.definition))
    if config is None or run.parent is not None:
        return
    used = await tx.one(CompactionsSql.last_usage, session=run.session)
    model = str(codec.decode(run.options).get("model") or _parse(run.definition).model)
    limit = config.trigger * (config.window or facts_for(model).window)
    if used is None or used.sent + used.said < _LOOK * limit:
        return
    payload = {"session": run.session, "config": config.plain(), "run": run.id}
    job, route = system_job(COMPACT, derived_id(run.id, "compact"), payload, tenant=run.tenant)
    await enqueue(tx, [job], [route])


def compact_definition(compactor: Compactor) -> Definition:
    """How a worker looks at a session after a run of it."""

    async def compact(ctx: JobContext, session: str, config: dict[str, Any], run: str | None = None) -> str:
        try:
            return await _after_run(
                compactor, ctx, session, Compaction.of(config), CompactionTrigger("after_run", reporting_run=run)
            )
        except (SessionBusy, NotFound) as reason:
            return f"left alone: {reason}"
        except (ModelFailure, UsageError) as failure:
            if isinstance(failure, ModelFailure) and failure.transient:
                raise
            log.warning("session %s is not compacted: %s", session, shown(failure))
            return f"not compacted: {failure}"

    return system_definition(COMPACT, compact)


async def _after_run(
    compactor: Compactor, ctx: JobContext, session: str, config: Compaction, acting: CompactionTrigger
) -> str:
    judged = await compactor.judge(ctx.database, session, config)
    if judged.is_due and (lack := compactor.lack(judged)) is not None:
        raise Snooze(_OTHERS, f"it is left to other workers: {lack}")
    if judged.is_due and not judged.is_trusted(judged.limit):
        judged = await compactor.counted(judged)
    plan = judged.plan() if judged.is_due and judged.is_trusted(judged.limit) else None
    if plan is None or not judged.is_worth(plan):
        return "no need"
    pruning = judged.pruning()
    instead = pruning if pruning is not None and judged.is_worth(pruning) else None
    done = await _with_less(compactor, ctx, judged, plan, instead, acting)
    if isinstance(done, ExceededBudget):
        return f"not compacted: {done.words}"
    return f"compacted: {done.tokens_before} to {done.tokens_after} tokens"


async def _with_less(  # noqa: PLR0917  what is done, and what instead
    compactor: Compactor,
    ctx: JobContext,
    judged: MeasuredHistory,
    plan: CompactionPlan,
    instead: CompactionPlan | None,
    acting: CompactionTrigger,
) -> CompactionRow | ExceededBudget:
    """Carry a plan out; when there is no summary to be had, at least take out what costs nothing."""
    try:
        done = await compactor.carry_out(ctx.database, judged, plan, acting)
    except (ModelFailure, UsageError) as failure:
        if instead is None or plan.pruned:
            raise
        log.warning("session %s is compacted without a summary: %s", judged.read.session, shown(failure))
    else:
        if instead is None or not isinstance(done, ExceededBudget):
            return done
    return await compactor.carry_out(ctx.database, judged, instead, acting)


class CompactionCall(NamedTuple):
    """A call of a run that is about to be made."""

    run: LoadedRun
    spec: AgentSpec
    request: Request
    window: Sequence[WindowBlock]
    new: Sequence[dict[str, Any]]  # what it says that is not stored yet

    def asking(self, config: Compaction) -> PlannedCall:
        teller = RequestModel(self.request.model, self.spec)
        window = teller.window(config)
        most = window - min(self.request.max_tokens, window // 2)
        # What a run has begun continues as long as the provider takes it.
        return PlannedCall(teller, self.request, self.new, most, window if self.run.turns else most, self.run.id)

    @property
    def tokens(self) -> int | None:
        """How large it is at most, by the last call of the run; None: nothing is known of that."""
        if self.run.reported is None:
            return None
        last = derived_id(self.run.id, "answer", self.run.turns)
        at = max((number for number, row in enumerate(self.window) if row.message == last), default=-1)
        since = sum(estimate(codec.decode(row.body)) for row in self.window[at + 1 :])
        return self.run.reported + _DOUBT * (since + (estimate(list(self.new)) if self.new else 0))

    @property
    def is_in_tool_loop(self) -> bool:
        """Whether the last answer has called tools: what was sent with them must be sent again as it was."""
        last = next((row.message for row in reversed(self.window) if row.role == "assistant"), None)
        called = any(row.message == last and row.type == "tool_use" for row in self.window)
        paused = bool(self.window) and self.window[-1].role == "assistant"
        return called or paused or server_tool_is_open(self.window)


Room = Literal["enough", "full"] | ExceededBudget | Outcome | None


async def make_room(compactor: Compactor, ctx: JobContext, call: CompactionCall) -> Room:
    """Before a call of a run: see that it fits. None: the history was compacted, load it again.

    "full": it does not fit and cannot be made to, so it is not worth sending. `ExceededBudget`: what would make it fit
    does not fit into a budget. An outcome: try again later. Far from the limit this asks neither the store nor the
    provider, but for the first call of a run, which may have other words before it than the last one had.
    """
    run, config = call.run, _config_of(call.spec)
    if config is None or codec.decode(run.options).get("beyond_window"):
        return "enough"
    asking = call.asking(config)
    if run.turns:
        bound = run.parent is not None or call.is_in_tool_loop
        tokens = call.tokens
        if tokens is not None and tokens <= (asking.worst if bound else asking.most):
            return "enough"
        if bound:
            return await _loop_room(compactor, run, config, asking)
    elif run.parent is not None:
        return "enough"
    judged = await compactor.judge(ctx.database, run.session, config, asking)
    if _is_over(judged, asking) is not None and _may_matter(judged, asking):
        judged = await compactor.counted(judged)
    over = _is_over(judged, asking)
    if over is None or not judged.is_trusted(over) or (run.turns and over < asking.most):
        return "enough"
    return await _compact(compactor, ctx, call, judged)


def _is_over(judged: MeasuredHistory, asking: PlannedCall) -> float | None:
    """The limit that the call has reached: what fits, or else the trigger."""
    if judged.size.tokens > asking.most:
        return asking.most
    return judged.limit if judged.is_due else None


def _may_matter(judged: MeasuredHistory, asking: PlannedCall) -> bool:
    """Whether anything would be done about it."""
    plan = judged.plan()
    return judged.size.tokens > asking.most or (plan is not None and judged.is_worth(plan))


async def _loop_room(compactor: Compactor, run: LoadedRun, config: Compaction, asking: PlannedCall) -> Room:
    """Nothing may be taken out: it fits, or it does not."""
    known = Size(run.reported or 0, 1.0, "usage", run.reported or 0)
    size = await compactor.count(asking.request, known) if config.count_tokens else known
    return "full" if size.sure > asking.worst else "enough"


async def _compact(compactor: Compactor, ctx: JobContext, call: CompactionCall, judged: MeasuredHistory) -> Room:
    asking = judged.asking
    assert asking is not None, "it is judged for a call"
    fits, plan, pruning = judged.size.tokens <= asking.most, judged.plan(), judged.pruning()
    # Whether it really does not fit is the provider's to say: without that word, it is sent.
    refused = judged.size.tokens > asking.worst and judged.is_sure(asking.worst)
    at_worst: Literal["enough", "full"] = "full" if refused else "enough"
    if plan is None or (fits and not judged.is_worth(plan)):
        return at_worst
    helps = pruning is not None and (
        judged.is_worth(pruning) if fits else judged.size.tokens - pruning.gain <= asking.most
    )
    acting = CompactionTrigger("before_call", call.run, ctx.lease)
    try:
        done = await _with_less(compactor, ctx, judged, plan, pruning if helps else None, acting)
    except SessionBusy as reason:
        return Snooze(_PAUSE, str(reason))
    except (ModelFailure, UsageError) as failure:
        return _without(call, judged, failure, at_worst)
    if not isinstance(done, ExceededBudget):
        return None
    return "enough" if fits else done


def _without(
    call: CompactionCall,
    judged: MeasuredHistory,
    failure: ModelFailure | UsageError,
    at_worst: Literal["enough", "full"],
) -> Room:
    """There is no summary: continue as it is if that may do, and otherwise wait for one as long as that may help."""
    log.warning("session %s is not compacted before run %s: %s", call.run.session, call.run.id, shown(failure))
    if at_worst == "enough":
        return at_worst
    before = judged.read.open
    tried = 1 + (before.attempts if before is not None and before.run == call.run.id else 0)
    if isinstance(failure, ModelFailure) and failure.transient and tried < call.spec.attempts:
        pause = failure.retry_after or min(_LONGEST_PAUSE, 0.5 * 2**tried)
        return ProviderWait(f"{round(pause * 1e6)}us", f"the summariser failed: {failure}")
    return at_worst


def _config_of(spec: AgentSpec) -> Compaction | None:
    """What is done by itself; the provider's own way is not ours to do."""
    config = Compaction.of(spec.compaction) if spec.compaction else None
    return None if config is None or config.strategy == "provider" or not config.automatic else config
