"""Telemetry: what a worker says of itself and its jobs, in its log, its events and its spans.

Events and spans are made only while somebody listens: on the way of every job, `events.heard` is asked first.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.clock import Ports
from holdfast.durations import show
from holdfast.kernel import codec
from holdfast.kernel.complete import RELEASED
from holdfast.kernel.ids import JobId
from holdfast.kernel.rows import Ending, Lease, NewJob
from holdfast.kernel.states import State
from holdfast.kernel.workers import Registration
from holdfast.observe import TRACE, ReceivedJob, SentJobs, Spans
from holdfast.outcomes import Outcome
from holdfast.text import first_line, log_with_traceback, plural, shown
from holdfast.workers.slots import Holding

# The log of attempts: a line for each at INFO, and what went wrong with one at WARNING or ERROR.
#
# A failure is logged once the store has accepted it: as a warning while another attempt follows, as an error when it
# was
# the last. The record has the user's traceback, and nothing in it can command a terminal.


attempts_log = logging.getLogger("holdfast.attempts")

_LONGEST = 500  # characters of a message on the first line; the traceback has more of it


def is_worth_a_line(ending: Ending) -> bool:
    """Asked of every attempt that ended, so it must be cheap."""
    return ending.error is not None or attempts_log.isEnabledFor(logging.INFO)


def report(lease: Lease, ending: Ending, state: str, extra: dict[str, Any], *, awaited: bool, seconds: float) -> None:
    """Log how an attempt ended, after which the job is in `state`.

    `awaited`: a caller in this process gets that failure as an exception. Where nobody has set up logging, Python would
    print both on the same terminal, so then the exception alone tells it.
    """
    error = codec.decode(ending.error) or {}
    job = f"job {lease.id} ({shown(lease.kind)})"
    number = f"attempt {lease.attempts + 1} of {lease.max_attempts}"
    extra = {**extra, "outcome": ending.outcome, "state": str(state), "seconds": round(seconds, 3)}
    extra |= {"max_attempts": lease.max_attempts, "error_type": error.get("type")}
    if ending.outcome == "retried" and state != State.CANCELLED:
        extra["next_try"] = ending.delay_us / 1e6
        when = f"in {_span(ending.delay_us)}" if ending.delay_us else "at once"
        _fail(logging.WARNING, f"{job} failed on {number} and is tried again {when}", error, extra)
    elif ending.outcome == "failed" and state == State.FAILED:
        level = logging.INFO if awaited and not attempts_log.hasHandlers() else logging.ERROR
        _fail(level, f"{job} failed on {number} and is not tried again", error, extra)
    elif attempts_log.isEnabledFor(logging.INFO):
        why = f": {_short(error['message'])}" if error else ""
        outcome = "cancelled" if state == State.CANCELLED else _WORDS.get(ending.outcome, ending.outcome)
        log_with_traceback(
            attempts_log, logging.INFO, f"{job} {outcome} after {seconds:.3f} s, {number}{why}", "", extra
        )


def note(lease: Lease, what: str, extra: dict[str, Any]) -> None:
    """One line at INFO for an attempt that ended in another way than by an outcome."""
    if attempts_log.isEnabledFor(logging.INFO):
        log_with_traceback(attempts_log, logging.INFO, f"job {lease.id} ({shown(lease.kind)}) {what}", "", extra)


_WORDS = {"released": "was handed back"}  # where the word of the outcome would not do


def _fail(level: int, words: str, error: dict[str, str], extra: dict[str, Any]) -> None:
    message = error.get("message", "no reason was given")
    rest = error.get("trace") or (message if "\n" in message.strip() else "")
    if attempts_log.isEnabledFor(level):
        log_with_traceback(attempts_log, level, f"{words}: {_short(message)}", rest, extra)


def _span(us: int) -> str:
    if us >= 60_000_000:
        return show(us // 1_000_000 * 1_000_000)
    return f"{us / 1e6:.1f} s" if us >= 1_000_000 else f"{us // 1000} ms"


def _short(message: str) -> str:
    line = shown(first_line(message.strip()))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


log = logging.getLogger("holdfast.worker")


def about(lease: Lease) -> dict[str, Any]:
    """What an event or a log record says of an attempt."""
    return {
        "job": lease.id,
        "kind": lease.kind,
        "queue": lease.queue,
        "tenant": lease.tenant,
        "attempt": lease.attempts + 1,
        "token": str(lease.fence),
        "incarnation": lease.worker,
    }


def tell_enqueued(ports: Ports, job: NewJob, *, committed: bool = True, parent: str | None = None) -> None:
    """`committed`: False when it is part of a transaction of the caller's. `parent`: the id of the job it is of."""
    if ports.events.heard:
        metadata = {"job": job.id, "kind": job.kind, "queue": job.queue, "tenant": job.tenant}
        ports.tell("job.enqueued", {}, **metadata, committed=committed, parent=parent)


@contextmanager
def sending(ports: Ports, job: NewJob, ids: Sequence[JobId]) -> Iterator[NewJob]:
    """Around an enqueue of a job, or of many like it: gives it as it is to be stored, with the sender's trace."""
    spans = ports.events.spans
    if spans is None:
        yield job
        return
    with spans.sending(SentJobs(job.kind, job.queue, list(ids))) as carrier:
        yield carrying(job, carrier) if carrier else job


def carrying(job: NewJob, carrier: Mapping[str, str]) -> NewJob:
    """The job with a trace in its metadata. The cap on metadata is for what the caller put in, not for this."""
    metadata = {**codec.decode(job.metadata), TRACE: dict(carrier)}
    return job._replace(metadata=codec.encode(metadata, what="metadata", cap=len(job.metadata) * 8 + 65_536))


@dataclass(slots=True)
class AttemptTally:
    """How the attempts of a worker ended: what it says when it stops."""

    finished: int = 0
    handed_back: int = 0
    lost: int = 0
    stopping: float = 0.0  # seconds that its clean stop took


class WorkerTelemetry:
    """The voice of one worker."""

    def __init__(self, ports: Ports, worker: str) -> None:
        self._ports = ports
        self._worker = worker
        self._started = False
        self._draining_since = 0.0
        self.tally = AttemptTally()

    @property
    def worker(self) -> str:
        """The id of the worker."""
        return self._worker

    def registered(self, incarnation: int, who: Registration) -> None:
        extra = {"worker": self._worker, "incarnation": incarnation}
        log.info("worker %s registered as %d", self._worker, incarnation, extra=extra)
        if self._started:
            self._ports.tell("worker.reregistered", {}, **extra)
        else:
            self._started = True
            self._ports.tell("worker.started", {"slots": who.slots}, **extra, name=who.name, queues=who.queues)

    def lost_contact(self, incarnation: int) -> None:
        extra = {"worker": self._worker, "incarnation": incarnation}
        log.warning("worker %s was declared lost; it registers again", self._worker, extra=extra)
        self._ports.tell("worker.lost_contact", {}, **extra)

    def set_back(self, incarnation: int) -> None:
        extra = {"worker": self._worker, "incarnation": incarnation}
        said = "worker %s finds that an older state of the database was restored under it; the epoch was raised"
        log.warning(said, self._worker, extra=extra)

    def unlinked(self, incarnation: int) -> None:
        extra = {"worker": self._worker, "incarnation": incarnation}
        said = "worker %s claims no jobs until one of its heartbeats reaches the store: others may count it as lost"
        level = logging.DEBUG if self._ports.outages.are_logged else logging.WARNING
        log.log(level, said, self._worker, extra=extra)

    def too_old(self, code: int, oldest_code: int) -> None:
        log.warning(
            "worker %s drains: the database was migrated and takes code of schema %d or newer, this is of schema %d. "
            "Start it again with the new release.",
            self._worker,
            oldest_code,
            code,
            extra={"worker": self._worker},
        )

    def drains(self) -> None:
        self._draining_since = self._ports.clock.monotonic()
        log.info("worker %s drains", self._worker, extra={"worker": self._worker})

    def stopped(self, incarnation: int, jobs: int, *, left: int = 0) -> None:
        """`left`: jobs that it still held; they are taken back at once."""
        self.tally.handed_back += left
        self.tally.stopping = self._ports.clock.monotonic() - self._draining_since
        extra = {"worker": self._worker, "incarnation": incarnation}
        log.info("worker %s stopped", self._worker, extra=extra)
        self._ports.tell("worker.stopped", {"jobs": jobs}, **extra)

    def returned(self, incarnation: int, jobs: int) -> None:
        extra = {"worker": self._worker, "incarnation": incarnation}
        said = "worker %s handed %s back: the store had leased them to it, and the answer was lost"
        log.warning(said, self._worker, plural(jobs, "job"), extra=extra)

    async def attempt(self, holding: Holding, run: Awaitable[Outcome | None], held_for: float) -> Outcome | None:
        """Run an attempt that was claimed `held_for` seconds ago, and report its start."""
        lease = holding.lease
        age = (lease.claimed_at - lease.created_at) / 1e6 + held_for
        self._ports.tell("job.started", {"age": age}, **about(lease), worker=self._worker)
        begun, spans = self._ports.clock.monotonic(), self._ports.events.spans
        try:
            return await (run if spans is None else self._traced(spans, lease, run))
        finally:
            holding.lasted = self._ports.clock.monotonic() - begun

    async def _traced(self, spans: Spans, lease: Lease, run: Awaitable[Outcome | None]) -> Outcome | None:
        number = lease.attempts + 1
        received = ReceivedJob(lease.kind, lease.queue, lease.id, self._worker, number, lease.metadata, lease.payload)
        with spans.processing(received) as span:
            outcome = await run
            span.conclude(outcome)
            return outcome

    def settled(self, holding: Holding, ending: Ending, state: str | None) -> None:
        """The store has answered what an outcome led to; None: its lease was lost."""
        if state is None:
            self.lost(holding)
            return
        if ending.outcome == RELEASED:
            self.tally.handed_back += 1
        else:
            self.tally.finished += 1
        if is_worth_a_line(ending):
            lease, seconds = holding.lease, self._ports.clock.monotonic() - (holding.began or holding.claimed_at)
            report(
                lease,
                ending,
                state,
                {**about(lease), "worker": self._worker},
                awaited=holding.awaited,
                seconds=seconds,
            )
        if self._ports.events.heard:
            self._ended(holding, ending, state)

    def _ended(self, holding: Holding, ending: Ending, state: str) -> None:
        """A cancel that was accepted meanwhile won over the outcome."""
        won = state == State.CANCELLED and ending.state != State.CANCELLED
        error = None if won or ending.error is None else codec.decode(ending.error)
        self._end(holding, state, "cancelled" if won else ending.outcome, error)

    def ended_itself(self, holding: Holding) -> None:
        """The handler has ended or parked its job in the store."""
        self.tally.finished += 1
        note(holding.lease, "has written its own end", {**about(holding.lease), "worker": self._worker})

    def parked(self, holding: Holding) -> None:
        self.tally.finished += 1
        note(holding.lease, "waits without a worker", {**about(holding.lease), "worker": self._worker})
        if self._ports.events.heard:
            self._end(holding, State.WAITING, "parked", None)

    def _end(self, holding: Holding, state: str, outcome: str, error: Any) -> None:
        about_ended = {**about(holding.lease), "worker": self._worker, "state": str(state), "outcome": outcome}
        self._ports.tell("job.ended", {"duration": holding.lasted}, **about_ended, error=error)

    def lost(self, holding: Holding) -> None:
        self.tally.lost += 1
        lease, extra = holding.lease, {**about(holding.lease), "worker": self._worker}
        said = "the lease of job %s (%s) was lost on attempt %d of %d; its result is dropped"
        log.warning(said, lease.id, shown(lease.kind), lease.attempts + 1, lease.max_attempts, extra=extra)
        self._ports.events.counted["job.lost"] += 1
        self._ports.tell("job.lost", {"duration": holding.lasted}, **extra)

    def timed(self, name: str, sent_at: float, incarnation: int, **counts: int) -> None:
        """Something that the store was asked at `sent_at` and has answered now."""
        if self._ports.events.heard:
            duration = self._ports.clock.monotonic() - sent_at
            self._ports.tell(name, {"duration": duration, **counts}, worker=self._worker, incarnation=incarnation)
