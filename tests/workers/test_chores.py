"""Chores of layers above: done now and then by whoever holds the clean-up, and again while they leave something."""

from __future__ import annotations

from holdfast.kernel.database import Transaction
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
