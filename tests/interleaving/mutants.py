"""Planted bugs: a lock, a fence or a pause left out. The harness must notice each, or its silence proves nothing.

Each says which words it takes out of a statement, or which function it replaces, and fails loudly when that is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakSet

import pytest

from holdfast.agents.batches.records import BatchesSql
from holdfast.agents.people.records import InquiriesSql
from holdfast.agents.statements import RunsSql
from holdfast.kernel import complete, leases
from holdfast.kernel.database import Transaction
from holdfast.kernel.drivers.postgres import PostgresDatabase
from holdfast.kernel.drivers.postgres_pool import PooledConnection
from holdfast.kernel.ids import JobId
from holdfast.kernel.leases import Beat
from holdfast.kernel.rows import ChildRef, EndedLease, Ending, Lease, LeaseRef, LockedJob
from holdfast.kernel.statements import EnqueueSql, JobsSql, LanesSql, LeasesSql, RetentionSql, WaitingSql
from holdfast.kernel.states import TERMINAL
from holdfast.kernel.waiting import list_children, lock_channel, park
from holdfast.machines import family
from holdfast.machines.layer import children_channel
from holdfast.resp import pops, server
from holdfast.resp.endings import PoppedJob
from holdfast.resp.records import Epoch, HoldersSql
from holdfast.workers.sweeper import MissedPresence, Sweeper
from holdfast.workers.worker import Worker
from tests.interleaving import scene, scripts
from tests.interleaving.edits import Edit, respell

_CHILDLESS = "coalesce((select f.open_children from holdfast.family f where f.job = {}.seq), 0) = 0"

_TAKEN = " and not exists (select 1 from holdfast.batch o where o.provider_id = $1)"


class Mutant(NamedTuple):
    """A bug in statements, and the pair of verbs that shows it."""

    what: str
    pair: str
    edits: tuple[Edit, ...]

    def plant(self, database: Any) -> None:
        """In the statements of one database; all others keep theirs."""
        respell(database, self.edits)


class Slip(NamedTuple):
    """A bug in a function, and the script that shows it."""

    what: str
    script: Callable[[str], Any]
    plant: Callable[[pytest.MonkeyPatch], None]


def _note_identity_once(patch: pytest.MonkeyPatch) -> None:
    genuine = PostgresDatabase._note_identity
    noted: WeakSet[PostgresDatabase] = WeakSet()

    async def note_identity(database: PostgresDatabase, line: PooledConnection) -> None:
        if database not in noted:
            noted.add(database)
            await genuine(database, line)

    patch.setattr(PostgresDatabase, "_note_identity", note_identity)


def _judge_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PostgresDatabase, "seconds_since_reconnect", lambda _database: float("inf"))


def _miss_long_ago(patch: pytest.MonkeyPatch) -> None:
    genuine = Sweeper._miss

    def miss(sweeper: Sweeper, worker: int, now: float, last_beat: int) -> MissedPresence:
        return genuine(sweeper, worker, now, last_beat)._replace(since=float("-inf"))

    patch.setattr(Sweeper, "_miss", miss)


def _count_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    genuine = Worker._on_beat

    def on_beat(worker: Worker, _sent_at: float, beat: Beat) -> None:
        genuine(worker, worker._ports.clock.monotonic(), beat)

    patch.setattr(Worker, "_on_beat", on_beat)


def _replace_in_place(patch: pytest.MonkeyPatch) -> None:
    """The row that can be claimed is locked, and stays; only what was asked for changes."""
    genuine = PostgresDatabase.open
    edits = (
        Edit(
            EnqueueSql.replace,
            "from_ready as ( delete from holdfast.ready",
            "from_ready as ( select seq from holdfast.ready",
        ),
        Edit(EnqueueSql.replace, "j.seq = $1)) returning seq ), from_later", "j.seq = $1)) ), from_later"),
        Edit(EnqueueSql.replace, "where due_at is null )", "where due_at is null on conflict do nothing )"),
    )

    async def open(database: PostgresDatabase) -> None:
        await genuine(database)
        respell(database, edits)

    patch.setattr(PostgresDatabase, "open", open)


def _look_before_the_lock(patch: pytest.MonkeyPatch) -> None:
    async def park_unless_ended(tx: Transaction, lease: Lease, ids: Sequence[JobId], timeout_us: int | None) -> bool:
        rows = await list_children(tx, lease.seq)
        await lock_channel(tx, children_channel(lease.seq))
        if any(row.id in ids and row.state in TERMINAL for row in rows):
            return False
        await park(tx, lease, channel=children_channel(lease.seq), timeout_us=timeout_us)
        return True

    patch.setattr(family, "_park_unless_ended", park_unless_ended)


def _lock_no_parent_of_a_retry(patch: pytest.MonkeyPatch) -> None:
    genuine = complete.complete_and_settle

    async def complete_and_settle(
        tx: Transaction, endings: Sequence[Ending], parents: Sequence[int]
    ) -> list[EndedLease]:
        return await genuine(tx, endings, parents if all(ending.state in TERMINAL for ending in endings) else ())

    patch.setattr(scene, "complete_and_settle", complete_and_settle)


def _sweep_without_parents(patch: pytest.MonkeyPatch) -> None:
    async def try_lock_jobs(tx: Transaction, family: Sequence[ChildRef]) -> list[LockedJob]:
        anchored = await tx.many(JobsSql.try_lock_anchors, seqs=sorted(job.seq for job in family))
        return sorted(await tx.many(JobsSql.try_lock_places, seqs=sorted(row.seq for row in anchored)))

    patch.setattr(leases, "try_lock_jobs", try_lock_jobs)


def _renew_for_any_epoch(patch: pytest.MonkeyPatch) -> None:
    genuine = server.keep

    async def keep(tx: Transaction, epoch: Epoch, delivered: Collection[LeaseRef], *, ttl_us: int) -> set[LeaseRef]:
        (row,) = await tx.many(HoldersSql.live_holders, workers=[epoch.worker], told=[])
        return await genuine(tx, row.epoch, delivered, ttl_us=ttl_us)

    patch.setattr(server, "keep", keep)


def _trust_longer(patch: pytest.MonkeyPatch) -> None:
    genuine = pops._popped

    def popped(lease: Lease, epoch: Epoch, names: Mapping[JobId, str], asked_at: float, left_us: int) -> PoppedJob:
        return genuine(lease, epoch, names, asked_at + 30, left_us)

    patch.setattr(pops, "_popped", popped)


_LAPSED: Final = "(lease_until <= holdfast.now_us() or worker"

MUTANTS: Final = (
    Mutant(
        "lanes are not locked: a lane of two runs three",
        "roomy-lane/claim_one/claim_of_another_kind",
        (Edit(LanesSql.lock_lanes, " for update skip locked"),),
    ),
    Mutant(
        "a step is stored without locking the lease: a stale step is accepted",
        "lapsing/store_step/expire_and_claim",
        (Edit(WaitingSql.store_step, " for update"),),
    ),
    Mutant(
        "a channel is not locked: a job parks beside an unread signal",
        "signals/park/signal",
        (Edit(WaitingSql.lock_channel, "do update set name = excluded.name", "do nothing"),),
    ),
    Mutant(
        "the fence of a turn does not lock: a stale answer ends its run",
        "agent-asking/commit_end/taken_over",
        (Edit(WaitingSql.hold, " for update"),),
    ),
    Mutant(
        "retention removes a parent whose children have not ended",
        "ended-parent/prune/claim_child",
        (
            Edit(RetentionSql.find_prunable, _CHILDLESS.format("e") + " and "),
            Edit(RetentionSql.prune, " and " + _CHILDLESS.format("job")),
        ),
    ),
    Mutant(
        "jobs are not locked: of two calls that end at once neither lets the run go on",
        "agent-tools/end_one/end_other",
        (Edit(JobsSql.lock_anchors, " for update"),),
    ),
    Mutant(
        "a cancel looks for what waits and then for what runs, and nobody keeps the job still: it escapes",
        "lapsing/cancel/retry",
        (Edit(JobsSql.lock_places, " for update"),),
    ),
    Mutant(
        "a parent's anchor is not locked: it begins to wait beside the end of its last child, for good",
        "only-child/park/complete_child",
        (Edit(WaitingSql.hold_still, "seq = $1 for update", "seq = $1"),),
    ),
    Mutant(
        "a parent's lease is not locked: it begins to wait as if it had launched nothing",
        "childless/enqueue_children/park",
        (Edit(WaitingSql.hold_still, "k.token = $4 for update", "k.token = $4"),),
    ),
    Mutant(
        "a rescue goes by number: it takes the lease of who has claimed the job meanwhile",
        "lapsing/expire/expire_and_claim",
        (Edit(LeasesSql.expire, _LAPSED, "(true or worker"),),
    ),
    Mutant(
        "a failure locks the turn before its run: the journal and it wait for each other",
        "agent-asking/fail_turn/journal",
        (Edit(RunsSql.fail_turn, " for update"),),
    ),
    Mutant(
        "an attempt begins with the turn before its run: it and the journal of the one before wait for each other",
        "agent-inherited/journal_of_the_frozen/begin",
        (Edit(RunsSql.begin_turn, " for update"),),
    ),
    Mutant(
        "an answer locks the turn before its run: the journal and it wait for each other",
        "agent-asking/journal/commit_calls",
        (Edit(RunsSql.end_turns, " for update"),),
    ),
    Mutant(
        "a decision is made twice: two people approve and deny the same call",
        "agent-approval/approve/deny",
        (Edit(InquiriesSql.decide_inquiry, " and state = 'open'"),),
    ),
    Mutant(
        "two that look for their batches do not wait for each other: both take the same one",
        "batches-searching/take/take_too",
        (Edit(BatchesSql.lock_provider_id, "pg_advisory_xact_lock", "abs"),),
    ),
    Mutant(
        "a batch is taken that another of ours has",
        "batches-searching/take/take_too",
        (Edit(BatchesSql.take_batch, _TAKEN),),
    ),
    Mutant(
        "an overtaken worker gives its batch what another of ours has",
        "batches-searching/take_too/disown",
        (Edit(BatchesSql.offer_batch, _TAKEN),),
    ),
)

SLIPS: Final = (
    Slip(
        "the server's identity is noted at the first connection only",
        scripts.a_new_connection_to_another_server_raises_the_epoch,
        _note_identity_once,
    ),
    Slip(
        "there is no quiet after a reconnect",
        scripts.nobody_is_judged_right_after_a_reconnect,
        _judge_at_once,
    ),
    Slip(
        "a replace locks the row that can be claimed instead of putting another in its place",
        scripts.a_claim_that_began_before_a_replace_says_what_was_said_last,
        _replace_in_place,
    ),
    Slip("one look is a verdict", scripts.one_look_is_no_verdict, _miss_long_ago),
    Slip(
        "a machine looks how its children stand before it locks: it waits for one that has ended",
        scripts.a_machine_does_not_wait_for_a_child_that_has_ended,
        _look_before_the_lock,
    ),
    Slip(
        "parents are locked for terminal endings only: a child that was asked to stop ends unheard",
        scripts.a_parent_hears_of_a_child_that_is_to_be_tried_again,
        _lock_no_parent_of_a_retry,
    ),
    Slip(
        "a sweep takes a child's lease without its parent's lock",
        scripts.a_parent_hears_of_a_child_that_the_sweep_ends,
        _sweep_without_parents,
    ),
    Slip(
        "a gateway renews for any epoch of a worker's number",
        scripts.a_gateway_renews_for_the_epoch_that_has_the_lease,
        _renew_for_any_epoch,
    ),
    Slip(
        "a gateway is sure of a lease 30 s longer than it holds",
        scripts.a_gateway_asks_the_store_about_a_lease_that_may_have_run_out,
        _trust_longer,
    ),
    Slip("a renewal counts from its answer", scripts.a_late_answer_gives_no_more_time, _count_from_the_answer),
)
