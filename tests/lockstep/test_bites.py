"""Known bugs, planted one at a time: the machine must find each of them, or its silence proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from hypothesis import Phase, settings

from holdfast.kernel import cancel, database, families, sql
from holdfast.kernel.database import Transaction
from tests.lockstep import test_lockstep
from tests.lockstep.test_lockstep import LockstepWithBrokers, play, staged
from tests.mutants.planting import Words

Plant = Callable[[pytest.MonkeyPatch], None]


def instead(statements: str, *pairs: tuple[str, str]) -> Plant:
    """Spell statements of SQLite's in another way: each `old` must be in each of them."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        for name in statements.split():
            for old, new in pairs:
                Words(name, old, new, on="sqlite").plant(patch)

    return plant


def forget_parents(patch: pytest.MonkeyPatch) -> None:
    async def settle(tx: Transaction, moved: object) -> None: ...

    patch.setattr(cancel, "settle", settle)


def count_one_child(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(families, "Counter", lambda parents: dict.fromkeys(parents, 1))


def forget_hints(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(database, "route_note", lambda routes: "")


FENCE = "{0}worker + 0 = :worker and {0}epoch = :epoch and {0}token = :token"
NO_FENCE = "0 < :worker + :epoch + :token"
LAPSED = "({0}lease_until <= holdfast.now_us() or {0}worker = any(:gone))"
ANY = "(true or {0}worker = any(:gone))"

BUGS: dict[str, Plant] = {
    "a completion is accepted under any token": instead("finish complete", ("l.token = value", "0 < value")),
    "a completion is accepted from any worker": instead("finish complete", ("l.worker = value", "0 < value")),
    "a park is accepted under any token": instead("park", (FENCE.format("l."), NO_FENCE), (FENCE.format(""), NO_FENCE)),
    "a step is stored under any token": instead("store_step", (FENCE.format(""), NO_FENCE)),
    "a lease that ran out is renewed": instead(
        "renew", ("l.lease_until > holdfast.now_us() - max(:leap_us, 0)", "true")
    ),
    "a renewal forgets the ceiling": instead(
        "renew", ("l.claimed_at + :ceiling_us", "holdfast.now_us() + :ceiling_us")
    ),
    "a rescue goes by id": instead(
        "expire", (LAPSED.format("l."), ANY.format("l.")), (LAPSED.format(""), ANY.format(""))
    ),
    "a rescue is not counted": instead("expire", ("rescues + 1", "rescues")),
    "the last rescue is one too late": instead("expire", ("l.rescues >= j.max_rescues", "l.rescues > j.max_rescues")),
    "a lost lease that is an attempt is not counted": instead("expire", ("l.attempts + l.counts", "l.attempts")),
    "a lost lease is not the last attempt": instead("expire", ("l.attempts + 1 >= j.max_attempts", "false")),
    "a cancelled child is not counted off": forget_parents,
    "children that end together are counted once": count_one_child,
    "a park does not look for signals": instead("park", ("s.channel = :channel", "false")),
    "a signal wakes jobs on any channel": instead(
        "signal", ("g.channel = :channel", ":channel <> ''"), ("where channel = :channel", "where :channel <> ''")
    ),
    "a claim repeats the token": instead("claim claim_one", ("p.token + 1", "1")),
    "a claim forgets the epoch": instead("claim claim_one", ("(select c.epoch from holdfast.cluster c)", "1")),
    "a claim leaves the job where others can claim it": instead(
        "claim claim_one", ("delete from holdfast.ready where ", "delete from holdfast.ready where false and ")
    ),
    "a cancel ends a job under its old token": instead("cancel", ("t.token + 1", "t.token")),
    "a cancel leaves the job where it can be claimed": instead(
        "cancel", ("delete from holdfast.ready where ", "delete from holdfast.ready where false and ")
    ),
    "a job that is to be retried is put nowhere": instead("complete", ("= 'scheduled'", "= 'nowhere'")),
    "a frozen leader acts on": instead("hold_duty", ("and held_until > holdfast.now_us()", "")),
    "a duty is renewed after its term": instead("renew_duty", ("and held_until > holdfast.now_us()", "")),
    "a term is used twice": instead("acquire_duty", ("duty.term + 1", "duty.term")),
    "waking ignores the time": instead("wake", ("k.due_at <= holdfast.now_us()", "true")),
    "a rescued job is not hinted": forget_hints,
}


BROKER_BUGS: dict[str, Plant] = {
    "a lease that ran out is renewed for its broker": instead(
        "renew_each", ("k.lease_until > holdfast.now_us() - greatest(cast(:leap_us as bigint), 0)", "true")
    ),
    "a holder that drains takes a job": instead("take_for", ("and w.status = 'active'", "")),
}


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    """What is planted must neither come too late for statements rendered before nor stay for those after."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_lockstep, "ROUND", settings(test_lockstep.ROUND, phases=[Phase.generate], print_blob=False))
        sql.catalogue.cache_clear()
        yield patch
    sql.catalogue.cache_clear()


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    BUGS[bug](patch)
    with staged(tmp_path) as stage, pytest.raises((AssertionError, apsw.ConstraintError)):
        play(stage, examples=180)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", BROKER_BUGS)
def test_a_planted_bug_of_brokers_is_found(bug: str, tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    BROKER_BUGS[bug](patch)
    with staged(tmp_path) as stage, pytest.raises((AssertionError, apsw.ConstraintError)):
        play(stage, examples=180, kind=LockstepWithBrokers)
