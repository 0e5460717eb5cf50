"""Layout: what every page has around it. Who looks, where they may go, what they may press."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from starlette.requests import Request

from holdfast.app import core_of
from holdfast.distribution import VERSION
from holdfast.errors import HoldfastError
from holdfast.http.api.seen import Seen
from holdfast.http.pages.links import links_of
from holdfast.http.pages.palette_actions import ACTIONS, PaletteAction
from holdfast.http.security.denials import Denied
from holdfast.http.security.gate import Gate
from holdfast.http.security.roles import TABLE
from holdfast.values.times import moment

_MANY = 100


class NavigationEntry(NamedTuple):
    """An entry of the navigation: `key` is pressed after g."""

    path: str
    name: str
    icon: str
    key: str
    rule: str


PLACES = (
    NavigationEntry("/", "Now", "activity", "n", "GET /system"),
    NavigationEntry("/inbox", "Inbox", "inbox", "i", "GET /inquiries"),
    NavigationEntry("/runs", "Runs", "play", "r", "GET /runs"),
    NavigationEntry("/sessions", "Sessions", "messages-square", "s", "GET /sessions"),
    NavigationEntry("/agents", "Agents", "bot", "a", "GET /agents"),
    NavigationEntry("/tools", "Tools", "wrench", "t", "GET /tools"),
    NavigationEntry("/jobs", "Jobs", "list-checks", "j", "GET /jobs"),
    NavigationEntry("/queues", "Queues", "layers", "q", "GET /queues"),
    NavigationEntry("/workers", "Workers", "cpu", "w", "GET /workers"),
    NavigationEntry("/schedules", "Schedules", "calendar-clock", "c", "GET /schedules"),
    NavigationEntry("/batches", "Batches", "package", "b", "GET /batches"),
    NavigationEntry("/pools", "Pools", "boxes", "p", "GET /pools"),
    NavigationEntry("/machines", "Machines", "workflow", "m", "GET /executions"),
    NavigationEntry("/triggers", "Triggers", "send", "o", "GET /triggers"),
    NavigationEntry("/plans", "Plans", "clipboard-list", "l", "GET /plans"),
    NavigationEntry("/money", "Money", "coins", "d", "GET /usage"),
    NavigationEntry("/audit", "Audit", "scroll-text", "u", "GET /system/audit"),
    NavigationEntry("/settings", "Settings", "settings", "e", "GET /system/settings"),
)


@dataclass(frozen=True, slots=True)
class PageLayout:
    """What the base template shows. `inbox` counts what waits for a person, up to a hundred."""

    places: tuple[NavigationEntry, ...]
    actions: tuple[PaletteAction, ...]
    current: str
    you: str
    role: str
    tenant: str | None
    read_only: bool
    inbox: int
    version: str = VERSION


async def values_for(request: Request, gate: Gate, served: frozenset[str]) -> dict[str, Any]:
    """What a template is given besides its view. `served` are the paths that have a page."""
    seen: Seen = request.state.seen
    below = links_of(request).place_of(request)
    may = _may(gate, seen)
    shown = tuple(each for each in PLACES if each.path in served and may(each.rule))
    current = max((each.path for each in shown if _is_at(below, each.path)), key=len, default="")
    layout = PageLayout(
        places=shown,
        actions=tuple(each for each in ACTIONS if may(each.rule)),
        current=current,
        you=seen.principal.name,
        role=seen.principal.role,
        tenant=seen.tenant,
        read_only=gate.options.read_only,
        inbox=await _open_inquiries(seen) if may("GET /inquiries") else 0,
    )
    return {**bare_values(request, gate), "layout": layout, "may": may, "asked": dict(request.query_params)}


def bare_values(request: Request, gate: Gate) -> dict[str, Any]:
    """What a page needs that nobody is logged in to."""
    now = moment(core_of(gate.hf).ports.clock.wall_us())
    doomed = gate.options.doomed
    return {
        "url": links_of(request),
        "now": now,
        "version": VERSION,
        "doomed": frozenset(() if doomed is None else doomed.pids()),
    }


def _may(gate: Gate, seen: Seen) -> Callable[[str], bool]:
    """Whether who looks may do what a route of the API does: `may("POST /runs/{id}/cancel")`."""

    def may(name: str) -> bool:
        if not name.startswith("GET ") and gate.options.read_only:
            return False
        try:
            gate.check(seen.principal, TABLE.get(name))
        except Denied:
            return False
        return True

    return may


async def _open_inquiries(seen: Seen) -> int:
    try:
        if not seen.pinned:
            return min(await seen.inquiries.count(), _MANY)
        found = await seen.inquiries.list(limit=_MANY)
    except HoldfastError:
        return 0  # the page says what is wrong
    return len(await seen.shown(found, lambda each: each.session_id))


def _is_at(below: str, path: str) -> bool:
    return below == path or (path != "/" and below.startswith(f"{path}/"))
