"""Workers as pages: who works, who is silent, what each can do and holds, and asking one to leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from holdfast.http.api.fleet import drain_worker, list_duties, list_held_jobs, list_workers, show_worker
from holdfast.http.api.routes import Paged
from holdfast.http.api.seen import RequestScope
from holdfast.http.api.tools import list_pools, show_pool
from holdfast.http.pages.filters import Tab
from holdfast.http.pages.routes import Pages, Redirect
from holdfast.kernel.states import ALIVE
from holdfast.pools.stats import PoolStats
from holdfast.values import Page
from holdfast.values.jobs import JobChange
from holdfast.values.workers import DutyRecord, WorkerRecord

pages = Pages()

TABS = (Tab("", "Live"), Tab("true", "Live and past"))


@dataclass(frozen=True, slots=True)
class WorkersView:
    """`processes` are workers of ours, `clients` those behind the Redis protocol.

    `duties` are by the number of the worker that holds them.
    """

    workers: Page[WorkerRecord]
    processes: Sequence[WorkerRecord]
    clients: Sequence[WorkerRecord]
    duties: dict[int, list[str]]
    tab_items: tuple[Tab, ...]
    all: str
    slots: int
    active: int


@dataclass(frozen=True, slots=True)
class WorkerView:
    worker: WorkerRecord
    duties: Sequence[DutyRecord]
    held: Sequence[JobChange]
    silent: timedelta


@pages.page("/workers", "workers.html")
async def show_workers(seen: RequestScope, page: Paged, all: bool = False) -> WorkersView:
    found = await list_workers(seen, page, all=all)
    duties: dict[int, list[str]] = {}
    for duty in await list_duties(seen):
        duties.setdefault(duty.holder, []).append(duty.name)
    live = [each for each in found if each.status in ALIVE and not each.silent]
    totals = sum(each.slots for each in live), sum(each.active for each in live)
    processes = [each for each in found if not each.remote]
    clients = [each for each in found if each.remote]
    return WorkersView(found, processes, clients, duties, TABS, "true" if all else "", *totals)


@pages.page("/workers/{id}", "worker.html")
async def show_one_worker(seen: RequestScope, id: str) -> WorkerView:
    worker = await show_worker(seen, id)
    duties = [each for each in await list_duties(seen) if each.holder == worker.seq]
    return WorkerView(worker, duties, await list_held_jobs(seen, id), worker.now - worker.heartbeat_at)


@pages.action("/workers/{id}/drain")
async def drain_one_worker(seen: RequestScope, id: str) -> Redirect:
    await drain_worker(seen, id)
    return Redirect("/workers", id)


# Pools as pages: how many workers each has and should have, and why it cannot start them.


_POOL_TABS = (Tab("", "Kept"), Tab("true", "Kept and past"))


@dataclass(frozen=True, slots=True)
class PoolsView:
    pools: Page[PoolStats]
    tab_items: tuple[Tab, ...]
    all: str


@dataclass(frozen=True, slots=True)
class PoolView:
    pool: PoolStats


@pages.page("/pools", "pools.html")
async def show_pools(seen: RequestScope, page: Paged, all: bool = False) -> PoolsView:
    return PoolsView(await list_pools(seen, page, all=all), _POOL_TABS, "true" if all else "")


@pages.page("/pools/{name}", "pool.html")
async def show_one_pool(seen: RequestScope, name: str) -> PoolView:
    return PoolView(await show_pool(seen, name))
