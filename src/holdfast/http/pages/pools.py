"""Pools as pages: how many workers each has and should have, and why it cannot start them."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.http.api.paging import Paged
from holdfast.http.api.seen import Sight
from holdfast.http.api.tools import list_pools, show_pool
from holdfast.http.pages.filters import Tab
from holdfast.http.pages.routes import Pages
from holdfast.pools.stats import PoolStats
from holdfast.values import Page

pages = Pages()

TABS = (Tab("", "Kept"), Tab("true", "Kept and past"))


@dataclass(frozen=True, slots=True)
class PoolsView:
    pools: Page[PoolStats]
    tab_items: tuple[Tab, ...]
    all: str


@dataclass(frozen=True, slots=True)
class PoolView:
    pool: PoolStats


@pages.page("/pools", "pools.html")
async def show_pools(seen: Sight, page: Paged, all: bool = False) -> PoolsView:
    return PoolsView(await list_pools(seen, page, all=all), TABS, "true" if all else "")


@pages.page("/pools/{name}", "pool.html")
async def show_one_pool(seen: Sight, name: str) -> PoolView:
    return PoolView(await show_pool(seen, name))
