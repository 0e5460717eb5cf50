"""The loop of a run: it plays turn after turn until there is nothing more to ask.

A turn is told in `_Turn`, from the top: see what stands in its way, begin, call, decide, commit, or fail. What each of
these steps stores is in `holdfast.agents.runs.turn`. One claim plays turns until the run ends, waits for its tools, or
has to wait for something else. Whatever kills the worker, the next one finds either the state before a turn or the
state after it. A recorded answer is never bought again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, assert_never

from holdfast.agents import fallback, lanes
from holdfast.agents.batches.mode import choose_turn, limit_left
from holdfast.agents.batches.results import commit_kept, reply_of
from holdfast.agents.batches.steps import BatchDestination, batch_lane, body_text, defer
from holdfast.agents.compaction.automatic import CompactionCall, make_room
from holdfast.agents.compaction.compactor import Compactor
from holdfast.agents.compaction.config import FULL
from holdfast.agents.content import readable
from holdfast.agents.definition import AgentSpec, Mode
from holdfast.agents.events.log import Journal, Piece
from holdfast.agents.fallback import (
    FailureStep,
    FailureTerms,
    GiveUp,
    NextModel,
    RepairResults,
    Retry,
    WaitForLane,
    check_played_here,
)
from holdfast.agents.keys import handed_back
from holdfast.agents.money.budgets import BudgetWait, ExceededBudget, is_limited, is_tree
from holdfast.agents.money.cost import most_nano, spent_on
from holdfast.agents.money.limits import is_last, limits_of, missing_price, reached
from holdfast.agents.providers import ModelAccess, make_ready
from holdfast.agents.rows import LoadedRun, ProviderLaneRow
from holdfast.agents.runs import tracing, turn
from holdfast.agents.runs.decision import (
    ApprovalRule,
    Decider,
    Decision,
    ask_rule,
    asked_calls,
    never,
    repair_calls,
    run_inquiry,
    used_ids,
)
from holdfast.agents.runs.end import INTERRUPTED, Conclusion
from holdfast.agents.runs.history import (
    BuiltRequest,
    CallBounds,
    ask,
    said_before,
    server_tool_is_open,
    text_of,
    was_corrected,
)
from holdfast.agents.runs.output import OutputTypes, unknown_type
from holdfast.agents.runs.turn import Answer, CommitResult, Intent, Play, TurnInputs, interrupted
from holdfast.agents.tenant_policy import TenantPolicy, named_by
from holdfast.clock import Ports
from holdfast.durations import microseconds
from holdfast.errors import NotUnderstood, Unavailable, UsageError
from holdfast.kernel import codec
from holdfast.kernel.database import Database
from holdfast.kernel.ids import derived_id, new_id
from holdfast.kernel.rows import Lease
from holdfast.models import InputPiece, Model, ModelFailure, Reply, ReplyFold, ResponseHead, TextPiece, ThinkingPiece
from holdfast.models.protocol import Wire
from holdfast.outcomes import Cancel, Fail, Outcome, Settled, Snooze, StoreTrouble
from holdfast.settings import Settings
from holdfast.text import shown
from holdfast.workers.context import JobContext

log = logging.getLogger("holdfast.agents")

_STORE_PAUSE = 1.0
_DELTAS = {TextPiece: "text_delta", ThinkingPiece: "thinking_delta", InputPiece: "input_delta"}

Free = Literal["free"]
Journals = weakref.WeakKeyDictionary[Database, Journal]

parse = lru_cache(maxsize=1_000)(AgentSpec.parse)


class RunLoop:
    """Plays runs, on whichever worker has their leases."""

    def __init__(  # noqa: PLR0913  what an app tells it
        self,
        models: ModelAccess,
        settings: Callable[[], Settings],
        ports: Callable[[], Ports],
        *,
        approving: ApprovalRule = never,
        notify: Callable[[], bool] = lambda: False,
        reading: OutputTypes = unknown_type,
        has_tool: Callable[[str], bool] = lambda _: True,
        policy: TenantPolicy | None = None,
        here: Callable[[], object] = asyncio.get_running_loop,
    ) -> None:
        """`approving` says which calls a person has to approve, `notify` whether somebody wants to hear of that.

        `reading` knows the types of answers, `has_tool` whether a tool is here, so that its `approve=` can be asked.
        `policy` says what agents of a tenant may use.
        `here` is what the app has open on the running loop: see `core.LoopState`.
        """
        self._models = models
        self._settings = settings
        self._ports = ports
        self.approving = approving
        self.notify = notify
        self.reading = reading
        self.has_tool = has_tool
        self.policy = policy or TenantPolicy(settings, tuple, ports)
        self.compactor = Compactor(models, settings, ports)
        self._here = here
        self._journals: weakref.WeakKeyDictionary[object, Journals] = weakref.WeakKeyDictionary()

    async def play(self, ctx: JobContext) -> Outcome:
        """Play the run of this job as far as it goes. If the store was away, that is not the run's fault."""
        try:
            return await self._play(ctx)
        except Unavailable as problem:
            return StoreTrouble(str(problem))

    async def _play(self, ctx: JobContext) -> Outcome:
        loaded = await ctx.database.transact(turn.load, ctx.lease.seq)
        with tracing.invoking(self.ports, self._models, None if loaded is None else loaded.run) as span:
            while loaded is not None:
                outcome = await _Turn(self, ctx, loaded).play()
                if outcome is not None:
                    span.conclude(outcome)
                    return outcome
                loaded = await ctx.database.transact(turn.load, ctx.lease.seq)
        return Fail("the run of this job no longer exists")

    async def close(self) -> None:
        """Let go of what the workers have used that the app has here."""
        for journal in list(self._journals.pop(self._here(), {}).values()):
            await journal.close()

    def journal(self, database: Database) -> Journal:
        mine = self._journals.setdefault(self._here(), weakref.WeakKeyDictionary())
        if database not in mine:
            interval = self._settings().stream_interval.total_seconds()
            mine[database] = Journal(database, self._ports(), interval)
        return mine[database]

    @property
    def models(self) -> ModelAccess:
        return self._models

    @property
    def settings(self) -> Settings:
        return self._settings()

    @property
    def ports(self) -> Ports:
        return self._ports()


class _Turn:
    """Plays one turn of one run, from what was loaded to what is committed."""

    def __init__(self, loop: RunLoop, ctx: JobContext, loaded: TurnInputs) -> None:
        self._loop = loop
        self._ctx = ctx
        self._database = ctx.database
        self._lease: Lease = ctx.lease
        self._run: LoadedRun = loaded.run
        self._loaded = loaded
        self._spec = parse(loaded.run.definition)
        check_played_here(loaded.run, self._spec, loop.has_tool)
        options = codec.decode(loaded.run.options)
        self._model = self._spec.model_for(options.get("model"), loaded.run.fallback)
        self._prompt = [] if loaded.run.prompted else codec.decode(loaded.run.input)
        self._number = loaded.run.turns + 1
        self._play = Play(ctx.lease, loaded.run, self._number, loop.settings.announced, loop.notify())
        self._steers = [] if loaded.run.prompted and server_tool_is_open(loaded.window) else loaded.steers
        # What the next call says that is not stored yet.
        self._unsaid = [*self._prompt, *(block for steer in self._steers for block in codec.decode(steer.body))]
        self._lane = lanes.lane_of(loop.models.credential(self._model), self._model)
        self._request_id: str | None = None
        self._rate_limit_reset: float | None = None
        self._sent: Sequence[Wire] = ()

    async def play(self) -> Outcome | None:
        """None: play the next turn."""
        if (refusal := await self._refused()) is not None:
            return Fail(f"agent {self._spec.name!r} is not played: {refusal}")
        if (kept := self._loaded.kept) is not None:
            return await self._commit(reply_of(codec.decode(kept.body), self._model), kept.custom_id)
        stop = await self._held_back()
        if stop != "free":
            return stop
        if self._loop.models.lack(self._model) is not None:
            return handed_back(self._run, self._spec, self._model, self._loop.ports.random.random)
        asked, run = self._build_request(), self._run
        self._sent = asked.request.messages
        choice = choose_turn(run, limits_of(run, self._spec), asked.request.betas, self._loop.settings)
        if choice.mode != "batch" and (lane := lanes.closed(self._loaded.lanes, self._lane)) is not None:
            return await self._handle_closed_lane(lane)
        stop = await self._make_room(asked)
        if stop != "free":
            return stop
        reason = choice.reason if choice.mode != run.mode else ""
        most = self._most(asked, choice.mode)
        intent = Intent(self._model, asked.hash, asked.fingerprint, self._steers, most, reason)
        return await (self._defer if choice.mode == "batch" else self._stream)(asked, intent)

    async def _refused(self) -> str | None:
        """Why the agent of this run may not be played: its tenant wrote it, and may not use what it names."""
        if not self._run.owner:
            return None
        return await self._loop.policy.refusal(self._run.owner, named_by(self._spec), self._database.transact)

    async def _held_back(self) -> Outcome | Free | None:
        """What keeps the run from asking its model now."""
        run = self._run
        if self._loaded.ahead:
            return await self._queue_up()
        if run.interrupted is not None:
            return await self._conclude(Conclusion("truncated", self._last_text(), limited=INTERRUPTED))
        limit = await reached(self._database, run, self._spec)
        if limit is not None:
            return await self._limited(limit.limit, limit.words, ask=self._asks())
        return missing_price(self._loop.models, self._model, run, self._spec) or "free"

    async def _queue_up(self) -> Outcome | None:
        match await self._database.transact(turn.queue_up, self._play):
            case "waiting":
                return Settled()
            case "cancelled":
                return Cancel("cancelled before its turn came")
            case "first":
                return None

    async def _handle_closed_lane(self, lane: ProviderLaneRow) -> Outcome | None:
        """The lane is closed: wait, or, if it waits for a person or for too long, ask another model."""
        change = self._next_model()
        since = await fallback.waiting_since(self._ctx.ledger, self._number, change, lane)
        if change is None or not fallback.is_beyond(lane, self._spec, since):
            most = None if change is None else fallback.wait_left(lane, self._spec, since)
            waiting = self._database.transact(lanes.wait_for_lane, self._lease, lane.name, **self._patience(most))
            return lanes.after(await waiting)
        await self._database.transact(fallback.pass_closed_lane, self._play, change, lanes.explain(lane))
        return None

    def _patience(self, most_us: int | None = None) -> dict[str, Any]:
        """How long it may wait behind a lane, and its place among those who come back then."""
        left_us = limit_left(self._run, limits_of(self._run, self._spec))
        waits = [us for us in (left_us, most_us) if us is not None]
        return {"left_us": min(waits) if waits else None, "chance": self._loop.ports.random.random()}

    def _next_model(self) -> fallback.ModelChange | None:
        return fallback.next_model(self._run, self._spec, self._loaded.window)

    async def _make_room(self, asked: BuiltRequest) -> Outcome | Free | None:
        """Compact the history before a call that would not fit."""
        if self._spec.compaction is None:
            return "free"
        call = CompactionCall(self._run, self._spec, asked.request, self._loaded.window, self._unsaid)
        room = await make_room(self._loop.compactor, self._ctx, call)
        if isinstance(room, ExceededBudget):
            return await self._over(room)
        if room == "full":
            return await self._full()
        return "free" if room == "enough" else room

    async def _full(self) -> Outcome | None:
        """The next call does not fit into the model's window: the run ends with what it has, or a person is asked."""
        if self._asks():
            return await self._limited(FULL, FULL, ask=True)
        return await self._conclude(Conclusion("truncated", self._last_text(), limited=FULL))

    def _build_request(self) -> BuiltRequest:
        run, settings = self._run, self._loop.settings
        total = settings.model_total.total_seconds()
        limits = limits_of(run, self._spec)
        if limits.time is not None:
            left = (microseconds(limits.time) - (run.now - run.created_at)) / 1e6
            total = min(total, max(1.0, left))
        return ask(
            self._spec,
            self._model,
            self._loaded.window,
            self._unsaid,
            credential=self._loop.models.credential(self._model),
            container=run.container,
            bounds=CallBounds(
                f"{run.id}/{self._number}/{self._lease.fence}", settings.model_idle.total_seconds(), total
            ),
            generation=run.generation,
            now=run.now,
        )

    def _most(self, asked: BuiltRequest, mode: Mode) -> int:
        """The most that this call may cost; nobody asks where there is no budget, and no limit over several runs."""
        if not self._run.budgets and not is_limited(self._run):
            return 0
        return most_nano(self._loop.models, asked.request, mode, self._run, self._loaded.window, self._unsaid)

    async def _stream(self, asked: BuiltRequest, intent: Intent) -> Outcome | None:
        """Begin, call, decide, commit; or fail."""
        model = await make_ready(self._loop.models, self._model)
        await self._loop.journal(self._database).listen()
        stop = await self._begin(intent)
        if stop != "free":
            return stop
        self._ctx.require_lease()
        try:
            with tracing.asking(self._loop.ports, self._loop.models, asked.request, self._run) as span:
                reply = span.answered(await self._call(model, asked))
        except ModelFailure as failure:
            return await self._fail(failure)
        outcome = await self._commit(reply)
        with contextlib.suppress(Unavailable):  # the answer is stored; others find out by themselves
            await self._tell_lane()
        return outcome

    async def _begin(self, intent: Intent) -> Outcome | Free | None:
        """Store that the model is about to be called."""
        match await self._database.transact(turn.begin, self._play, self._prompt, intent):
            case "begun":
                return "free"
            case "again":
                return None
            case "cancelled":
                return Cancel("cancelled before the model was asked")
            case ExceededBudget() as over:
                return await self._over(over)

    async def _call(self, model: Model | ModelFailure | UsageError, asked: BuiltRequest) -> Reply:
        """Ask the model, and show what it says while it says it. Its intent is stored: nothing else may come before."""
        if isinstance(model, Exception):
            raise model
        journal, run = self._loop.journal(self._database), self._run.id
        folding, said = ReplyFold(), Counter[int]()
        stream = model.stream(asked.request, self._answered)
        scope = asyncio.timeout(None)
        try:
            async with scope, aclosing(stream):
                with journal.interruptible(self._lease, run, scope):
                    async for event in stream:
                        journal.alive(self._lease, run)
                        delta = folding.feed(event)
                        if delta is not None:
                            text = readable(delta.partial_json if isinstance(delta, InputPiece) else delta.text)
                            place = said[delta.index]
                            said[delta.index] += len(text)
                            kind = _DELTAS[type(delta)]
                            journal.put(self._lease, run, Piece(kind, self._number, delta.index, place, [text]))
        except TimeoutError:
            if not scope.expired():  # it is the model's own, not that of an interruption
                journal.drop(self._lease, run)
                raise
            return turn.partial_reply(folding)
        except BaseException:
            journal.drop(self._lease, run)
            raise
        if not folding.complete:
            raise ModelFailure("cut", "the stream ended before the answer was complete", bought="unknown")
        reply = folding.reply()
        return replace(reply, blocks=readable(reply.blocks))

    def _answered(self, answered: ResponseHead) -> None:
        self._request_id = answered.request_id
        self._rate_limit_reset = lanes.rate_limit_reset(answered, self._loop.ports.clock.wall_us() / 1e6)
        if answered.request_id:
            journal = self._loop.journal(self._database)
            journal.note_request(self._lease, self._run.id, self._number, answered.request_id)

    async def _commit(self, reply: Reply, kept: str | None = None) -> Outcome | None:
        """Store an answer: one that was streamed, or was kept from a batch, under this id."""
        reply, repairs = repair_calls(reply, self._run.id, self._number, used_ids(self._loaded.window))
        decision = await self._decide(reply)
        answer = Answer(
            model=reply.model or self._model,
            blocks=reply.blocks,
            stop_reason=reply.stop_reason or "",
            spent=spent_on(self._loop.models, reply.model or self._model, reply.usage, "batch" if kept else "standard"),
            request_id=(reply.id or None) if kept else self._request_id,
            container=(reply.container or {}).get("id"),
            deltas=await self._loop.journal(self._database).take(self._lease, self._run.id),
            repairs=repairs,
        )
        decision = tracing.linked(self._loop.ports, decision.within(last=is_last(self._run, self._spec, answer.spent)))
        match await self._store(answer, decision, kept):
            case "parked" | "ended":
                return Settled()
            case "cancelled":
                return Cancel("cancelled while the model answered")
            case "next":
                return None

    async def _decide(self, reply: Reply) -> Decision:
        """What follows from an answer."""
        if reply.stop_reason == INTERRUPTED:
            return interrupted(Decision(), text_of(reply.blocks))
        run, records, window, loop = self._run, self._loaded.records, self._loaded.window, self._loop
        approving = await ask_rule(loop.approving, asked_calls(run, self._spec, self._number, reply))
        deciding = Decider(run, self._spec, self._number, loop.settings, approving, records, loop.reading)
        before = said_before(window, run.id, self._number) if run.continued else ""
        return deciding.decide(reply, before, corrected=bool(run.continued) and was_corrected(window))

    async def _store(self, answer: Answer, decision: Decision, kept: str | None) -> CommitResult:
        """An answer is paid for: while the lease lasts, a store that is away is waited for."""
        change = self._next_model() if kept is None and fallback.is_refused(decision.conclusion) else None
        while True:
            try:
                if kept is not None:
                    return await self._database.transact(commit_kept, self._play, answer, decision, kept)
                if change is not None:
                    return await self._database.transact(fallback.commit_refused, self._play, answer, change)
                return await self._database.transact(turn.commit, self._play, answer, decision)
            except Unavailable:
                self._ctx.require_lease()
            await self._loop.ports.clock.sleep(_STORE_PAUSE)

    async def _tell_lane(self) -> None:
        """What an answer says of its lane, for everybody who asks through it."""
        if self._rate_limit_reset is not None:  # this was the last one for now
            await self._database.transact(lanes.close_spent, self._lane, round(self._rate_limit_reset * 1e6))
        elif lanes.is_reopened(self._loaded.lanes, self._lane):
            await self._database.transact(lanes.follow_answer, self._lane)

    async def _fail(self, failure: ModelFailure) -> Outcome | None:
        """Note that the call failed, and do what follows. This is the only place that retries a provider."""
        step = await self._note_failure(failure)
        if failure.closes_lane == "person":
            log.error("lane %s is closed until a person opens it (holdfast lanes open): %s", self._lane, shown(failure))
        match step:
            case RepairResults():
                return Snooze("0us", f"a result of a tool is replaced by an error: {failure}")
            case NextModel():
                if failure.closes_lane is not None:
                    await self._database.transact(lanes.close_for, self._lane, failure)
                return lanes.ProviderWait("0us", f"model {self._model} is no longer used: {failure}")
            case WaitForLane(left_us):
                patience = self._patience(left_us)
                return lanes.after(
                    await self._database.transact(lanes.close_and_wait, self._lease, self._lane, failure, **patience)
                )
            case GiveUp(error_type):
                return Fail(f"the model could not be called: {failure}", error_type)
            case Retry(after_us):
                said = "run %s: the provider failed, and is asked again in %.1f s (turn %d): %s"
                run = self._run.id
                log.warning(said, run, after_us / 1e6, self._number, shown(failure), extra={"run": run})
                return lanes.ProviderWait(f"{after_us}us", f"the provider failed: {failure}")
            case _:
                assert_never(step)

    async def _note_failure(self, failure: ModelFailure) -> FailureStep:
        """Store that the call failed, with what that changes; returns what follows."""
        transact = self._database.transact
        error = {"kind": failure.kind, "message": str(failure), "status": failure.status, "code": failure.code}
        error["request_id"] = failure.request_id or self._request_id
        if failure.closes_lane is not None:
            error["lane"] = self._lane
        if turn.may_repair_results(failure.kind, self._number):
            unknown = failure.bought == "unknown"
            if await transact(turn.fail_and_repair, self._play, error, self._sent, unknown=unknown):
                return RepairResults()
        change = self._next_model() if fallback.is_given_up_for(failure) else None
        patience_us = microseconds(self._loop.settings.provider_patience)
        terms = FailureTerms(self._spec.attempts, patience_us, change, fallback.limit_us(self._spec))
        chance = self._loop.ports.random.random
        return await transact(fallback.fail_call, self._play, failure, error, terms, chance)

    async def _defer(self, asked: BuiltRequest, intent: Intent) -> Outcome | None:
        """Leave the turn to a batch, and the run waits without a worker."""
        credential = self._loop.models.credential(self._model)
        where = BatchDestination(
            batch_lane(credential, self._model),
            self._model,
            credential,
            new_id(self._loop.ports),
            microseconds(self._loop.settings.batch_wait),
        )
        body = body_text(asked.request.body())
        left_us = limit_left(self._run, limits_of(self._run, self._spec))
        match await self._database.transact(defer, self._play, self._prompt, intent, body, where, left_us):
            case "again":
                return None
            case "cancelled":
                return Cancel("cancelled before its turn was put into a batch")
            case ExceededBudget() as over:
                return await self._over(over)
            case _:
                return Settled()

    async def _conclude(self, conclusion: Conclusion) -> Outcome:
        if not await self._database.transact(turn.conclude, self._play, self._prompt, conclusion):
            return Cancel("cancelled before its end was stored")
        return Settled()

    async def _limited(
        self, limit: str, words: str, *, ask: bool, over: ExceededBudget | None = None
    ) -> Outcome | None:
        """A limit is reached: the run ends, or a person is asked first."""
        if not ask:
            return await self._conclude(Conclusion("limited", self._last_text(), limited=words))
        data: dict[str, Any] = {"limit": limit, "reason": words, "text": self._last_text()}
        if over is not None:
            data |= {"budget": over.budget, "portion": over.portion}
        inquiry = run_inquiry(self._run, self._number, "limit", data, within=limits_of(self._run, self._spec).within)
        match await self._database.transact(turn.ask_person, self._play, self._prompt, inquiry):
            case "asked":
                return Settled()
            case "again":
                return None
            case "cancelled":
                return Cancel("cancelled before a person was asked")

    async def _over(self, over: ExceededBudget) -> Outcome | None:
        """The next call does not fit into a budget any more."""
        if over.policy == "wait":
            return BudgetWait(f"{over.wait_us}us", over.words)
        if is_tree(over.budget):
            return await self._limited("cost", over.words, ask=self._asks(), over=over)
        if over.policy not in ("end", "ask"):
            raise NotUnderstood(f"budget {over.budget}", f"its policy is {over.policy!r}")
        return await self._limited("budget", over.words, ask=over.policy == "ask", over=over)

    def _asks(self) -> bool:
        """Whether a person is asked when a limit of the run is reached."""
        return self._run.parent is None and limits_of(self._run, self._spec).on_limit == "ask"

    def _last_text(self) -> str:
        """The last text of this run, not of those before it in the session."""
        mine = {derived_id(self._run.id, "answer", number) for number in range(1, self._number)}
        said = [row for row in self._loaded.window if row.message in mine and row.type == "text"]
        return text_of([codec.decode(said[-1].body)]) if said else ""
