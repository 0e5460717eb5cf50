"""A signal that is sent again is one signal."""

from __future__ import annotations

import pytest

from holdfast.errors import SignalConflict
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


async def test_another_payload_under_the_id_of_a_signal_is_refused_before_and_after_it_is_taken(store: Store) -> None:
    """Who denies what somebody has approved under the same key must hear that it was not taken."""
    lease, id = await store.claimed(), new_id(store.ports)
    await store.do(signal, id, "approval", '{"by":"Ann","ok":true}')
    with pytest.raises(SignalConflict, match=r"'approval'.*says something else"):
        await store.do(signal, id, "approval", '{"by":"Ben","ok":false}')
    assert (await store.do(take_signal, lease, "approval", "first")).payload == '{"by":"Ann","ok":true}'
    with pytest.raises(SignalConflict):
        await store.do(signal, id, "approval", '{"by":"Ben","ok":false}')
    assert (await store.do(take_signal, lease, "approval", "second")).payload is None
