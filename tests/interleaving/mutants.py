"""Planted bugs: a lock, a fence or a pause left out. The harness must notice each, or its silence proves nothing.

Each says which words it takes out of a statement, or which function it replaces, and fails loudly when that is gone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from weakref import WeakSet

import pytest

from holdfast.agents.statements import Inquiries
from holdfast.kernel.drivers.postgres import PostgresDatabase
from holdfast.kernel.drivers.postgres_pool import Line
from holdfast.kernel.leases import Beat
from holdfast.kernel.sql import Statement
from holdfast.kernel.statements import Jobs, Lanes, Leases, Retention, Waiting
from holdfast.workers.sweeper import Missed, Sweeper
from holdfast.workers.worker import Worker
from tests.interleaving import scripts


class Edit(NamedTuple):
    statement: Statement
    old: str
    new: str = ""


class Mutant(NamedTuple):
    """A bug in statements, and the pair of verbs that shows it."""

    what: str
    pair: str
    edits: tuple[Edit, ...]

    def plant(self, database: Any) -> None:
        """In the statements of one database; all others keep theirs."""
        statements = copy.copy(database._statements)
        for statement, old, new in self.edits:
            texts = tuple(" ".join(text.split()) for text in statements[statement].texts)
            if not any(old in text for text in texts):
                pytest.fail(f"{statement} no longer says {old!r}; plant the bug in its new words")
            statements[statement] = statements[statement]._replace(texts=tuple(t.replace(old, new) for t in texts))
        database._statements = statements


class Slip(NamedTuple):
    """A bug in a function, and the script that shows it."""

    what: str
    script: Callable[[str], Any]
    plant: Callable[[pytest.MonkeyPatch], None]


def _note_identity_once(patch: pytest.MonkeyPatch) -> None:
    genuine = PostgresDatabase._note_identity
    noted: WeakSet[PostgresDatabase] = WeakSet()

    async def note_identity(database: PostgresDatabase, line: Line) -> None:
        if database not in noted:
            noted.add(database)
            await genuine(database, line)

    patch.setattr(PostgresDatabase, "_note_identity", note_identity)


def _judge_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PostgresDatabase, "seconds_since_reconnect", lambda _database: float("inf"))


def _miss_long_ago(patch: pytest.MonkeyPatch) -> None:
    genuine = Sweeper._miss

    def miss(sweeper: Sweeper, worker: int, now: float, last_beat: int) -> Missed:
        return genuine(sweeper, worker, now, last_beat)._replace(since=float("-inf"))

    patch.setattr(Sweeper, "_miss", miss)


def _count_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    genuine = Worker._on_beat

    def on_beat(worker: Worker, _sent_at: float, beat: Beat) -> None:
        genuine(worker, worker._ports.clock.monotonic(), beat)

    patch.setattr(Worker, "_on_beat", on_beat)


_LAPSED: Final = "(lease_until <= holdfast.now_us() or worker"

MUTANTS: Final = (
    Mutant(
        "lanes are not locked: a lane of two runs three",
        "roomy-lane/claim_one/claim_of_another_kind",
        (Edit(Lanes.lock_lanes, " for update"),),
    ),
    Mutant(
        "a step is stored without locking the lease: a stale step is accepted",
        "lapsing/store_step/expire_and_claim",
        (Edit(Waiting.store_step, " for update"),),
    ),
    Mutant(
        "a channel is not locked: a job parks beside an unread signal",
        "signals/park/signal",
        (Edit(Waiting.lock_channel, "do update set name = excluded.name", "do nothing"),),
    ),
    Mutant(
        "the fence of a turn does not lock: a stale answer ends its run",
        "agent-asking/commit_end/taken_over",
        (Edit(Waiting.hold, " for update"),),
    ),
    Mutant(
        "retention removes a parent whose children have not ended",
        "ended-parent/prune/claim_child",
        (Edit(Retention.find_prunable, "j.open_children = 0 and "), Edit(Retention.prune, " and open_children = 0")),
    ),
    Mutant(
        "jobs are not locked: of two calls that end at once neither lets the run go on",
        "agent-tools/end_one/end_other",
        (Edit(Jobs.lock_jobs, " for update"),),
    ),
    Mutant(
        "a rescue goes by number: a job that ended runs again",
        "lapsing/expire/complete",
        (Edit(Leases.expire, " and state = lost.source"), Edit(Leases.expire, _LAPSED, "(true or worker")),
    ),
    Mutant(
        "a decision is made twice: two people approve and deny the same call",
        "agent-approval/approve/deny",
        (Edit(Inquiries.decide_inquiry, " and state = 'open'"),),
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
    Slip("one look is a verdict", scripts.one_look_is_no_verdict, _miss_long_ago),
    Slip("a renewal counts from its answer", scripts.a_late_answer_gives_no_more_time, _count_from_the_answer),
)
