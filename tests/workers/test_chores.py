"""Chores of layers above: done now and then by whoever holds the clean-up, and again while they leave something."""

from __future__ import annotations

from holdfast.kernel.database import Transaction, reading
from holdfast.settings import Settings
from holdfast.workers.duties import Duties
from holdfast.workers.layer import Chore
from tests.support.stores import Store


async def test_a_chore_that_has_left_something_is_done_again_at_once(store: Store) -> None:
    left = [True, True, False, True]
    done: list[int] = []

    async def clean(_tx: Transaction, _settings: Settings) -> bool:
        done.append(1)
        return left[len(done) - 1]

    duties = Duties(
        store.database, store.ports, store.settings, [Chore(lambda settings: settings.cleanup_interval, clean)]
    )
    worker = await store.worker()
    await duties.tend(worker)
    assert len(done) == 3
    await duties.tend(worker)
    assert len(done) == 3, "not before its time"


async def test_a_chore_that_is_not_due_begins_nothing(store: Store) -> None:
    due = [False, True]
    done: list[int] = []

    async def clean(_tx: Transaction, _settings: Settings) -> None:
        done.append(1)

    @reading
    async def is_due(_tx: Transaction, _settings: Settings) -> bool:
        return due.pop(0)

    chore = Chore(lambda settings: settings.sweep_interval, clean, is_due)
    duties = Duties(store.database, store.ports, store.settings, [chore])
    worker = await store.worker()
    await duties.tend(worker)
    assert not done
    await store.advance("1m")
    await duties.tend(worker)
    assert (len(done), due) == (1, [])
