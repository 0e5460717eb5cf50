"""The palette: what fits a few letters or an id, as a list that the search field shows."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from holdfast.errors import HoldfastError, NotFound
from holdfast.http.api.jobs import show_job
from holdfast.http.api.seen import Seen, Sight
from holdfast.http.pages.routes import Pages
from holdfast.kernel.ids import is_id

pages = Pages()


@dataclass(frozen=True, slots=True)
class Hit:
    """What was found: its kind, its name, and where it is."""

    kind: str
    name: str
    path: str
    key: str
    icon: str


@dataclass(frozen=True, slots=True)
class FoundView:
    hits: list[Hit]
    wanted: str


@pages.page("/find", "found.html", like="GET /system")
async def find(seen: Sight, q: str = "") -> FoundView:
    wanted = q.strip()
    if not wanted:
        return FoundView([], "")
    return FoundView(await (_by_id(seen, wanted) if is_id(wanted) else _by_name(seen, wanted)), wanted)


async def _by_id(seen: Seen, id: str) -> list[Hit]:
    hits = []
    for kind, path, icon in (("run", "/runs", "play"), ("session", "/sessions", "messages-square")):
        try:
            await (seen.run(id) if kind == "run" else seen.find_session(id))
            hits.append(Hit(kind, id, path, id, icon))
        except NotFound:
            continue
    if not seen.pinned:
        with contextlib.suppress(NotFound):
            hits.append(Hit("job", (await show_job(seen, id)).kind, "/jobs", id, "list-checks"))
    return hits


async def _by_name(seen: Seen, name: str) -> list[Hit]:
    """Agents by the beginning of their name, a session by its key."""
    agents = [each for each in await seen.agents.list(limit=1_000) if name.lower() in each.name.lower()]
    hits = [Hit("agent", each.name, "/agents", each.id, "bot") for each in agents[:8]]
    with contextlib.suppress(HoldfastError):
        hits.append(Hit("session", name, "/sessions", (await seen.find_session(name)).id, "messages-square"))
    return hits
