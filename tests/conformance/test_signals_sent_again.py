"""A signal that is sent again is one signal."""

from __future__ import annotations

from holdfast.kernel.ids import new_id
from holdfast.kernel.waiting import signal, take_signal
from tests.support.stores import Store


async def test_a_signal_sent_again_after_it_was_taken_is_not_delivered_twice(store: Store) -> None:
    """P3: the sender's answer was lost, the signal was taken at once, and the repeat put it there a second time."""
    lease = await store.claimed()
    sent = (new_id(store.ports), "approval", '"yes"')
    await store.do(signal, *sent)
    assert (await store.do(take_signal, lease, "approval", "first")).payload == '"yes"'

    await store.do(signal, *sent)

    assert (await store.do(take_signal, lease, "approval", "second")).payload is None
