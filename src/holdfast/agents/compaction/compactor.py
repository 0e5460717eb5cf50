"""The compactor: less of a session's history is sent, all of it is kept.

Read, decide, have it summarised, apply. What is applied is one transaction under the session's lock, and only if the
history is still what was read and no run is under way; otherwise nothing has happened. A summary is stored where it is
applied: one that was bought and stored is never bought again, and every call is accounted for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from holdfast.agents.compaction.commit import (
    MOST_ATTEMPTS,
    CompactionChange,
    CompactionIntent,
    CompactionPrice,
    apply_compaction,
    begin_compaction,
    fail_compaction,
    restore_compaction,
)
from holdfast.agents.compaction.config import Compaction
from holdfast.agents.compaction.measure import (
    RequestModel,
    Size,
    config_of,
    counted,
    is_near,
    measure,
    model_of,
    request_for,
    spec_of,
)
from holdfast.agents.compaction.partition import (
    HistoryMessage,
    Partition,
    PrunedBlocks,
    SummaryTask,
    Unit,
    partition,
    prune,
    summarize,
    summary_block,
    summary_of,
    summary_request,
)
from holdfast.agents.compaction.partition import read as read_history
from holdfast.agents.compaction.records import (
    CompactionRow,
    CompactionsSql,
    HistoryBlock,
    LastRun,
    LastUsage,
    LiveMessage,
)
from holdfast.agents.content import estimate
from holdfast.agents.money.budgets import ExceededBudget, is_limited
from holdfast.agents.providers import make_ready
from holdfast.agents.rows import LoadedRun
from holdfast.agents.runs.tracing import asking
from holdfast.agents.states import CompactionState
from holdfast.clock import Ports
from holdfast.errors import BudgetUsedUp, NotFound, NothingToCompact, SessionBusy, UsageError
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, Transactor, reading
from holdfast.kernel.ids import new_id
from holdfast.kernel.rows import Lease
from holdfast.models import Model, ModelFailure, Reply, Request
from holdfast.settings import Settings

if TYPE_CHECKING:
    from holdfast.agents.providers import ModelAccess

Cause = Literal["manual", "after_run", "before_call"]

NOBODY = "the session has no run yet, so no model is known: give Compaction(summarizer=…)."
_SLACK = 60.0  # seconds after which a call that has not ended has died
_WORTH = 0.05  # of the window: what happens by itself must make at least so much room


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStats:
    """How full a session is, and what could be done about it. Counts are of messages, `source` says who counted."""

    session_id: str
    model: str
    window: int
    total_tokens: int
    usage_percent: float
    trigger_tokens: int
    target_tokens: int
    needs_compaction: bool
    messages: int
    protected_messages: int
    preserved_messages: int
    recent_messages: int
    summary_messages: int
    compactable_messages: int
    compactable_tokens: int
    prunable_outputs: int
    source: str


class SessionHistory(NamedTuple):
    """A session's history, as it was at one moment."""

    session: str
    generation: str
    rows: list[HistoryBlock]
    run: LastRun | None
    usage: LastUsage | None
    open: CompactionRow | None
    busy: str | None  # the run that is under way
    budgets: int  # whether there is any budget

    @property
    def seen(self) -> list[LiveMessage]:
        return list(dict.fromkeys(LiveMessage(row.message, row.preserved) for row in self.rows))


class CompactionPlan(NamedTuple):
    """What is to be done: outputs make room for placeholders, or units for a summary."""

    pruned: list[PrunedBlocks]
    summarized: list[Unit]
    gain: int  # in tokens, before the summary's own


class PlannedCall(NamedTuple):
    """A call that a run is about to make, and what is not stored yet of it.

    `most`: how large its request may be if all of the answer is to fit, too. Above `worst` it is not worth sending.
    """

    teller: RequestModel
    request: Request
    prompt: Sequence[dict[str, Any]]
    most: int
    worst: int
    run: str


class MeasuredHistory(NamedTuple):
    """A history with its size, its parts, and who would be asked."""

    read: SessionHistory
    config: Compaction
    teller: RequestModel
    history: list[HistoryMessage]
    parts: Partition
    size: Size
    asking: PlannedCall | None = None

    @property
    def window(self) -> int:
        return self.teller.window(self.config)

    @property
    def limit(self) -> float:
        return self.config.trigger * self.window

    @property
    def is_due(self) -> bool:
        return self.size.tokens >= self.limit

    def is_sure(self, limit: float) -> bool:
        """Whether it is known, and not only estimated, which side of a limit this is on."""
        return self.size.source == "provider" or self.size.sure >= limit

    def is_trusted(self, limit: float) -> bool:
        """Whether it is known well enough to do something about it: who has nothing counted trusts estimates."""
        return not self.config.count_tokens or self.is_sure(limit)

    def plan(self) -> CompactionPlan | None:
        """What to do; None when nothing may be touched."""
        pruning, units = self.pruning(), self.parts.compactable
        if pruning is not None and self.size.tokens - pruning.gain <= self.config.target_tokens:
            return pruning
        if not units:
            return None
        return CompactionPlan([], units, round(self.size.scale * sum(unit.tokens for unit in units)))

    def pruning(self) -> CompactionPlan | None:
        """What can be had without a summary, however little that is."""
        if self.config.strategy != "hybrid" or self.config.preserve_tool_outputs:
            return None
        pruned = [each for unit in self.parts.compactable for each in prune(unit)]
        gain = round(self.size.scale * sum(each.saved for each in pruned))
        return CompactionPlan(pruned, [], gain) if pruned else None

    def is_worth(self, plan: CompactionPlan) -> bool:
        return plan.gain >= _WORTH * self.window


class CompactionTrigger(NamedTuple):
    """For whom it is done: by hand, after a run, or by a run before its call, under that run's lease."""

    cause: Cause = "manual"
    run: LoadedRun | None = None
    lease: Lease | None = None
    reporting_run: str | None = None  # the run whose events report it; None: the session's last


@reading
async def look(tx: Transaction, session: str) -> SessionHistory:
    """Everything that decides. The generation first: if it still stands when this is applied, so does the rest."""
    held = await tx.one(CompactionsSql.find_generation, id=session)
    if held is None:
        raise NotFound(f"there is no session {session} in this database.")
    busy = await tx.one(CompactionsSql.under_way, session=session)
    return SessionHistory(
        session,
        held.generation,
        await tx.many(CompactionsSql.history, session=session),
        await tx.one(CompactionsSql.last_run, session=session),
        await tx.one(CompactionsSql.last_usage, session=session),
        await tx.one(CompactionsSql.open_compaction, session=session, generation=held.generation),
        None if busy is None else busy.id,
        held.budgets,
    )


class Compactor:
    """Compacts sessions with the models of an app."""

    def __init__(self, models: ModelAccess, settings: Callable[[], Settings], ports: Callable[[], Ports]) -> None:
        self._models = models
        self._settings = settings
        self._ports = ports

    async def judge(
        self,
        store: Transactor,
        session: str,
        config: Compaction | None,
        asking: PlannedCall | None = None,
    ) -> MeasuredHistory:
        """Read a session and measure it; near a limit, the provider counts."""
        read = await store.transact(look, session)
        spec = spec_of(read.run)
        teller = RequestModel(model_of(read.run, spec), spec) if asking is None else asking.teller
        config = config_of(spec) if config is None else config
        history = read_history(read.rows)
        parts = partition(history, config, None if asking is None else asking.run)
        size = measure(teller, history, read.usage, () if asking is None else asking.prompt)
        judged = MeasuredHistory(read, config, teller, history, parts, size, asking)
        limits = (judged.limit,) if asking is None else (judged.limit, asking.most)
        return await self.counted(judged) if is_near(size, limits) else judged

    async def counted(self, judged: MeasuredHistory) -> MeasuredHistory:
        """With the provider's own count, unless it has been asked for already, is not wanted, or does not come."""
        read, teller, size = judged.read, judged.teller, judged.size
        if size.source == "provider" or not judged.config.count_tokens or not teller.model:
            return judged
        if judged.asking is not None:
            request = judged.asking.request
        elif not judged.history:
            return judged
        else:
            credential = self._models.credential(teller.model)
            request = request_for(teller, read.rows, credential=credential, generation=read.generation)
        return judged._replace(size=await self.count(request, size))

    async def count(self, request: Request, size: Size) -> Size:
        """The size by the provider's own count; what is known here, if it does not say."""
        try:
            model = self._models.open(request.model)
        except (ModelFailure, UsageError):  # the caller may have no key, and needs none to look
            return size
        return await counted(model, request, size)

    async def config_of(self, store: Transactor, session: str) -> Compaction:
        """How a session is compacted where nothing else is said: as its last agent has it, or the defaults."""
        return config_of(spec_of((await store.transact(look, session)).run))

    async def stats(self, store: Transactor, session: str, config: Compaction | None) -> CompactionStats:
        judged = await self.judge(store, session, config)
        parts, size, units = judged.parts, judged.size, judged.parts.compactable
        return CompactionStats(
            session_id=session,
            model=judged.teller.model,
            window=judged.window,
            total_tokens=size.tokens,
            usage_percent=round(100 * size.tokens / judged.window, 2),
            trigger_tokens=round(judged.limit),
            target_tokens=judged.config.target_tokens,
            needs_compaction=judged.is_due,
            messages=len(judged.history),
            protected_messages=parts.count("protected"),
            preserved_messages=parts.count("preserved"),
            recent_messages=parts.count("recent"),
            summary_messages=parts.count("summary"),
            compactable_messages=parts.count("compactable"),
            compactable_tokens=round(size.scale * sum(unit.tokens for unit in units)),
            prunable_outputs=sum(each.outputs for unit in units for each in prune(unit)),
            source=size.source,
        )

    async def compact(self, store: Transactor, session: str, config: Compaction | None) -> CompactionRow:
        judged = await self.judge(store, session, config)
        _check_ours(judged.config)
        plan = judged.plan()
        if plan is None and judged.read.busy is None:
            raise NothingToCompact(session, judged.parts.count("protected") + judged.parts.count("recent"))
        return _paid(session, await self.carry_out(store, judged, plan, CompactionTrigger()))

    async def compact_if_needed(
        self, store: Transactor, session: str, config: Compaction | None
    ) -> CompactionRow | None:
        """None: it is not time yet, or nothing worth the while may be touched."""
        judged = await self.judge(store, session, config)
        plan = judged.plan() if judged.is_due else None
        if plan is None or not judged.is_worth(plan):
            return None
        _check_ours(judged.config)
        return _paid(session, await self.carry_out(store, judged, plan, CompactionTrigger()))

    async def carry_out(
        self, store: Transactor, judged: MeasuredHistory, plan: CompactionPlan | None, acting: CompactionTrigger
    ) -> CompactionRow | ExceededBudget:
        """Do what was planned, unless a budget does not hold it.

        `SessionBusy` when the session has moved on meanwhile; `ModelFailure` of the model.
        """
        read = judged.read
        ours = None if acting.run is None else acting.run.id
        if read.busy not in (None, ours) or plan is None:
            raise SessionBusy(f"session {read.session} has an active run ({read.busy}); compact it after that run.")
        if plan.pruned:
            intent = self._intent(judged, acting, "", fresh=True)
            change = self._pruning(judged, plan, intent.id)
            return _applied(await store.transact(apply_compaction, change, intent, None, acting.lease))
        model = judged.config.summarizer or judged.teller.model
        if not model:
            raise UsageError(NOBODY)
        intent = self._intent(judged, acting, model, fresh=False)
        request = self._request(judged, plan, model)
        price = CompactionPrice(
            self._most(judged, request, acting.run), round((request.total + _SLACK) * 1e6), acting.run
        )
        opened = await make_ready(self._models, model)
        begun = await store.transact(begin_compaction, intent, price, acting.lease)
        if isinstance(begun, ExceededBudget):
            return begun
        intent = intent._replace(attempts=begun.attempts)
        reply = await self._ask(store, opened, replace(request, call=f"{intent.id}/summary/{intent.attempts}"), intent)
        change = self._summary(judged, plan, intent.id, summary_of(reply))
        return _applied(await store.transact(apply_compaction, change, intent, self._spent(model, reply), acting.lease))

    def lack(self, judged: MeasuredHistory) -> str | None:
        """What is missing here, so that neither the history can be counted nor a summary be written."""
        models = [name for name in (judged.teller.model, judged.config.summarizer) if name]
        return next((lack for name in models if (lack := self._models.lack(name)) is not None), None)

    def _request(self, judged: MeasuredHistory, plan: CompactionPlan, model: str) -> Request:
        settings = self._settings()
        return summary_request(
            SummaryTask(plan.summarized, judged.parts.context, model, judged.config.summarizer_max_tokens),
            call="",
            idle=settings.model_idle.total_seconds(),
            total=settings.model_total.total_seconds(),
        )

    def _most(self, judged: MeasuredHistory, request: Request, run: LoadedRun | None) -> int:
        """The most that a summary may cost; nobody asks where there is no budget, and no limit over several runs."""
        if not judged.read.budgets and (run is None or not is_limited(run)):
            return 0
        return self._models.most_nano(request.model, estimate([request.system, request.messages]), request.max_tokens)

    async def _ask(
        self, store: Transactor, model: Model | ModelFailure | UsageError, request: Request, intent: CompactionIntent
    ) -> Reply:
        try:
            if isinstance(model, Exception):
                raise model
            with asking(self._ports(), self._models, request, intent.session) as span:
                reply = span.answered(await summarize(model, request))
        except (ModelFailure, UsageError) as failure:
            unknown = isinstance(failure, ModelFailure) and failure.bought == "unknown"
            await store.transact(fail_compaction, intent, str(failure), None, unknown=unknown)
            raise
        if not summary_of(reply):
            why = f"model {intent.model} wrote no summary (it stopped for {reply.stop_reason})"
            await store.transact(fail_compaction, intent, why, self._spent(intent.model, reply), unknown=False)
            raise ModelFailure("bad_request", f"{why}; nothing was compacted. Choose another summarizer.", bought="no")
        return reply

    async def restore(self, store: Transactor, session: str) -> CompactionRow:
        read = await store.transact(look, session)
        if not read.generation:
            raise UsageError(f"session {session} has no compaction to undo.")
        return await store.transact(restore_compaction, session, read.generation)

    def _intent(
        self, judged: MeasuredHistory, acting: CompactionTrigger, model: str, *, fresh: bool
    ) -> CompactionIntent:
        read, run = judged.read, None if acting.run is None else acting.run.id
        left = None if fresh else read.open
        again = left if left is not None and left.attempts < MOST_ATTEMPTS and _is_free(left, run) else None
        return CompactionIntent(
            id=new_id(self._ports()) if again is None else again.id,
            session=read.session,
            run=run,
            strategy=judged.config.strategy,
            trigger=acting.cause,
            model=model,
            config=codec.encode(judged.config.plain(), what="a compaction", cap=1 << 20),
            generation=read.generation,
            tokens_before=judged.size.tokens,
            attempts=0 if again is None else again.attempts,
            reporting_run=acting.reporting_run or run or (None if read.run is None else read.run.id),
            leaves=left if again is None else None,
        )

    def _pruning(self, judged: MeasuredHistory, plan: CompactionPlan, id: str) -> CompactionChange:
        change = CompactionChange.begun(judged.read.seen, judged.size.tokens - plan.gain)
        for each in plan.pruned:
            change = change.replaced([each.message], each.message, each.message.kind, each.blocks, id)
        return change._replace(pruned=sum(each.outputs for each in plan.pruned))

    def _summary(self, judged: MeasuredHistory, plan: CompactionPlan, id: str, text: str) -> CompactionChange:
        gone = [message for unit in plan.summarized for message in unit.messages]
        block = summary_block(text, len(gone))
        after = judged.size.tokens - plan.gain + round(judged.size.scale * len(text) / 4)
        change = CompactionChange.begun(judged.read.seen, max(0, after)).replaced(
            gone, gone[-1], "summary", [block], id
        )
        return change._replace(removed=len(gone), summary=text)

    def _spent(self, model: str, reply: Reply) -> dict[str, Any]:
        usage = reply.usage
        return {
            "usage": codec.encode(usage, what="the usage", cap=1 << 20),
            "input_tokens": int(usage.get("input_tokens") or 0),
            "output_tokens": int(usage.get("output_tokens") or 0),
            "cache_write_tokens": int(usage.get("cache_creation_input_tokens") or 0),
            "cache_read_tokens": int(usage.get("cache_read_input_tokens") or 0),
            "cost_nano": self._models.cost_nano(reply.model or model, usage),
        }


def _applied(done: CompactionRow | str) -> CompactionRow:
    if isinstance(done, str):
        raise SessionBusy(done)
    return done


def _is_free(left: CompactionRow, run: str | None) -> bool:
    """Whether this run may continue one that began earlier: what that one has cost is part of what its own run used."""
    return left.run == run or (left.state == CompactionState.FAILED and left.usage is None)


def _paid(session: str, done: CompactionRow | ExceededBudget) -> CompactionRow:
    if isinstance(done, ExceededBudget):
        raise BudgetUsedUp(f"session {session} is not compacted", done.budget, done.words)
    return done


def _check_ours(config: Compaction) -> None:
    if config.strategy == "provider":
        raise UsageError(
            'strategy "provider" is the provider\'s own, inside the calls of an agent: hf.agent(…, compaction=…). '
            'By hand, use "hybrid" or "summarize".'
        )
