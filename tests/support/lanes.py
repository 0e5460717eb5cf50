"""Lanes as a test wants them."""

from __future__ import annotations

from tests.support.stores import Store

_ROW = "seq, route, slot, token, priority, attempts, rescues, cost, deadline_at, lane, tenant"


async def block(store: Store, lane: str) -> None:
    """Let a lane block what is claimable in it, though nobody is to look at it."""
    await store.query(
        f"insert into holdfast.later ({_ROW}, state) select {_ROW}, 'blocked' from holdfast.ready "
        f"where lane = '{lane}' returning seq"
    )
    await store.query(f"delete from holdfast.ready where lane = '{lane}' returning seq")
