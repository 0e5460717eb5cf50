"""Planted bugs. Each is a mistake that some job system really made, and the simulation must notice each.

A mutant changes the statements or operations of one simulated store, or its workers; the product knows nothing of it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple

from holdfast.kernel.claim import SharedLook, looked_note, tell_look
from holdfast.kernel.complete import complete, complete_and_settle
from holdfast.kernel.database import Transaction
from holdfast.kernel.duties import LOOK, CleanupMarks, CleanupStep, clean_up, remove_old
from holdfast.kernel.families import settle
from holdfast.kernel.leases import (
    ERRORS,
    FOREVER,
    Beat,
    OwnRow,
    beat,
    expire,
    renew,
)
from holdfast.kernel.rows import ChildRef, EndedLease, Ending, LeaseRef, MovedJob, Observation, Term
from holdfast.kernel.sql import Statement
from holdfast.kernel.statements import EnqueueSql, JobsSql, LanesSql, LeasesSql, WaitingSql
from holdfast.kernel.states import TERMINAL
from holdfast.kernel.workers import look
from holdfast.workers.worker import Worker
from tests.simulation.world import World
from tests.support.places import PLACES

Plant = Callable[[World], None]


class Mutant(NamedTuple):
    name: str
    what: str
    plant: Plant
    soon: int = 1  # the seed to begin with, where the first ones are known to miss it


def rewrite(statement: Statement, *edits: tuple[str, str]) -> Plant:
    """Change a statement's text, of which every `old` must be a part."""

    def plant(world: World) -> None:
        known = world.store.file._statements
        texts = tuple(" ".join(text.split()) for text in known[statement].texts)
        for old, new in edits:
            assert any(old in text for text in texts), f"{statement} no longer says {old!r}"
            texts = tuple(text.replace(old, new) for text in texts)
        edited: Any = copy.copy(known)  # it finds the statements of other layers when they are asked for
        edited[statement] = known[statement]._replace(texts=texts)
        world.store.file._statements = edited

    return plant


def rewrite_each(statements: Sequence[Statement], *edits: tuple[str, str]) -> Plant:
    return together(*(rewrite(statement, *edits) for statement in statements))


def replace(operation: Callable[..., Any], by: Callable[..., Any]) -> Plant:
    def plant(world: World) -> None:
        world.store.replaced[operation] = by

    return plant


def employ(make_worker: Callable[..., Worker]) -> Plant:
    def plant(world: World) -> None:
        for machine in world.machines:
            machine.make_worker = make_worker

    return plant


def together(*plants: Plant) -> Plant:
    def plant(world: World) -> None:
        for each in plants:
            each(world)

    return plant


async def _look_for_nothing(tx: Transaction, worker: int, routes: Sequence[int]) -> Observation:
    sight: Observation = await look(tx, worker, routes)
    return sight._replace(pending=False)


async def _tell_of_nothing(tx: Transaction, seen: SharedLook) -> None:
    await tx.hint(looked_note(seen, []))


async def _beat_for_all_it_owns(
    tx: Any, worker: int, active: int, held: Sequence[LeaseRef], *, me: OwnRow, **limits: Any
) -> Beat:
    answer: Beat = await beat(tx, worker, active, held, me=me, **limits)
    rows = tx.execute("select seq, worker, epoch, token from lease where worker = :w", {"w": worker})
    await renew(tx, [LeaseRef(*row) for row in rows], ttl_us=limits["ttl_us"], ceiling_us=limits["ceiling_us"])
    return answer


async def _clean_up_anyway(
    tx: Transaction, term: Term, worker: int, *, key_age_us: int, worker_age_us: int, **_: Any
) -> CleanupStep:
    ages = {"key_age_us": key_age_us, "worker_age_us": worker_age_us}
    return await remove_old(tx, CleanupMarks(), signal_age_us=None, look=LOOK, **ages)


def _settle_later(world: World) -> None:
    store = world.store

    async def end_alone(tx: Transaction, endings: Sequence[Ending], parents: Sequence[int]) -> list[EndedLease]:
        ended: list[EndedLease] = await complete(tx, endings)
        moved = [job for job in ended if job.state in TERMINAL]
        later = partial(store.execute, world.client, settle, (moved,), {}, again=False)
        store.loop.call_later(0.01, later, context=store.context)
        return ended

    store.replaced[complete_and_settle] = end_alone


async def _end_anyway(tx: Any, endings: Sequence[Ending]) -> list[EndedLease]:
    ended: list[EndedLease] = await complete(tx, endings)
    held = {job.seq for job in ended}
    for late in (ending for ending in endings if ending.seq not in held):
        ((attempts, rescues),) = tx.execute(f"select attempts, rescues from job_now where seq = {late.seq}", {})
        for place in PLACES:
            tx.execute(f"delete from {place} where seq = {late.seq}", {})
        tx.execute(
            "insert into ended (seq, token, finished_at, attempts, rescues, state, queue, lane, result) "
            f"select seq, :token, now_us(), {attempts}, {rescues}, 'succeeded', queue, lane, :result "
            "from job where seq = :seq",
            late._asdict(),
        )
    return ended


async def _end_and_settle_anyway(tx: Any, endings: Sequence[Ending], parents: Sequence[int]) -> list[EndedLease]:
    ended = await _end_anyway(tx, endings)
    await settle(tx, ended)
    return ended


class RescueById(Worker):
    """Finds what lapsed in one transaction and takes it, by number, in the next."""

    def __init__(self, registry: Any, database: Any, *rest: Any, **options: Any) -> None:
        super().__init__(registry, TwoSteps(database), *rest, **options)


class TwoSteps:
    def __init__(self, database: Any) -> None:
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def transact(self, operation: Any, /, *args: Any, **kwargs: Any) -> Any:
        if operation is not expire or kwargs["gone"]:
            return await self._database.transact(operation, *args, **kwargs)
        found = await self._database.transact(_find_lapsed, kwargs["limit"])
        return await self._database.transact(_take, found, kwargs["backoff_us"], kwargs["chance"]) if found else []


async def _find_lapsed(tx: Transaction, limit: int) -> list[ChildRef]:
    return await tx.many(LeasesSql.find_lapsed, gone=[], until=FOREVER, limit=limit)


async def _take(tx: Any, found: Sequence[ChildRef], backoff_us: int, chance: Random) -> list[MovedJob]:
    seqs = [job.seq for job in found]
    moved: list[MovedJob] = await tx.many(
        LeasesSql.expire,
        seqs=seqs,
        gone=[],
        backoff_us=backoff_us,
        jitter=chance.randrange(500),
        at_once=0,
        charge=0,
        **ERRORS,
    )
    await settle(tx, moved)
    for seq in {*seqs} - {job.seq for job in moved}:
        ((token, attempts, rescues),) = tx.execute(
            f"select token, attempts, rescues from job_now where seq = {seq}", {}
        )
        for place in PLACES:
            tx.execute(f"delete from {place} where seq = {seq}", {})
        tx.execute(
            "insert into ready (route, slot, seq, token, priority, attempts, rescues, deadline_at) "
            f"select route, slot, seq, {token}, priority, {attempts}, {rescues + 1}, deadline_at "
            f"from job where seq = {seq}",
            {},
        )
    return moved


class Unfenced(Worker):
    """Never stops by itself, however long ago it last renewed."""

    def _fence(self, sent_at: float, claimed_at: float) -> float:
        return math.inf


CLAIMS: Final = (JobsSql.claim, JobsSql.claim_one)
_OF_ENDING: Final = " where l.worker = value ->> 1 and l.epoch = value ->> 2 and l.token = value ->> 3"
_MINE: Final = "from lease where seq = :seq and worker + 0 = :worker and epoch = :epoch and token = :token"

MUTANTS: Final = (
    Mutant(
        "unfenced complete",
        "an attempt ends its job whatever became of it",
        together(replace(complete, _end_anyway), replace(complete_and_settle, _end_and_settle_anyway)),
    ),
    Mutant(
        "state-only guard",
        "an attempt ends its job if it runs, whoever runs it (River, DBOS)",
        rewrite_each((JobsSql.finish, JobsSql.complete), (_OF_ENDING, " where true")),
    ),
    Mutant(
        "rescue by id",
        "a rescue is applied to what an earlier transaction saw (River #1302)",
        employ(RescueById),
    ),
    Mutant(
        "rescues not counted",
        "a job that kills its workers does so for ever",
        rewrite(LeasesSql.expire, ("rescues + 1", "rescues")),
    ),
    Mutant(
        "lost wake-up without poll",
        "work is found by hints alone (Graphile #541, BullMQ #4729)",
        together(replace(look, _look_for_nothing), replace(tell_look, _tell_of_nothing)),
        soon=34,
    ),
    Mutant(
        "lane that does not count",
        "a claim forgets what already runs in its lane",
        rewrite(LanesSql.lane_states, ("(select count(*) from lease l where l.lane = lane.name)", "0")),
    ),
    Mutant(
        "renewal of everything it owns",
        "leases are renewed that the worker never learned of",
        replace(beat, _beat_for_all_it_owns),
    ),
    Mutant(
        "a paused leader acts on",
        "maintenance is done without asking whether the duty is still held",
        replace(clean_up, _clean_up_anyway),
    ),
    Mutant("parent settled later", "a child ends in one transaction and is counted in the next", _settle_later),
    Mutant(
        "unfenced steps",
        "whoever once held the job may store a step",
        rewrite(WaitingSql.store_step, (_MINE, "from job where seq = :seq")),
    ),
    Mutant("no self-fence", "a worker that lost its lease does not notice by itself", employ(Unfenced)),
    Mutant(
        "dead branch at the limit",
        "the sweep does not end a job that lost its lease too often (agentpg)",
        rewrite(LeasesSql.expire, (" when l.counts = 0 and l.rescues >= j.max_rescues then 'rescues'", "")),
    ),
    Mutant(
        "lease revived",
        "a lease that ran out can be renewed",
        rewrite(LeasesSql.renew, (" and l.lease_until > now_us() - max(:leap_us, 0)", "")),
    ),
    Mutant(
        "signal missed by park",
        "a job parks although its signal is there",
        rewrite(WaitingSql.park, ("exists (select 1 from signal s where s.channel = :channel)", "false")),
    ),
    Mutant(
        "woken early",
        "a job is made due before its time",
        rewrite(WaitingSql.wake, ("due_at <= now_us()", "due_at <= now_us() + 3000000")),
    ),
    Mutant(
        "key taken over",
        "a repeated key names the newest job",
        rewrite(EnqueueSql.take_key, ("set key = excluded.key", "set job = excluded.job")),
    ),
    Mutant(
        "bare counter over failover",
        "a token is only a number, which a server that lost commits gives out again",
        rewrite_each(CLAIMS, ("(select c.epoch from cluster c)", "1")),
    ),
    Mutant("token reused", "a claim does not raise the token", rewrite_each(CLAIMS, ("p.token + 1", "p.token"))),
    Mutant(
        "row in two places",
        "a claim leaves the job where others can claim it",
        rewrite_each(CLAIMS, ("delete from ready where ", "delete from ready where false and ")),
    ),
    Mutant(
        "row in no place",
        "an attempt that is to be retried ends, and its job is nowhere",
        rewrite(JobsSql.complete, (" = 'scheduled'", " = 'nowhere'")),
    ),
)
