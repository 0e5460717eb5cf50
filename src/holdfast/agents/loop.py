"""The loop of a run: load, ask, commit, until there is nothing more to ask.

One claim plays turns until the run ends, waits for its tools, or has to wait for something else. Whatever kills the
worker, the next one finds either the state before a turn or the state after it. A recorded answer is never bought
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, Protocol

from holdfast.agents import fallbacks, turns
from holdfast.agents.answering import INTERRUPTED, PROVIDER_ERROR, Answer, Conclusion, Decision
from holdfast.agents.asking import Asked, Bounds, ask
from holdfast.agents.batches.batching import Gathering, batch_lane, body_text, defer
from holdfast.agents.batches.choosing import choose_turn, limit_left
from holdfast.agents.batches.replying import commit_kept, reply_of
from holdfast.agents.compaction.automatic import Call, make_room
from holdfast.agents.compaction.compacting import Compactor
from holdfast.agents.compaction.config import FULL
from holdfast.agents.contents import readable
from holdfast.agents.deciding import Approving, Deciding, never, run_inquiry
from holdfast.agents.definitions import AgentSpec, Mode
from holdfast.agents.history import said_before, server_tool_is_open, text_of
from holdfast.agents.journal import Journal, Piece
from holdfast.agents.lanes import PERSON_PAUSE, close_lane, closed, lane_of, spent_up
from holdfast.agents.money.budgets import Over
from holdfast.agents.money.limits import is_last, limits_of, reached
from holdfast.agents.money.spending import spent_on
from holdfast.agents.records import FailedTurn, LoadedRun
from holdfast.agents.sizing import estimate
from holdfast.agents.turns import Committed, Intent, Loaded, Play, interrupted
from holdfast.clock import Ports
from holdfast.durations import microseconds
from holdfast.errors import Unavailable
from holdfast.kernel import encoding
from holdfast.kernel.database import Database
from holdfast.kernel.ids import derived_id, new_id
from holdfast.kernel.records import Lease
from holdfast.models import Answered, Folding, InputDelta, Model, ModelFailure, Reply, TextDelta, ThinkingDelta
from holdfast.models.prices import Tier
from holdfast.outcomes import Cancel, Fail, Outcome, Settled, Snooze
from holdfast.settings import Settings
from holdfast.workers.context import JobContext

log = logging.getLogger("holdfast.agents")

_STORE_PAUSE = 1.0
_DELTAS = {TextDelta: "text_delta", ThinkingDelta: "thinking_delta", InputDelta: "input_delta"}

Free = Literal["free"]

parse = lru_cache(maxsize=1_000)(AgentSpec.parse)


class Models(Protocol):
    """Where the loop gets its models from."""

    def open(self, name: str) -> Model: ...

    def credential(self, name: str) -> str:
        """Which account pays: a name for it, never the key."""

    def cost_nano(self, model: str, usage: dict[str, Any], tier: Tier = "standard") -> int: ...

    def most_nano(self, model: str, input_tokens: int, max_tokens: int, tier: Tier = "standard") -> int:
        """The most a call may cost."""


class RunLoop:
    """Plays runs, on whichever worker has their leases."""

    def __init__(
        self,
        models: Models,
        settings: Callable[[], Settings],
        ports: Callable[[], Ports],
        *,
        approving: Approving = never,
        notify: Callable[[], bool] = lambda: False,
    ) -> None:
        """`approving` says which calls a person has to approve, `notify` whether somebody wants to hear of that."""
        self._models = models
        self._settings = settings
        self._ports = ports
        self.approving = approving
        self.notify = notify
        self.compactor = Compactor(models, settings, ports)
        self._journals: weakref.WeakKeyDictionary[Database, Journal] = weakref.WeakKeyDictionary()

    async def play(self, ctx: JobContext) -> Outcome:
        """Play the run of this job as far as it goes. That the store was away is no fault of the run's."""
        try:
            return await self._play(ctx)
        except Unavailable as problem:
            return Snooze(f"{_STORE_PAUSE}s", str(problem))

    async def _play(self, ctx: JobContext) -> Outcome:
        while True:
            loaded = await ctx.database.transact(turns.load, ctx.lease.seq)
            if loaded is None:
                return Fail("the run of this job is no longer there")
            outcome = await _Turn(self, ctx, loaded).play()
            if outcome is not None:
                return outcome

    async def close(self) -> None:
        """Let go of what this event loop's workers have used."""
        loop = asyncio.get_running_loop()
        for database, journal in list(self._journals.items()):
            if journal.loop is loop:
                await journal.close()
                self._journals.pop(database, None)

    def journal(self, database: Database) -> Journal:
        if database not in self._journals:
            interval = self._settings().stream_interval.total_seconds()
            self._journals[database] = Journal(database, self._ports(), interval)
        return self._journals[database]

    @property
    def models(self) -> Models:
        return self._models

    @property
    def settings(self) -> Settings:
        return self._settings()

    @property
    def ports(self) -> Ports:
        return self._ports()


class _Turn:
    """One turn of one run, from what was loaded to what is committed."""

    def __init__(self, loop: RunLoop, ctx: JobContext, loaded: Loaded) -> None:
        self._loop = loop
        self._ctx = ctx
        self._database = ctx.database
        self._lease: Lease = ctx.lease
        self._run: LoadedRun = loaded.run
        self._loaded = loaded
        self._spec = parse(loaded.run.definition)
        options = encoding.decode(loaded.run.options)
        self._model = self._spec.model_for(options.get("model"), loaded.run.fallback)
        self._prompt = [] if loaded.run.prompted else encoding.decode(loaded.run.input)
        self._number = loaded.run.turns + 1
        self._play = Play(ctx.lease, loaded.run, self._number, loop.settings.announced, loop.notify())
        self._steers = [] if loaded.run.prompted and server_tool_is_open(loaded.window) else loaded.steers
        # What the next call says that is not stored yet.
        self._unsaid = [*self._prompt, *(block for steer in self._steers for block in encoding.decode(steer.body))]
        self._lane = lane_of(loop.models.credential(self._model), self._model)
        self._request_id: str | None = None
        self._spent_up: float | None = None

    async def play(self) -> Outcome | None:
        """None: play the next turn."""
        if (kept := self._loaded.kept) is not None:
            return await self._commit(reply_of(encoding.decode(kept.body), self._model), kept.custom_id)
        stop = await self._held_back()
        if stop != "free":
            return stop
        asked, run = self._ask(self._loop.settings), self._run
        choice = choose_turn(run, limits_of(run, self._spec), asked.request.betas, self._loop.settings)
        if choice.mode != "batch" and (wait := closed(self._loaded.lanes, self._lane)) is not None:
            return await self._past(wait, self._lane)
        stop = await self._make_room(asked)
        if stop != "free":
            return stop
        reason = choice.reason if choice.mode != run.mode else ""
        most = self._most(asked, choice.mode)
        intent = Intent(self._model, asked.hash, asked.fingerprint, self._steers, most, reason)
        return await (self._defer if choice.mode == "batch" else self._stream)(asked, intent)

    async def _held_back(self) -> Outcome | Free | None:
        """What keeps the run from asking its model now."""
        run = self._run
        if self._loaded.ahead:
            return await self._queue_up()
        if run.interrupted is not None:
            return await self._conclude(Conclusion("truncated", self._said_last(), limited=INTERRUPTED))
        limit = await reached(self._database, run, self._spec)
        if limit is not None:
            ask = run.parent is None and limits_of(run, self._spec).on_limit == "ask"
            return await self._limited(limit.limit, limit.words, ask=ask)
        return "free"

    async def _make_room(self, asked: Asked) -> Outcome | Free | None:
        """Compact the history before a call that would not fit."""
        if self._spec.compaction is None:
            return "free"
        call = Call(self._run, self._spec, asked.request, self._loaded.window, self._unsaid)
        room = await make_room(self._loop.compactor, self._ctx, call)
        if isinstance(room, Over):
            return await self._over(room)
        if room == "full":
            return await self._full()
        return "free" if room == "enough" else room

    async def _full(self) -> Outcome | None:
        """The next call does not fit into the model's window: the run ends with what it has, or a person is asked."""
        if self._run.parent is None and limits_of(self._run, self._spec).on_limit == "ask":
            return await self._limited(FULL, FULL, ask=True)
        return await self._conclude(Conclusion("truncated", self._said_last(), limited=FULL))

    async def _stream(self, asked: Asked, intent: Intent) -> Outcome | None:
        match await self._database.transact(turns.begin, self._play, self._prompt, intent):
            case "again":
                return None
            case "cancelled":
                return Cancel("cancelled before the model was asked")
            case Over() as over:
                return await self._over(over)
            case "begun":
                pass
        self._ctx.require_lease()
        try:
            reply = await self._call(asked)
        except ModelFailure as failure:
            return await self._failed(failure, self._lane)
        outcome = await self._commit(reply)
        if self._spent_up is not None:  # this was the last one for now, for everybody
            with contextlib.suppress(Unavailable):  # the answer is stored; the next one hears of it from the provider
                us, why = round(self._spent_up * 1e6), "the rate limit is used up"
                await self._database.transact(close_lane, self._lane, us, person=False, reason=why)
        return outcome

    async def _past(self, wait: Snooze, lane: str) -> Outcome | None:
        """The lane is closed: wait, or, if it waits for a person, ask another model."""
        change = self._next_model() if fallbacks.waits_for_person(self._loaded.lanes, lane) else None
        if change is None:
            return wait
        await self._database.transact(fallbacks.pass_closed_lane, self._play, change, wait.reason)
        return None

    def _next_model(self) -> fallbacks.ModelChange | None:
        return fallbacks.next_model(self._run, self._spec, self._loaded.window)

    async def _conclude(self, conclusion: Conclusion) -> Outcome:
        if not await self._database.transact(turns.conclude, self._play, self._prompt, conclusion):
            return Cancel("cancelled before its end was stored")
        return Settled()

    async def _limited(self, limit: str, words: str, *, ask: bool, over: Over | None = None) -> Outcome | None:
        """A limit is reached: the run ends, or a person is asked first."""
        if not ask:
            return await self._conclude(Conclusion("limited", self._said_last(), limited=words))
        data: dict[str, Any] = {"limit": limit, "reason": words, "text": self._said_last()}
        if over is not None:
            data |= {"budget": over.budget, "portion": over.portion}
        inquiry = run_inquiry(self._run, self._number, "limit", data, within=limits_of(self._run, self._spec).within)
        match await self._database.transact(turns.ask_person, self._play, self._prompt, inquiry):
            case "asked":
                return Settled()
            case "again":
                return None
            case "cancelled":
                return Cancel("cancelled before a person was asked")

    async def _over(self, over: Over) -> Outcome | None:
        """The next call does not fit into a budget any more."""
        if over.policy == "wait":
            return Snooze(f"{over.wait_us}us", over.words)
        return await self._limited("budget", over.words, ask=over.policy == "ask", over=over)

    async def _defer(self, asked: Asked, intent: Intent) -> Outcome | None:
        """Leave the turn to a batch, and the run waits without a worker."""
        credential = self._loop.models.credential(self._model)
        where = Gathering(
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
            case Over() as over:
                return await self._over(over)
            case _:
                return Settled()

    def _most(self, asked: Asked, mode: Mode) -> int:
        """The most that this call may cost; nobody asks where there is no budget."""
        if not self._run.budgets:
            return 0
        body = asked.request.body()
        parts = [body.get("system") or [], body.get("tools") or [], body["messages"]]
        tier: Tier = "batch" if mode == "batch" else "standard"
        return self._loop.models.most_nano(self._model, estimate(parts), asked.request.max_tokens, tier)

    def _said_last(self) -> str:
        """The last text of this run, not of those before it in the session."""
        mine = {derived_id(self._run.id, "answer", number) for number in range(1, self._number)}
        said = [row for row in self._loaded.window if row.message in mine and row.type == "text"]
        return text_of([encoding.decode(said[-1].body)]) if said else ""

    async def _queue_up(self) -> Outcome | None:
        match await self._database.transact(turns.queue_up, self._play):
            case "waiting":
                return Settled()
            case "cancelled":
                return Cancel("cancelled before its turn came")
            case "first":
                return None

    def _ask(self, settings: Settings) -> Asked:
        run = self._run
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
            bounds=Bounds(f"{run.id}/{self._number}/{self._lease.fence}", settings.model_idle.total_seconds(), total),
            generation=run.generation,
            now=run.now,
        )

    async def _call(self, asked: Asked) -> Reply:
        """Ask the model, and show what it says while it says it."""
        journal, run = self._loop.journal(self._database), self._run.id
        folding, said = Folding(), Counter[int]()
        stream = self._loop.models.open(self._model).stream(asked.request, self._answered)
        scope = asyncio.timeout(None)
        try:
            async with scope, journal.interruptible(self._lease, run, scope), aclosing(stream):
                async for event in stream:
                    journal.alive(self._lease, run)
                    delta = folding.feed(event)
                    if delta is not None:
                        text = readable(delta.partial_json if isinstance(delta, InputDelta) else delta.text)
                        place = said[delta.index]
                        said[delta.index] += len(text)
                        kind = _DELTAS[type(delta)]
                        journal.put(self._lease, run, Piece(kind, self._number, delta.index, place, [text]))
        except TimeoutError:
            if not scope.expired():  # it is the model's own, not that of an interruption
                journal.drop(self._lease, run)
                raise
            return self._so_far(folding)
        except BaseException:
            journal.drop(self._lease, run)
            raise
        if not folding.complete:
            raise ModelFailure("cut", "the stream ended before the answer was complete", bought="unknown")
        reply = folding.reply()
        if any(not isinstance(use.get("id"), str) or not use.get("name") for use in reply.tool_uses):
            raise ModelFailure("malformed", "a call has no id or no name", bought="unknown")
        if reply.duplicates:
            raise ModelFailure("malformed", f"two calls have the id {reply.duplicates[0]}", bought="unknown")
        return replace(reply, blocks=readable(reply.blocks))

    def _so_far(self, folding: Folding) -> Reply:
        """An interrupted answer: what was said is kept, and counted as far as the provider had."""
        reply = folding.so_far(INTERRUPTED)
        said = estimate(reply.blocks) if reply.blocks else 0
        usage = {**reply.usage, "output_tokens": max(said, int(reply.usage.get("output_tokens") or 0))}
        return replace(reply, blocks=readable(reply.blocks), usage=usage)

    def _answered(self, answered: Answered) -> None:
        self._request_id = answered.request_id
        self._spent_up = spent_up(answered, self._loop.ports.clock.wall_us() / 1e6)
        if answered.request_id:
            journal = self._loop.journal(self._database)
            journal.note_request(self._lease, self._run.id, self._number, answered.request_id)

    async def _commit(self, reply: Reply, kept: str | None = None) -> Outcome | None:
        """Store an answer: one that was streamed, or was kept from a batch, under this id."""
        if reply.stop_reason == INTERRUPTED:
            decision = interrupted(Decision(), text_of(reply.blocks))
        else:
            settings, approving = self._loop.settings, self._loop.approving
            deciding = Deciding(self._run, self._spec, self._number, settings, approving, self._loaded.records)
            run = self._run
            before = said_before(self._loaded.window, run.id, self._number) if run.continued else ""
            decision = deciding.decide(reply, before)
        answer = Answer(
            model=reply.model or self._model,
            blocks=reply.blocks,
            stop_reason=reply.stop_reason or "",
            spent=spent_on(self._loop.models, reply.model or self._model, reply.usage, "batch" if kept else "standard"),
            request_id=(reply.id or None) if kept else self._request_id,
            container=(reply.container or {}).get("id"),
            deltas=await self._loop.journal(self._database).take(self._lease, self._run.id),
        )
        decision = decision._replace(last=is_last(self._run, self._spec, answer.spent))
        match await self._store(answer, decision, kept):
            case "parked" | "ended":
                return Settled()
            case "cancelled":
                return Cancel("cancelled while the model answered")
            case "next":
                return None

    async def _store(self, answer: Answer, decision: Decision, kept: str | None) -> Committed:
        """An answer is paid for: while the lease lasts, a store that is away is waited for."""
        change = self._next_model() if kept is None and fallbacks.is_refused(decision.conclusion) else None
        while True:
            try:
                if kept is not None:
                    return await self._database.transact(commit_kept, self._play, answer, decision, kept)
                if change is not None:
                    return await self._database.transact(fallbacks.commit_refused, self._play, answer, change)
                return await self._database.transact(turns.commit, self._play, answer, decision)
            except Unavailable:
                self._ctx.require_lease()
            await self._loop.ports.clock.sleep(_STORE_PAUSE)

    async def _failed(self, failure: ModelFailure, lane: str) -> Outcome:
        """Note the failure, and say when to try again, if ever. This is the only place that retries a provider."""
        unknown = failure.bought == "unknown"
        error = {"kind": failure.kind, "message": str(failure), "status": failure.status, "code": failure.code}
        error["request_id"] = failure.request_id or self._request_id
        if failure.closes_lane is not None:
            error["lane"] = lane
        # What may have been bought counts against the agent's attempts; an outage is only waited for.
        patience = microseconds(self._loop.settings.provider_patience)

        def final(tried: FailedTurn) -> bool:
            if failure.closes_lane is not None:
                return failure.closes_lane == "person"
            return not failure.transient or tried.failures >= self._spec.attempts or tried.age_us > patience

        change = self._next_model() if fallbacks.is_given_up_for(failure) else None
        told: dict[str, Any] = {"unknown": unknown, "counted": unknown}
        if change is None:
            tried = await self._database.transact(turns.fail_turn, self._play, error, **told)
        else:
            failing = fallbacks.fail_or_change
            tried = await self._database.transact(failing, self._play, error, **told, final=final, change=change)
        given_up = change is not None and final(tried)
        if failure.closes_lane is not None:
            wait = await self._close_lane(failure, lane)
            return Snooze("0us", str(failure)) if given_up else wait
        if given_up:
            return Snooze("0us", f"model {self._model} is given up: {failure}")
        if final(tried):
            kind = "context_window" if failure.kind == "context_window" else PROVIDER_ERROR
            return Fail(f"the model could not be asked: {failure}", kind)
        base = min(60.0, 0.5 * 2 ** min(tried.attempts - 1, 10))
        delay = failure.retry_after or base * (0.5 + self._loop.ports.random.random())
        return Snooze(f"{round(delay * 1e6)}us", f"the provider failed: {failure}")

    async def _close_lane(self, failure: ModelFailure, lane: str) -> Outcome:
        person = failure.closes_lane == "person"
        wait = failure.retry_after or 5.0
        await self._database.transact(
            close_lane, lane, None if person else round(wait * 1e6), person=person, reason=str(failure)
        )
        if person:
            log.error("lane %s is closed until a person opens it (holdfast lanes open): %s", lane, failure)
            return Snooze(PERSON_PAUSE, str(failure))
        return Snooze(self._spread(wait), str(failure))

    def _spread(self, seconds: float) -> str:
        """A wait that others have too: they need not all come back in the same moment."""
        return f"{round(seconds * 1e6 * (1 + 0.1 * self._loop.ports.random.random()))}us"
