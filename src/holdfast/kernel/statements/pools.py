"""The statements of `pools.sql`, as Python sees them."""

from __future__ import annotations

from holdfast.kernel.pool_rows import LoadRow, PastWorker, PlaceRow, PlaceStanding, PoolRow
from holdfast.kernel.rows import Seq
from holdfast.kernel.sql import Exec, Many, One, Statements


class PoolsSql(Statements, file="pools.sql"):
    put_pool: Exec
    list_pools: Many[PoolRow]
    past_of_pool: Many[PastWorker]
    open_places: Many[PlaceRow]
    occupy: One[Seq]
    give_place_up: One[PlaceRow]
    standing_of_places: Many[PlaceStanding]
    retire_worker: One[PlaceRow]
    load: One[LoadRow]
