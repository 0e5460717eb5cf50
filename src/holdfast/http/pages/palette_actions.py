"""Actions of the palette: what one can do from every page, by its name. Each leads to the page that asks first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
