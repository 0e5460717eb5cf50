"""A cancel reaches whole families."""

from __future__ import annotations

from holdfast.kernel.cancel import cancel, cancel_family
from holdfast.kernel.complete import complete_and_settle
from holdfast.kernel.enqueue import enqueue_children
from holdfast.kernel.ids import JobId, derived_id
from holdfast.kernel.rows import Ending, Lease
from holdfast.kernel.states import State
from tests.support.stores import Store


async def launch(store: Store, parent: Lease) -> JobId:
    child = store.job(id=derived_id(parent.id, "child", 0))
    await store.do(enqueue_children, parent, [child], [])
    return child.id


async def test_a_cancel_reaches_the_children_of_a_child_that_had_ended(store: Store) -> None:
    """I17: the cancel went from parent to unfinished child only, and stopped where a child had ended."""
    worker = await store.worker()
    parent = await store.claimed(worker)
    await launch(store, parent)
    (child,) = await store.claim(worker)
    grandchild = await launch(store, child)
    succeeded = Ending(*child.held, "succeeded", State.SUCCEEDED, 0, 1, "1", None)
    await store.do(complete_and_settle, [succeeded], [parent.seq])

    await store.do(cancel, parent.id, reason="no longer wanted")
    while await store.do(cancel_family, limit=10):
        pass

    assert (await store.find(grandchild)).state == State.CANCELLED
