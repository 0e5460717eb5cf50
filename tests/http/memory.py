"""What an open page costs: the memory of its scripts, its nodes and listeners, and the server's connections."""

from __future__ import annotations

from typing import NamedTuple

from playwright.sync_api import CDPSession, Page

from tests.http.site import Site


class Footprint(NamedTuple):
    """What is left after the browser has collected its garbage."""

    heap: int  # bytes
    nodes: int
    listeners: int
    documents: int
    connections: int

    def __str__(self) -> str:
        return (
            f"{self.heap / 1e6:7.2f} MB {self.nodes:7} nodes {self.listeners:6} listeners "
            f"{self.documents:3} documents {self.connections:3} connections"
        )


class Scale:
    """Weighs one page."""

    def __init__(self, site: Site, page: Page) -> None:
        self._site = site
        self._session: CDPSession = page.context.new_cdp_session(page)
        self._session.send("Performance.enable")

    def weigh(self) -> Footprint:
        for _ in range(2):  # what the first leaves to be finalized, the second takes
            self._session.send("HeapProfiler.collectGarbage")
        told = {each["name"]: int(each["value"]) for each in self._session.send("Performance.getMetrics")["metrics"]}
        return Footprint(
            told["JSHeapUsedSize"], told["Nodes"], told["JSEventListeners"], told["Documents"], self._site.connections
        )


def grown(before: Footprint, after: Footprint) -> list[str]:
    """What has grown more than noise does: a tenth of the memory, or a few of the rest."""
    limits = {"heap": before.heap // 10 + 300_000, "nodes": 100, "listeners": 30, "documents": 4, "connections": 1}
    return [
        f"{name}: {getattr(before, name):,} → {getattr(after, name):,}"
        for name, most in limits.items()
        if getattr(after, name) - getattr(before, name) > most
    ]
