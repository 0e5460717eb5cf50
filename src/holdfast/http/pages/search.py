"""The palette: what begins like a few letters or is an id, as a list that the search field shows."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.errors import HoldfastError, NotFound
from holdfast.http.api.seen import Seen, Sight
from holdfast.http.api.system import search
from holdfast.http.pages.routes import Pages
from holdfast.kernel.ids import is_id

pages = Pages()

_EACH = 5  # of each noun
_SHORTEST, _LONGEST = 2, 255


class Noun(NamedTuple):
    """Where what was found is shown: the path before its id, or the one page that has it, and which icon it has."""

    path: str
    icon: str
    within: str = ""  # before the id in the page that shows all of them


NOUNS = {
    "run": Noun("/runs", "play"),
    "session": Noun("/sessions", "messages-square"),
    "call": Noun("/calls", "wrench"),
    "inquiry": Noun("/inbox", "inbox", "#q-"),
    "agent": Noun("/agents", "bot"),
    "job": Noun("/jobs", "list-checks"),
    "queue": Noun("/queues", "layers"),
    "worker": Noun("/workers", "cpu"),
}


@dataclass(frozen=True, slots=True)
class Hit:
    """What was found: its noun, its name, and where it is."""

    kind: str
    name: str
    key: str
    path: str
    icon: str
    within: str


@dataclass(frozen=True, slots=True)
class FoundView:
    """`waiting` is the id of a run or a job that one may ask about: why does it wait?"""

    hits: list[Hit]
    wanted: str
    waiting: str


@pages.page("/find", "found.html", like="GET /system")
async def find(seen: Sight, q: str = "") -> FoundView:
    wanted = q.strip()[:_LONGEST]
    if len(wanted) < _SHORTEST:
        return FoundView([], "", "")
    hits = await (_within_pinned(seen, wanted) if seen.pinned else _everywhere(seen, wanted))
    waiting = next((each.key for each in hits if each.kind in ("run", "job")), "")
    return FoundView(hits, wanted, waiting if waiting == wanted.lower() else "")


async def _everywhere(seen: Seen, text: str) -> list[Hit]:
    found = await search(seen, text, _EACH)
    return [_hit(each["noun"], each["id"], each["name"]) for each in found if each["noun"] in NOUNS]


async def _within_pinned(seen: Seen, text: str) -> list[Hit]:
    """Who sees some sessions alone finds a run or a session by its whole id or key."""
    hits = []
    if is_id(text):
        with contextlib.suppress(NotFound):
            hits.append(_hit("run", (await seen.run(text)).id, ""))
    with contextlib.suppress(HoldfastError):
        session = await seen.find_session(text)
        hits.append(_hit("session", session.id, session.key or ""))
    return hits


def _hit(noun: str, id: str, name: str) -> Hit:
    where = NOUNS[noun]
    return Hit(noun, name or id, id, where.path, where.icon, where.within)
