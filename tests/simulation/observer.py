"""Notices rare events in what the store was asked and in what it changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

from holdfast.errors import DuplicateWorker, IdempotencyConflict, LeaseLost
from holdfast.kernel import duties, waiting, workers
from holdfast.kernel.cancel import cancel_family
from holdfast.kernel.complete import complete, complete_and_settle, repeated
from holdfast.kernel.enqueue import AcceptedJob, enqueue, enqueue_children, submit
from holdfast.kernel.states import State
from tests.simulation.audit import Audit
from tests.simulation.rare import Rare
from tests.support.snapshots import Change, Row

ENDINGS: Final = (complete, complete_and_settle)


class Mortal(Protocol):
    name: str
    dead: bool


class Observer:
    def __init__(self, audit: Audit, rare: Rare) -> None:
        self._audit = audit
        self._rare = rare
        self._processes: dict[int, Mortal] = {}  # of each worker
        self._registered: set[tuple[str, int]] = set()
        self._unheard: set[int] = set()
        self._parked: set[int] = set()
        self._refused: set[str] = set()
        self.epoch = 1

    def unheard(self, changes: Sequence[Change]) -> None:
        """Nobody was told of what these changes made claimable."""
        rows = [change.new for change in changes if change.table == "job" and change.new is not None]
        self._unheard.update(row["seq"] for row in rows if row["state"] == State.PENDING)

    def own(self, caller: Mortal, workers: Iterable[int]) -> Iterator[int]:
        """Those of the workers that this process itself registered."""
        return (worker for worker in workers if (caller.name, worker) in self._registered)

    def refused(self, caller: Mortal, operation: Callable[..., Any]) -> None:
        """The store was away when this was asked."""
        if operation in ENDINGS:
            self._refused.add(caller.name)

    def saw(
        self,
        caller: Mortal,
        operation: Callable[..., Any],
        args: Any,
        answer: Any,
        changes: Sequence[Change],
        *,
        again: bool,
        now: int,
    ) -> None:
        if isinstance(answer, Exception):
            self._saw_refusal(operation, args, answer)
        else:
            self._saw_answer(caller, operation, args, answer, repeated_in_vain=again and not changes)
            if operation is enqueue_children and not changes:
                self._rare.hit("launch repeated")
            elif operation is cancel_family and any(change.table == "job" for change in changes):
                self._rare.hit("family cancelled")
        for change in changes:
            match change.table:
                case "job" if change.old is not None and change.new is not None:
                    self._saw_job(operation, change.old, change.new)
                case "attempt" if change.new is not None:
                    self._saw_attempt(changes, change.new, now)
                case "duty" if change.old is not None and change.new is not None:
                    self._saw_duty(change.old, change.new, now)
                case "cluster" if change.new is not None:
                    self.epoch = change.new["epoch"]
                case _:
                    pass

    def _saw_refusal(self, operation: Callable[..., Any], args: Any, answer: Exception) -> None:
        match answer:
            case duties.DutyLost():
                self._rare.hit("cleanup refused for stale term")
            case DuplicateWorker():
                self._rare.hit("id taken")
            case IdempotencyConflict():
                self._rare.hit("key refused")
            case LeaseLost() if operation is waiting.park:
                lease = args[0]
                job = self._audit.jobs.get(lease.seq)
                if job is None or (job["epoch"], job["token"]) != (lease.epoch, lease.token):
                    return
                if job["cancel_requested_at"] is not None and _is(job, State.RUNNING):
                    self._rare.hit("cancel refuses park")
            case _:
                pass

    def _saw_answer(  # noqa: PLR0912  one branch for each operation
        self,
        caller: Mortal,
        operation: Callable[..., Any],
        args: Any,
        answer: Any,
        *,
        repeated_in_vain: bool,
    ) -> None:
        hit = self._rare.hit
        if operation in ENDINGS:
            wishes = {ending.seq: ending.state for ending in args[0]}
            if any(row.state == State.CANCELLED != wishes[row.seq] for row in answer):
                hit("cancel wins over outcome")
            if caller.name in self._refused and answer:
                self._refused.discard(caller.name)
                hit("store away and back")
        elif operation is repeated:
            if answer:
                hit("commit-unknown complete recognised")
            refused = [ending for ending in args[0] if ending.seq not in answer]
            if refused:
                hit("stale completion refused")
            if any((ending.seq, ending.epoch, ending.token) in self._audit.forgotten for ending in refused):
                hit("lease of a lost server refused")
        elif operation is enqueue:
            if repeated_in_vain and answer == 0:
                hit("commit-unknown enqueue repeated")
        elif operation is submit:
            if isinstance(answer, AcceptedJob) and not answer.fresh:
                hit("key names the same job")
        elif operation is waiting.list_steps:
            if answer:
                hit("stored step returned")
        elif operation is waiting.take_signal:
            if answer.payload is not None and args[0].seq not in self._parked:
                hit("signal before park")
        elif operation is waiting.park:
            self._parked.add(args[0].seq)
            if answer == State.PENDING and args[0].kind == "waiter":
                hit("signal while parking")
        elif operation is workers.register:
            self._saw_registration(caller, answer)

    def _saw_registration(self, caller: Mortal, worker: int) -> None:
        before = [seq for seq, process in self._processes.items() if process is caller and seq != worker]
        last = self._audit.workers.get(before[-1]) if before else None
        if last is not None and last["status"] == "lost":
            self._rare.hit("given up and back")
        self._processes[worker] = caller
        self._registered.add((caller.name, worker))

    def _saw_job(self, operation: Callable[..., Any], old: Row, new: Row) -> None:
        hit = self._rare.hit
        match old["state"], new["state"]:
            case "pending", "running":
                if old["seq"] in self._unheard:
                    self._unheard.discard(old["seq"])
                    hit("hint lost and found by poll")
            case "scheduled", "pending":
                hit("wake-up made a job due")
            case "waiting", "pending":
                if operation is waiting.signal:
                    hit("signal after park")
                elif operation is waiting.wake:
                    hit("wait timed out")
                else:
                    hit("parent woken by last child")
            case (("pending" | "scheduled" | "waiting"), "failed"):
                hit("deadline exceeded")
            case "running", ended if ended != "running":
                if operation in ENDINGS and old["epoch"] < self.epoch:
                    hit("epoch bump under a lease")
                if new["error"] != old["error"] and '"type":"timeout"' in (new["error"] or ""):
                    hit("attempt timed out")
            case _:
                pass

    def _saw_attempt(self, changes: Sequence[Change], attempt: Row, now: int) -> None:
        if attempt["outcome"] == "released":
            self._rare.hit("drain handed back")
        if attempt["outcome"] != "lost":
            return
        moved = next(c for c in changes if c.table == "job" and c.key == attempt["job"])
        if moved.old is not None and moved.new is not None:
            self._saw_rescue(moved.old, moved.new, now)

    def _saw_rescue(self, old: Row, new: Row, now: int) -> None:
        hit = self._rare.hit
        process = self._processes.get(old["worker"])
        alive = process is not None and not process.dead
        early = old["lease_until"] > now
        if early:
            hit("presence-based rescue")
        if alive:
            hit("presence of the living lost" if early else "steal from the living")
        if (old["seq"], old["epoch"], old["token"]) not in self._audit.known:
            hit("commit-unknown claim expired")
        elif old["lease_until"] >= old["claimed_at"] + self._audit.ceiling_us:
            hit("lease ceiling reached")
        error = new["error"] or ""
        if _is(new, State.SCHEDULED):
            hit("rescue put off")
        elif _is(new, State.CANCELLED):
            hit("cancel finalised by sweep")
        elif _is(new, State.FAILED):
            for kind, name in _FINAL.items():
                if f'"type":"{kind}"' in error:
                    hit(name)

    def _saw_duty(self, old: Row, new: Row, now: int) -> None:
        if new["term"] > old["term"] and old["holder"] not in (None, new["holder"]):
            self._rare.hit("term change")
            if old["held_until"] > now:
                self._rare.hit("duty taken from the dead")


_FINAL: Final = {
    "rescue_failed": "rescue at limit finalised",
    "instance_disconnected": "orphan failed",
    "deadline_exceeded": "deadline exceeded when rescued",
}


def _is(row: Row, state: State) -> bool:
    return bool(row["state"] == state)
