"""Layout: what every page has around it. Who looks, where they may go, what they may press."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode

from starlette.requests import HTTPConnection, Request

from holdfast.app import core_of
from holdfast.errors import VERSION, HoldfastError
from holdfast.http.api.seen import PrincipalScope
from holdfast.http.security.checks import RequestDenied
from holdfast.http.security.gate import Gate
from holdfast.http.security.roles import TABLE
from holdfast.values import moment

# Actions of the palette: what one can do from every page, by its name. Each leads to the page that asks first.


@dataclass(frozen=True, slots=True)
class PaletteAction:
    """`opens` is the dialog that the page then shows; `rule` the route of the API that the action is."""

    name: str
    path: str
    icon: str
    rule: str
    query: Mapping[str, str] = field(default_factory=dict)
    opens: str = ""


ACTIONS = (
    PaletteAction("Why is something not run?", "/why", "search", "GET /runs/{id}/why"),
    PaletteAction("Which tool fails?", "/calls", "triangle-alert", "GET /calls"),
    PaletteAction("New session", "/sessions", "send", "POST /sessions", opens="#new-session"),
    PaletteAction("Retry all failed runs…", "/runs/retry", "rotate-cw", "POST /runs/retry", {"state": "failed"}),
    PaletteAction("Cancel all waiting runs…", "/runs/cancel", "circle-x", "POST /runs/cancel", {"state": "pending"}),
    PaletteAction("Retry all failed jobs…", "/jobs/retry", "rotate-cw", "POST /jobs/retry", {"state": "failed"}),
    PaletteAction("Set a budget", "/money", "coins", "PUT /budgets", opens="#budget"),
    PaletteAction("Download what was spent", "/money.csv", "download", "GET /usage"),
)


# Links: the only place where an address of a page is written. Each begins where the app is mounted.


def links_of(connection: HTTPConnection) -> Links:
    return Links(str(connection.scope.get("root_path", "")))


class Links:
    """`url("/runs", id, "cancel", state="failed")` → `/ops/runs/…/cancel?state=failed`."""

    def __init__(self, mount: str) -> None:
        self.mount = "/" + mount.strip("/") if mount.strip("/") else ""
        self.root = quote(self.mount)

    def __call__(self, path: str, *parts: object, **query: Any) -> str:
        """An address below the mount. Parts are quoted; what is None is left out of the query."""
        place = "/".join([path.rstrip("/"), *(quote(str(each), safe="") for each in parts)])
        return self.root + (place or "/") + asked(query)

    def place_of(self, connection: HTTPConnection) -> str:
        """What is asked for, below the mount: a proxy may have stripped the mount, or kept it."""
        path = str(connection.scope["path"])
        return path.removeprefix(self.mount) or "/" if path == self.mount or path.startswith(f"{self.mount}/") else path


def is_below(place: str) -> bool:
    """Whether an address that came from outside is one below the mount, and leads to nowhere else."""
    if not place.startswith("/") or place.startswith(("//", "/\\")) or any(ord(each) <= 32 for each in place):
        return False
    return not {".", ".."} & set(unquote(place.partition("?")[0]).split("/"))


def asked(query: Mapping[str, Any]) -> str:
    """A query, with its question mark; nothing without one."""
    given = {name: value for name, value in query.items() if value not in (None, "", [], ())}
    return "?" + urlencode(given, doseq=True) if given else ""


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
    seen: PrincipalScope = request.state.seen
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


def _may(gate: Gate, seen: PrincipalScope) -> Callable[[str], bool]:
    """Whether who looks may do what a route of the API does: `may("POST /runs/{id}/cancel")`."""

    def may(name: str) -> bool:
        if not name.startswith("GET ") and gate.options.read_only:
            return False
        try:
            gate.check(seen.principal, TABLE.get(name))
        except RequestDenied:
            return False
        return True

    return may


async def _open_inquiries(seen: PrincipalScope) -> int:
    try:
        if not seen.pinned:
            return min(await seen.inquiries.count(), _MANY)
        found = await seen.inquiries.list(limit=_MANY)
    except HoldfastError:
        return 0  # the page says what is wrong
    return len(await seen.shown(found, lambda each: each.session_id))


def _is_at(below: str, path: str) -> bool:
    return below == path or (path != "/" and below.startswith(f"{path}/"))
