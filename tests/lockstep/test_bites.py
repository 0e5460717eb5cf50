"""Known bugs, planted one at a time: the machine must find each of them, or its silence proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from hypothesis import Phase, settings

from holdfast.kernel import cancel, families, sql
from holdfast.kernel.database import Transaction
from holdfast.kernel.sql import Source
from tests.lockstep import test_lockstep
from tests.lockstep.test_lockstep import play, staged

Plant = Callable[[pytest.MonkeyPatch], None]


def instead(statement: str, of: str, say: str) -> Plant:
    """Spell a statement of SQLite's in another way."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        genuine = sql.sources

        def sources(file: str, package: str = sql.__name__) -> tuple[Source, ...]:
            return tuple(respell(source) for source in genuine(file, package))

        def respell(source: Source) -> Source:
            if source.name != statement or source.dialect == "postgres":
                return source
            if of not in source.text:
                pytest.fail(f"{statement} no longer says {of!r}; plant the bug in its new words")
            return source._replace(text=source.text.replace(of, say))

        patch.setattr(sql, "sources", sources)

    return plant


def forget_parents(patch: pytest.MonkeyPatch) -> None:
    async def settle(tx: Transaction, moved: object) -> None: ...

    patch.setattr(cancel, "settle", settle)


def count_one_child(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(families, "Counter", lambda parents: dict.fromkeys(parents, 1))


def forget_hints(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(families, "route_note", lambda routes: "")


FENCE = "worker = :worker and epoch = :epoch and token = :token"
LAPSED = "(lease_until <= holdfast.now_us() or worker = any(cast(:gone as bigint[])))"

BUGS: dict[str, Plant] = {
    "a completion is accepted under any token": instead("complete", "j.token = ", "0 < "),
    "a completion is accepted from any worker": instead("complete", "j.worker = ", "0 < "),
    "a park is accepted under any token": instead("park", FENCE, "0 < :worker + :epoch + :token"),
    "a step is stored under any token": instead("store_step", FENCE, "0 < :worker + :epoch + :token"),
    "a lease that ran out is renewed": instead("renew", "j.lease_until > holdfast.now_us() - max(:leap_us, 0)", "true"),
    "a renewal forgets the ceiling": instead("renew", "j.claimed_at + :ceiling_us", "holdfast.now_us() + :ceiling_us"),
    "a rescue goes by id": instead("expire", LAPSED, "true"),
    "a rescue is not counted": instead("expire", "rescues = rescues + 1", "rescues = rescues"),
    "the last rescue is one too late": instead("expire", "j.rescues >= j.max_rescues", "j.rescues > j.max_rescues"),
    "a cancelled child is not counted off": forget_parents,
    "children that end together are counted once": count_one_child,
    "a park does not look for signals": instead("park", "s.channel = :channel", "false"),
    "a signal wakes jobs on any channel": instead("signal", "channel = :channel", ":channel <> ''"),
    "a claim repeats the token": instead("claim", "token + 1", "1"),
    "a claim forgets the epoch": instead("claim", "(select c.epoch from holdfast.cluster c)", "1"),
    "a cancel revives what has ended": instead("cancel", "and state in ('scheduled', 'pending', 'waiting')", ""),
    "a frozen leader acts on": instead("hold_duty", "and held_until > holdfast.now_us()", ""),
    "a duty is renewed after its term": instead("renew_duty", "and held_until > holdfast.now_us()", ""),
    "a term is used twice": instead("acquire_duty", "duty.term + 1", "duty.term"),
    "waking ignores the time": instead("wake", "due_at <= holdfast.now_us()", "true"),
    "a rescued job is not hinted": forget_hints,
}


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    """What is planted must neither come too late for statements rendered before nor stay for those after."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_lockstep, "ROUND", settings(test_lockstep.ROUND, phases=[Phase.generate], print_blob=False))
        sql.catalogue.cache_clear()
        yield patch
    sql.catalogue.cache_clear()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    BUGS[bug](patch)
    with staged(tmp_path) as stage, pytest.raises((AssertionError, apsw.ConstraintError)):
        play(stage, examples=180)
