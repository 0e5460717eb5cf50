"""The job of a batch, from the last request it takes to the last result it brings.

The intent is stored before the submit, and the provider's id as soon as it is known. When a submit's outcome is not
known, nothing is submitted again before the provider's batches of that time and size have ended and shown by their
results that they are not this one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from holdfast.agents.batches import steps
from holdfast.agents.batches.records import BatchRow, OpenRequest
from holdfast.agents.batches.results import MISSING, NOT_STORED, NOT_SUBMITTED, Collector, apply, find_asked_calls
from holdfast.agents.batches.steps import BatchDestination, batch_lane
from holdfast.agents.definition import AgentSpec
from holdfast.agents.fallback import is_played_here
from holdfast.agents.forks.past import RecordedCalls
from holdfast.agents.lanes import after, close_and_wait, list_lanes, wait_for_lane
from holdfast.agents.money.cost import Spent, spent_on
from holdfast.agents.rows import LoadedRun
from holdfast.agents.runs import tracing
from holdfast.agents.runs.decision import Decider, ask_rule
from holdfast.agents.runs.loop import RunLoop, parse
from holdfast.agents.states import BatchState, RunState
from holdfast.durations import microseconds, show
from holdfast.errors import LeaseLost, NotUnderstood, Unavailable
from holdfast.kernel import codec
from holdfast.kernel.database import Operation
from holdfast.kernel.ids import new_id
from holdfast.models import ModelFailure
from holdfast.models.batches import LASTS_US, MOST_BYTES, Batches, BatchItem, BatchLine, BatchStatus
from holdfast.models.protocol import ColdStart
from holdfast.outcomes import Done, Outcome, Snooze, StoreTrouble
from holdfast.text import plural, shown
from holdfast.workers.context import JobContext

log = logging.getLogger("holdfast.agents")

_CHUNK = 200
_CHUNK_BYTES = 8 * 1024 * 1024
_SKEW_US = 300_000_000  # by which the provider's clock may be behind the database's
_MISSING = "the provider's results do not mention this request"
CANCELING = "canceling"  # as the provider says it
_SOON, _LATER = 1.0, 60.0
_WRONG = ("bad_request", "context_window", "permission")  # with one of its requests, not with the batch
_MOST_UNKNOWN, _MOST_DOWNLOADS = 10, 8
_KEY_LOOKS = 20  # so many of the longest pauses without the key of a batch, and another one is tried
_OTHER_KEY = "no worker with its key has checked it; the workers that did have the key of another account"
_SETTLED_US = 3_600_000_000  # results that are not there so long after a batch has ended are gone
# Failures that say that the provider is away, where it has not said anything else before.
_AWAY = frozenset({"rate_limit", "overloaded", "server", "connect", "timeout"})


@dataclass(slots=True)
class _Download:
    """What a download has brought."""

    lines: int = 0
    news: int = 0


def _state_of(status: BatchStatus) -> BatchState:
    """What a batch is by what the provider says of it."""
    if status.ended:
        return BatchState.COLLECTING
    return BatchState.CANCELING if status.status == CANCELING else BatchState.PROCESSING


class BatchJobs:
    """Plays the jobs of batches, on whichever worker has their leases."""

    def __init__(self, loop: RunLoop, serves: Callable[[str], bool]) -> None:
        """`serves`: whether runs of the agent of this name are played here."""
        self._loop = loop
        self._serves = serves

    async def play(self, ctx: JobContext, batch: str) -> Outcome:
        """Bring a batch as far as it goes now, and say when to look again."""
        return await _BatchJob(self._loop, self._serves, ctx, batch).play()


class _BatchJob:
    def __init__(self, loop: RunLoop, serves: Callable[[str], bool], ctx: JobContext, batch: str) -> None:
        self._loop = loop
        self._serves = serves
        self._ctx = ctx
        self._id = batch

    async def _do(self, operation: Operation[..., Any], *args: Any, **more: Any) -> Any:
        return await self._ctx.database.transact(operation, self._ctx.lease, *args, **more)

    async def play(self) -> Outcome:
        """Whatever goes wrong here, the batch is looked at again: its runs have nobody else."""
        try:
            return await self._play()
        except Unavailable as problem:
            return StoreTrouble(str(problem))
        except (LeaseLost, NotUnderstood):
            raise
        except Exception:
            log.exception("batch %s failed to progress; Holdfast tries again", self._id)
            return Snooze("30s", "something went wrong: see the log")

    async def _play(self) -> Outcome:
        while True:
            row = await self._ctx.database.transact(steps.find_batch, self._id)
            if row is None:
                return Done("the provider no longer has this batch")
            try:
                if row.state != BatchState.GATHERING and self._loop.models.credential(row.model) != row.credential:
                    outcome = await self._rekey(row)
                else:
                    outcome = await self._held_back(row) or await self._step(row)
            except ModelFailure as failure:
                outcome = await self._failed(row, failure)
            if outcome is not None:
                return outcome

    async def _held_back(self, row: BatchRow) -> Outcome | None:
        """A closed lane stops what is submitted, nothing else."""
        if row.state not in (BatchState.GATHERING, BatchState.SUBMITTING):
            return None
        if row.lane not in {lane.name for lane in await self._ctx.database.transact(list_lanes)}:
            return None
        chance = self._loop.ports.random.random()
        return after(await self._ctx.database.transact(wait_for_lane, self._ctx.lease, row.lane, chance=chance))

    async def _step(self, row: BatchRow) -> Outcome | None:
        """One step of a batch; None: the next one follows at once."""
        match row.state:
            case BatchState.GATHERING:
                await self._close(row)
            case BatchState.SUBMITTING if row.intent_at is not None:  # its worker died around the submit
                await self._do(steps.search, self._id, "its worker died around the submit")
            case BatchState.SUBMITTING:
                return await self._submit(row)
            case BatchState.SEARCHING:
                return await self._search(row)
            case BatchState.SUBMITTED | BatchState.PROCESSING | BatchState.CANCELING:
                return await self._poll(row)
            case BatchState.COLLECTING:
                return await self._collect(row)
            case BatchState.ENDED | BatchState.FAILED:
                return Done(row.state)
            case unknown:
                raise NotUnderstood(f"batch {self._id}", f"its state is {unknown!r}")
        return None

    async def _rekey(self, row: BatchRow) -> Outcome | None:
        """Another key is here than the batch was made with. It may be the same account's, since the key was replaced.

        So after a while without the old one the batch is asked for with the new: another account does not know it. What
        nobody has submitted goes to a worker that serves its agents, and could ask for them anyway.
        """
        idle_us = row.now - max(row.created_at, row.intent_at or 0, row.submitted_at or 0, row.polled_at or 0)
        searched = row.intent_at is not None and row.provider_id is None
        wait_us = LASTS_US if searched else _KEY_LOOKS * microseconds(self._loop.settings.batch_poll_interval)
        credential = self._loop.models.credential(row.model)
        able = self._loop.models.lack(row.model) is None  # no key is not another key
        if able and idle_us >= wait_us and await self._is_known(row):
            log.info("batch %s continues with another key than it was created with", self._id)
            await self._do(steps.rekey, self._id, credential, batch_lane(credential, row.model))
            return None
        if row.error != _OTHER_KEY:
            log.warning("batch %s: %s", self._id, _OTHER_KEY)
            await self._do(steps.note_error, self._id, _OTHER_KEY)
        return Snooze("30s", _OTHER_KEY)

    async def _is_known(self, row: BatchRow) -> bool:
        """Whether the account of the key that is here has the batch, or may have it."""
        if row.provider_id is None:
            agents = await self._ctx.database.transact(steps.agents_in, self._id)
            return all(map(self._serves, agents))
        try:
            await self._model(row).get_batch(row.provider_id)
        except ModelFailure as failure:
            if failure.kind in ("not_found", "auth", "permission"):
                return False
            raise
        return True

    async def _close(self, row: BatchRow) -> None:
        too_large = await self._do(steps.close, row, self._where(row))
        error = {"type": "request_too_large", "message": f"a batch has {MOST_BYTES:,} bytes at most, this request more"}
        await self._apply(row, [BatchLine(id, "errored", None, error) for id in too_large])

    def _model(self, row: BatchRow) -> Batches:
        model = self._loop.models.open(row.model)
        if not isinstance(model, Batches):
            raise ModelFailure("bad_request", f"model {row.model} does not support batches", bought="no")
        return model

    def _where(self, row: BatchRow) -> BatchDestination:
        """Where what has to be asked again goes."""
        wait = microseconds(self._loop.settings.batch_wait)
        return BatchDestination(row.lane, row.model, row.credential, new_id(self._loop.ports), wait)

    async def _submit(self, row: BatchRow) -> Outcome | None:
        model = self._model(row)
        if isinstance(model, ColdStart):
            await model.warm()  # before the intent: after it comes only the send
        bodies = await self._bodies()
        wanted = await self._do(steps.intend, self._id)
        if wanted is None:
            return None  # somebody has intended it: look again
        if not wanted:
            return await self._end(BatchState.ENDED, "every run it was for has ended", "no run waits for it any more")
        items = [BatchItem(each.custom_id, each.body) for each in bodies if each.custom_id in wanted]
        self._ctx.require_lease()
        call = f"{self._id}/{row.attempts + 1}"
        total = self._loop.settings.model_total.total_seconds()
        try:
            status = await model.submit_batch(items, call=call, total=total, answered=lambda _: None)
        except ModelFailure as failure:
            if failure.bought == "unknown":
                await self._do(steps.search, self._id, str(failure))
                return Snooze(self._grace(), f"it is not known whether the provider has the batch: {failure}")
            return await self._refused(row, len(items), failure)
        await self._take(model, status)
        return None

    async def _bodies(self) -> list[Any]:
        found: list[Any] = []
        while page := await self._ctx.database.transact(
            steps.request_bodies, self._id, found[-1].custom_id if found else ""
        ):
            found += page
        return found

    async def _take(self, model: Batches, status: BatchStatus) -> None:
        """The provider has it: store that at once, then notify the runs."""
        try:
            if not await self._taken(status):
                await self._disown(model, status)
                return
        except LeaseLost:
            await self._disown(model, status)
            raise
        log.info("batch %s is the provider's %s, %d requests", self._id, status.id, status.size)

    async def _taken(self, status: BatchStatus) -> bool:
        """It may be paid for: while the lease lasts, a store that is away is waited for."""
        while True:
            try:
                return bool(await self._do(steps.take, self._id, status.id))
            except Unavailable:
                self._ctx.require_lease()
            await self._loop.ports.clock.sleep(_SOON)

    async def _disown(self, model: Batches, status: BatchStatus) -> None:
        """Another worker has taken the batch over; what this one submitted late must not stay unknown."""
        orphan = new_id(self._loop.ports)
        if await self._ctx.database.transact(steps.adopt_orphan, self._id, status.id, orphan):
            log.warning("the provider's %s came too late for batch %s and is cancelled", status.id, self._id)
            with contextlib.suppress(ModelFailure):  # the holder of its job tries again
                await model.cancel_batch(status.id)

    async def _refused(self, row: BatchRow, size: int, failure: ModelFailure) -> Outcome | None:
        """The provider has not taken it. One bad request does not sink the rest: halves are tried.

        An outage is waited for, as streams do, and a closed lane for however long it is closed.
        """
        troubled = failure.transient and failure.closes_lane is None
        us = await self._do(steps.refused, self._id, str(failure), troubled=troubled)
        if us is None:
            return None
        if failure.kind in _WRONG and size > 1:
            await self._do(steps.split, row, self._where(row))
            return None
        if failure.kind in (*_WRONG, "not_found"):
            return await self._give_up(row, str(failure), "invalid_request_error")
        if us > self._patience():
            return await self._give_up(row, f"the provider has accepted nothing for {show(us)}: {failure}")
        raise failure

    async def _give_up(self, row: BatchRow, why: str, kind: str = NOT_SUBMITTED) -> Outcome | None:
        """Its runs fail, with the reason."""
        await self._answer_all(row, "errored", {"type": kind, "message": why})
        return await self._end(BatchState.FAILED, why, why)

    async def _end(self, state: BatchState, error: str | None, why: str) -> Outcome | None:
        return Done(why) if await self._do(steps.end, self._id, state, error) else None

    async def _search(self, row: BatchRow) -> Outcome | None:
        """Look for the batch among the provider's; only when none of them can be it is it submitted again.

        One that has ended without any result may be ours. It is taken last: our answers may be in one that still runs.
        """
        assert row.intent_at is not None
        settled = row.intent_at + microseconds(self._loop.settings.batch_grace)
        if row.now < settled:
            return Snooze(f"{settled - row.now}us", "a submit of unknown outcome may still arrive")
        model = self._model(row)
        held: dict[str, Any] = codec.decode(row.held) or {}
        excluded = set(held.get("excluded", ()))
        found = await model.list_batches(row.intent_at - _SKEW_US)
        possible = [each for each in found if each.size == row.size and each.id not in excluded]
        taken = await self._ctx.database.transact(steps.taken_ids, [each.id for each in possible])
        possible = [each for each in possible if each.id not in taken]
        waiting: list[str] = []
        empty: list[BatchStatus] = []
        for each in possible:
            match await self._whose(model, each, row.now) if each.ended else "unknown":
                case "ours":
                    await self._take(model, each)
                    return None
                case "another's":
                    excluded.add(each.id)
                case "nobody's":
                    empty.append(each)
                case "unknown":
                    waiting.append(each.id)
        if empty and not waiting:
            await self._take(model, empty[0])
            return None
        await self._do(steps.hold, self._id, {"candidates": waiting, "excluded": sorted(excluded)})
        if waiting:
            others = plural(len(waiting), "batch", "batches")
            return Snooze(self._pause(row, row.intent_at), f"waits for {others} to end that may be this one")
        log.warning("batch %s is not among the provider's; it is submitted again", self._id)
        us = await self._do(steps.give_up_search, self._id)
        if us is not None and row.unknown >= _MOST_UNKNOWN and us > self._patience():
            unknown = plural(row.unknown, "submit")
            return await self._give_up(row, f"the outcome of {unknown} has been unknown for {show(us)}")
        return None

    async def _whose(
        self, model: Batches, status: BatchStatus, now: int
    ) -> Literal["ours", "another's", "nobody's", "unknown"]:
        """Whose a batch is by the first of its results; "nobody's": it has none; "unknown": none are to be had yet."""
        try:
            async for line in model.batch_results(status.id):
                if line.custom_id:
                    ours = await self._ctx.database.transact(steps.is_request, self._id, line.custom_id)
                    return "ours" if ours else "another's"
        except ModelFailure as failure:
            if failure.kind != "not_found":
                raise
            fresh = status.ended_us is None or now - status.ended_us < _SETTLED_US
            return "unknown" if fresh else "another's"
        return "nobody's"

    async def _poll(self, row: BatchRow) -> Outcome | None:
        assert row.provider_id is not None
        model = self._model(row)
        if row.state == BatchState.SUBMITTED:
            await self._tell_runs(RunState.BATCH_SUBMITTING, RunState.BATCH_PENDING)
        try:
            status = await model.get_batch(row.provider_id)
        except ModelFailure as failure:
            if failure.kind == "not_found" and row.now - (row.submitted_at or row.now) > microseconds("10m"):
                await self._do(steps.lose, self._id, str(failure))
                return None
            if failure.kind == "not_found":
                return Snooze("5s", str(failure))  # it may take a moment to be seen
            raise
        state = _state_of(status)
        if state is BatchState.PROCESSING and not await self._ctx.database.transact(steps.is_wanted, self._id):
            await model.cancel_batch(row.provider_id)
            state = BatchState.CANCELING
        await self._do(steps.note_poll, self._id, state, dict(status.counts))
        if state is BatchState.COLLECTING:
            return None
        await self._tell_runs(RunState.BATCH_SUBMITTING, RunState.BATCH_PROCESSING)
        await self._tell_runs(RunState.BATCH_PENDING, RunState.BATCH_PROCESSING)
        return Snooze(self._pause(row, row.submitted_at or row.now), f"the provider's batch is {status.status}")

    async def _tell_runs(self, before: RunState, state: RunState) -> None:
        while await self._do(
            steps.move_runs, self._id, before=before, state=state, prefix=self._loop.settings.announced
        ):
            self._ctx.require_lease()

    async def _collect(self, row: BatchRow) -> Outcome | None:
        """Apply every result, then ask again what was not answered."""
        assert row.provider_id is not None
        await self._tell_runs(RunState.BATCH_SUBMITTING, RunState.BATCH_PROCESSING)
        await self._tell_runs(RunState.BATCH_PENDING, RunState.BATCH_PROCESSING)
        read = _Download()
        try:
            await self._read(row, read)
        except ModelFailure as failure:
            if (wait := await self._cut_short(row, read, failure)) is not None:
                return wait
        await self._answer_all(row, MISSING, {"type": MISSING, "message": _MISSING})
        return await self._end(BatchState.ENDED, None, "collected")

    async def _read(self, row: BatchRow, read: _Download) -> None:
        """Apply the results as they come, and count them in `read`."""
        assert row.provider_id is not None
        chunk: list[BatchLine] = []
        weight = 0
        try:
            async for line in self._model(row).batch_results(row.provider_id):
                read.lines += 1
                if not line.custom_id:
                    continue  # it cannot be read; what it was about is asked again
                chunk.append(line)
                weight += len(str(line.message)) if line.message is not None else 0
                if len(chunk) >= _CHUNK or weight >= _CHUNK_BYTES:
                    read.news += await self._apply(row, chunk)
                    chunk, weight = [], 0
        except ModelFailure:
            read.news += await self._apply(row, chunk)
            raise
        read.news += await self._apply(row, chunk)

    async def _cut_short(self, row: BatchRow, read: _Download, failure: ModelFailure) -> Outcome | None:
        """The results were not read to their end: they are read again, but not for ever. None: that was enough.

        They are paid for, and kept for weeks: so if the provider is away, the job waits for it. Only a
        download that broke off and brought nothing new counts as a failed try.
        """
        if failure.closes_lane is not None:
            raise failure
        tried = int((codec.decode(row.held) or {}).get("downloads", 0))
        away = failure.kind in _AWAY and not read.lines
        tried = 0 if read.news else tried if away else tried + 1
        if tried >= _MOST_DOWNLOADS:
            log.warning(
                "the results of batch %s cannot be read; what is missing is asked again: %s", self._id, shown(failure)
            )
            return None
        await self._do(steps.note_download, self._id, tried, str(failure))
        return Snooze(self._backoff(row.polls if away else tried), f"the results could not be read: {failure}")

    async def _apply(self, row: BatchRow, lines: list[BatchLine]) -> int:
        """Returns how many were new."""
        if not lines:
            return 0
        self._ctx.require_lease()
        try:
            return int(await self._do(apply, lines, await self._collector(lines), self._where(row)))
        except (LeaseLost, Unavailable):
            raise
        except Exception as problem:
            if len(lines) > 1:  # one of them cannot be stored; the others can
                return sum([await self._apply(row, [line]) for line in lines])
            log.exception("the answer to %s cannot be stored; its run fails", lines[0].custom_id)
            error = {"type": NOT_STORED, "message": f"the answer cannot be stored: {problem}"}
            line = BatchLine(lines[0].custom_id, NOT_STORED, None, error)
            return int(await self._do(apply, [line], await self._collector([line]), self._where(row)))

    async def _answer_all(self, row: BatchRow, type: str, error: dict[str, Any]) -> None:
        """Give what is left of the batch one answer."""
        left: list[OpenRequest]
        while left := await self._ctx.database.transact(steps.unanswered, self._id, _CHUNK):
            await self._apply(row, [BatchLine(each.custom_id, type, None, error) for each in left])

    async def _collector(self, lines: list[BatchLine]) -> Collector:
        loop = self._loop
        calls = await self._ctx.database.transact(find_asked_calls, lines, self._is_played_here, parse)
        approving = await ask_rule(loop.approving, calls)

        def deciding(run: LoadedRun, spec: AgentSpec, number: int, records: RecordedCalls) -> Decider:
            return Decider(run, spec, number, loop.settings, approving, records, loop.reading)

        def spent(model: str, usage: dict[str, Any]) -> Spent:
            return spent_on(loop.models, model, usage, "batch")

        announced, linked = loop.settings.announced, partial(tracing.linked, loop.ports)
        return Collector(self._id, self._is_played_here, deciding, spent, parse, announced, loop.notify(), linked)

    def _is_played_here(self, run: LoadedRun) -> bool:
        return self._serves(run.agent_name) and is_played_here(run, parse, self._loop.has_tool)

    async def _failed(self, row: BatchRow, failure: ModelFailure) -> Outcome | None:
        """The provider did not do what was asked; the batch stays as it is and is looked at again."""
        if failure.closes_lane is not None:
            chance, lease = self._loop.ports.random.random(), self._ctx.lease
            return after(await self._ctx.database.transact(close_and_wait, lease, row.lane, failure, chance=chance))
        await self._do(steps.note_error, self._id, str(failure))
        return Snooze(self._backoff(max(row.polls, row.attempts)), str(failure))

    def _patience(self) -> int:
        return microseconds(self._loop.settings.provider_patience)

    def _grace(self) -> str:
        return f"{microseconds(self._loop.settings.batch_grace)}us"

    def _backoff(self, times: int) -> str:
        wait = min(_LATER, _SOON * 2 ** min(times, 6)) * (0.5 + self._loop.ports.random.random())
        return f"{round(wait * 1e6)}us"

    def _pause(self, row: BatchRow, since: int) -> str:
        """The longer it takes, the longer it may take: a twentieth of its age, up to the setting."""
        most = microseconds(self._loop.settings.batch_poll_interval)
        return f"{min(most, max(round(_SOON * 1e6), (row.now - since) // 20))}us"
