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

from holdfast.kernel.complete import complete, complete_and_settle
from holdfast.kernel.database import Transaction
from holdfast.kernel.duties import LOOK, Cleaned, Marks, clean_up, remove_old
from holdfast.kernel.families import settle
from holdfast.kernel.leases import (
    DEADLINE_ERROR,
    FOREVER,
    ORPHAN_ERROR,
    RESCUE_ERROR,
    Beat,
    OwnRow,
    beat,
    expire,
    renew,
)
from holdfast.kernel.records import Ended, Ending, Held, Kin, Moved, Sight, Term
from holdfast.kernel.sql import Statement
from holdfast.kernel.statements import Jobs, Lanes, Leases, Waiting
from holdfast.kernel.states import TERMINAL
from holdfast.kernel.workers import look
from holdfast.workers.worker import Worker
from tests.simulation.world import World

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


async def _look_for_nothing(tx: Transaction, worker: int, routes: Sequence[int]) -> Sight:
    sight: Sight = await look(tx, worker, routes)
    return sight._replace(pending=False)


async def _beat_for_all_it_owns(
    tx: Any, worker: int, active: int, held: Sequence[Held], *, me: OwnRow, **limits: Any
) -> Beat:
    answer: Beat = await beat(tx, worker, active, held, me=me, **limits)
    rows = tx.execute(
        "select seq, worker, epoch, token from job where state = 'running' and worker = :w", {"w": worker}
    )
    await renew(tx, [Held(*row) for row in rows], ttl_us=limits["ttl_us"], ceiling_us=limits["ceiling_us"])
    return answer


async def _clean_up_anyway(
    tx: Transaction, term: Term, worker: int, *, key_age_us: int, worker_age_us: int, **_: Any
) -> Cleaned:
    ages = {"key_age_us": key_age_us, "worker_age_us": worker_age_us}
    return await remove_old(tx, Marks(), signal_age_us=None, look=LOOK, **ages)


def _settle_later(world: World) -> None:
    store = world.store

    async def end_alone(tx: Transaction, endings: Sequence[Ending], parents: Sequence[int]) -> list[Ended]:
        ended: list[Ended] = await complete(tx, endings)
        moved = [job for job in ended if job.state in TERMINAL]
        later = partial(store.execute, world.client, settle, (moved,), {}, again=False)
        store.loop.call_later(0.01, later, context=store.context)
        return ended

    store.replaced[complete_and_settle] = end_alone


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


async def _find_lapsed(tx: Transaction, limit: int) -> list[Kin]:
    return await tx.many(Leases.find_lapsed, gone=[], until=FOREVER, limit=limit)


async def _take(tx: Transaction, found: Sequence[Kin], backoff_us: int, chance: Random) -> list[Moved]:
    seqs = [job.seq for job in found]
    await tx.run(Leases.record_lost, seqs=seqs, gone=[])
    moved = await tx.many(
        Leases.expire,
        seqs=seqs,
        gone=[],
        backoff_us=backoff_us,
        jitter=chance.randrange(500),
        deadline_error=DEADLINE_ERROR,
        orphan_error=ORPHAN_ERROR,
        rescue_error=RESCUE_ERROR,
    )
    await settle(tx, moved)
    return moved


class Unfenced(Worker):
    """Never stops by itself, however long ago it last renewed."""

    def _fence(self, sent_at: float, claimed_at: float) -> float:
        return math.inf


_OF_ENDING: Final = " and j.worker = value ->> 1 and j.epoch = value ->> 2 and j.token = value ->> 3"
_OF_JOB: Final = " and j.worker = e.worker and j.epoch = e.epoch and j.token = e.token"
_LAPSED: Final = " and (lease_until <= now_us() or worker in (select value from json_each(:gone)))"
_HELD: Final = " and state = 'running' and worker = :worker and epoch = :epoch and token = :token"

MUTANTS: Final = (
    Mutant(
        "unfenced complete",
        "an attempt ends its job whatever became of it",
        rewrite(Jobs.complete, (" and j.state = e.source" + _OF_JOB, "")),
    ),
    Mutant(
        "state-only guard",
        "an attempt ends its job if it runs, whoever runs it (River, DBOS)",
        rewrite(Jobs.complete, (_OF_ENDING, ""), (_OF_JOB, "")),
    ),
    Mutant(
        "rescue by id",
        "a rescue is applied to what an earlier transaction saw (River #1302)",
        together(
            employ(RescueById),
            rewrite(Leases.record_lost, (_LAPSED, "")),
            rewrite(Leases.expire, (" and state = lost.source" + _LAPSED, "")),
        ),
    ),
    Mutant(
        "rescues not counted",
        "a job that kills its workers does so for ever",
        rewrite(Leases.expire, ("rescues = rescues + 1, ", "")),
    ),
    Mutant(
        "lost wake-up without poll",
        "work is found by hints alone (Graphile #541, BullMQ #4729)",
        replace(look, _look_for_nothing),
        soon=34,
    ),
    Mutant(
        "lane that does not count",
        "a claim forgets what already runs in its lane",
        rewrite(
            Lanes.lane_states, ("(select count(*) from job j where j.state = 'running' and j.lane = lane.name)", "0")
        ),
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
    Mutant("unfenced steps", "whoever once held the job may store a step", rewrite(Waiting.store_step, (_HELD, ""))),
    Mutant("no self-fence", "a worker that lost its lease does not notice by itself", employ(Unfenced)),
    Mutant(
        "dead branch at the limit",
        "the sweep does not end a job that lost its lease too often (agentpg)",
        rewrite(Leases.expire, (" when j.rescues >= j.max_rescues then 'rescues'", "")),
    ),
    Mutant(
        "lease revived",
        "a lease that ran out can be renewed",
        rewrite(Leases.renew, (" and j.lease_until > now_us() - max(:leap_us, 0)", "")),
    ),
    Mutant(
        "signal missed by park",
        "a job parks although its signal is there",
        rewrite(Waiting.park, ("exists (select 1 from signal s where s.channel = :channel)", "false")),
    ),
    Mutant(
        "woken early",
        "a job is made due before its time",
        rewrite(Waiting.wake, ("due_at <= now_us()", "due_at <= now_us() + 3000000")),
    ),
    Mutant(
        "key taken over",
        "a repeated key names the newest job",
        rewrite(Jobs.take_key, ("set key = excluded.key", "set job = excluded.job")),
    ),
    Mutant(
        "bare counter over failover",
        "a token is only a number, which a server that lost commits gives out again",
        rewrite(Jobs.claim, ("epoch = (select c.epoch from cluster c)", "epoch = 1")),
    ),
    Mutant("token reused", "a claim does not raise the token", rewrite(Jobs.claim, ("token = token + 1, ", ""))),
)
