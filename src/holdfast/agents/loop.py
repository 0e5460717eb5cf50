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
from datetime import datetime
from functools import lru_cache
from typing import Any, Protocol

from holdfast.agents import turns
from holdfast.agents.asking import Asked, Bounds, ask
from holdfast.agents.contents import readable
from holdfast.agents.deciding import Deciding, Decision, exceeded, limits_of
from holdfast.agents.definitions import AgentSpec
from holdfast.agents.history import text_of
from holdfast.agents.journal import Journal, Piece
from holdfast.agents.reading import tree_usage
from holdfast.agents.records import LaneRow, LoadedRun
from holdfast.agents.statements import Providers
from holdfast.agents.turns import Answer, Committed, Conclusion, Intent, Loaded, Play, Spent
from holdfast.clock import Ports
from holdfast.durations import microseconds
from holdfast.errors import Unavailable
from holdfast.kernel import encoding
from holdfast.kernel.database import Database, Transaction
from holdfast.kernel.ids import derived_id
from holdfast.kernel.records import Lease
from holdfast.models import Answered, Folding, InputDelta, Model, ModelFailure, Reply, TextDelta, ThinkingDelta
from holdfast.outcomes import Cancel, Fail, Outcome, Settled, Snooze
from holdfast.settings import Settings
from holdfast.workers.context import JobContext

log = logging.getLogger("holdfast.agents")

_PERSON_PAUSE = "30s"
_STORE_PAUSE = 1.0
_LONGEST_WAIT = 300.0  # seconds, whatever clock the provider has
_DELTAS = {TextDelta: "text_delta", ThinkingDelta: "thinking_delta", InputDelta: "input_delta"}

parse = lru_cache(maxsize=1_000)(AgentSpec.parse)


class Models(Protocol):
    """Where the loop gets its models from."""

    def open(self, name: str) -> Model: ...

    def credential(self, name: str) -> str:
        """Which account pays: a name for it, never the key."""

    def cost_nano(self, model: str, usage: dict[str, Any]) -> int: ...


class RunLoop:
    """Plays runs, on whichever worker has their leases."""

    def __init__(self, models: Models, settings: Callable[[], Settings], ports: Callable[[], Ports]) -> None:
        self._models = models
        self._settings = settings
        self._ports = ports
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
        self._model = str(options.get("model") or self._spec.model)
        self._prompt = [] if loaded.run.prompted else encoding.decode(loaded.run.input)
        self._number = loaded.run.turns + 1
        prefix = loop.settings.topic_prefix if loop.settings.public_topics else ""
        self._play = Play(ctx.lease, loaded.run, self._number, prefix)
        self._request_id: str | None = None
        self._spent_up: float | None = None

    async def play(self) -> Outcome | None:
        """None: play the next turn."""
        run, settings = self._run, self._loop.settings
        if self._loaded.ahead:
            return await self._queue_up()
        limit = exceeded(await self._counted(), limits_of(run, self._spec))
        if limit is not None:
            conclusion = Conclusion("limited", self._said_last(), limited=limit)
            if not await self._database.transact(turns.conclude, self._play, self._prompt, conclusion):
                return Cancel("cancelled before its end was stored")
            return Settled()
        lane = lane_of(self._loop.models.credential(self._model), self._model)
        if (wait := _closed(self._loaded.lanes, lane)) is not None:
            return wait
        asked = self._ask(settings)
        intent = Intent(self._model, asked.hash, asked.fingerprint)
        if not await self._database.transact(turns.begin, self._play, self._prompt, intent):
            return Cancel("cancelled before the model was asked")
        self._ctx.require_lease()
        try:
            reply = await self._call(asked)
        except ModelFailure as failure:
            return await self._failed(failure, lane)
        outcome = await self._commit(reply)
        if self._spent_up is not None:  # this was the last one for now, for everybody
            with contextlib.suppress(Unavailable):  # the answer is stored; the next one hears of it from the provider
                us = round(self._spent_up * 1e6)
                await self._database.transact(close_lane, lane, us, person=False, reason="the rate limit is used up")
        return outcome

    async def _counted(self) -> LoadedRun:
        """The run with what everything below it has used; a run that inherits its limits counts the whole tree."""
        run, limits = self._run, limits_of(self._run, self._spec)
        limited = limits.tokens is not None or limits.cost is not None
        if not limited or (run.parent is not None and "limits" not in encoding.decode(run.options)):
            return run
        used = await self._database.transact(tree_usage, run.root)
        if used is None:
            return run
        tokens = used.input_tokens + used.output_tokens + used.cache_write_tokens + used.cache_read_tokens
        return run._replace(tokens=int(tokens), cost_nano=int(used.cost_nano))

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
            self._prompt,
            credential=self._loop.models.credential(self._model),
            container=run.container,
            bounds=Bounds(f"{run.id}/{self._number}/{self._lease.fence}", settings.model_idle.total_seconds(), total),
        )

    async def _call(self, asked: Asked) -> Reply:
        """Ask the model, and show what it says while it says it."""
        journal, run = self._loop.journal(self._database), self._run.id
        folding, said = Folding(), Counter[int]()
        stream = self._loop.models.open(self._model).stream(asked.request, self._answered)
        try:
            async with aclosing(stream):
                async for event in stream:
                    journal.alive(self._lease, run)
                    delta = folding.feed(event)
                    if delta is not None:
                        text = readable(delta.partial_json if isinstance(delta, InputDelta) else delta.text)
                        place = said[delta.index]
                        said[delta.index] += len(text)
                        kind = _DELTAS[type(delta)]
                        journal.put(self._lease, run, Piece(kind, self._number, delta.index, place, [text]))
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

    def _answered(self, answered: Answered) -> None:
        self._request_id = answered.request_id
        self._spent_up = spent_up(answered, self._loop.ports.clock.wall_us() / 1e6)
        if answered.request_id:
            journal = self._loop.journal(self._database)
            journal.note_request(self._lease, self._run.id, self._number, answered.request_id)

    async def _commit(self, reply: Reply) -> Outcome | None:
        decision = Deciding(self._run, self._spec, self._number, self._loop.settings).decide(reply)
        answer = Answer(
            model=reply.model or self._model,
            blocks=reply.blocks,
            stop_reason=reply.stop_reason or "",
            spent=self._spent(reply),
            request_id=self._request_id,
            container=(reply.container or {}).get("id"),
            deltas=await self._loop.journal(self._database).take(self._lease, self._run.id),
        )
        match await self._store(answer, decision):
            case "parked" | "ended":
                return Settled()
            case "cancelled":
                return Cancel("cancelled while the model answered")
            case "next":
                return None

    async def _store(self, answer: Answer, decision: Decision) -> Committed:
        """An answer is paid for: while the lease lasts, a store that is away is waited for."""
        while True:
            try:
                return await self._database.transact(
                    turns.commit, self._play, answer, decision.calls, decision.conclusion
                )
            except Unavailable:
                self._ctx.require_lease()
            await self._loop.ports.clock.sleep(_STORE_PAUSE)

    def _spent(self, reply: Reply) -> Spent:
        usage = reply.usage
        return Spent(
            usage=encoding.encode(usage, what="the usage", cap=1 << 20),
            input_tokens=int(usage.get("input_tokens") or 0),
            output_tokens=int(usage.get("output_tokens") or 0),
            cache_write_tokens=int(usage.get("cache_creation_input_tokens") or 0),
            cache_read_tokens=int(usage.get("cache_read_input_tokens") or 0),
            cost_nano=self._loop.models.cost_nano(reply.model or self._model, usage),
        )

    async def _failed(self, failure: ModelFailure, lane: str) -> Outcome:
        """Note the failure, and say when to try again, if ever. This is the only place that retries a provider."""
        unknown = failure.bought == "unknown"
        error = {"kind": failure.kind, "message": str(failure), "status": failure.status, "code": failure.code}
        error["request_id"] = failure.request_id or self._request_id
        # What may have been bought counts against the agent's attempts; an outage is only waited for.
        tried = await self._database.transact(turns.fail_turn, self._play, error, unknown=unknown, counted=unknown)
        if failure.closes_lane is not None:
            return await self._close_lane(failure, lane)
        patience = microseconds(self._loop.settings.provider_patience)
        if not failure.transient or tried.failures >= self._spec.attempts or tried.age_us > patience:
            kind = "context_window" if failure.kind == "context_window" else turns.PROVIDER_ERROR
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
            return Snooze(_PERSON_PAUSE, str(failure))
        return Snooze(self._spread(wait), str(failure))

    def _spread(self, seconds: float) -> str:
        """A wait that others have too: they need not all come back in the same moment."""
        return f"{round(seconds * 1e6 * (1 + 0.1 * self._loop.ports.random.random()))}us"


def lane_of(credential: str, model: str) -> str:
    return f"{credential}/{model}"


def spent_up(answered: Answered, now: float) -> float | None:
    """How many seconds to wait until a limit that this answer used up is there again; None: there is more."""
    waits = []
    for name, left in answered.limits.items():
        reset = answered.limits.get(name.removesuffix("remaining") + "reset")
        if name.endswith("-remaining") and left == "0" and reset is not None:
            with contextlib.suppress(ValueError):
                waits.append(datetime.fromisoformat(reset).timestamp() - now)
    return min(max(waits), _LONGEST_WAIT) if waits and max(waits) > 0 else None


def _closed(lanes: list[LaneRow], name: str) -> Snooze | None:
    for lane in lanes:
        if lane.name != name:
            continue
        if lane.person:
            return Snooze(_PERSON_PAUSE, f"lane {name} waits for a person: {lane.reason}")
        if lane.closed_until is not None and lane.closed_until > lane.now:
            return Snooze(f"{lane.closed_until - lane.now}us", f"lane {name} is closed: {lane.reason}")
    return None


async def close_lane(tx: Transaction, name: str, wait_us: int | None, *, person: bool, reason: str) -> None:
    await tx.run(
        Providers.close_lane, name=name, wait_us=wait_us, person=int(person), reason=encoding.clip(reason, 2_000)
    )
