"""Audit and settings as pages: who changed what, how it is set, whether it is well, who may come in."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.access.audit import AuditRecord
from holdfast.access.tokens import TokenRecord
from holdfast.errors import HoldfastError, NotFound
from holdfast.http.api.routes import Paged, Paging
from holdfast.http.api.seen import PrincipalScope, RequestScope
from holdfast.http.api.system import list_audit, list_settings, list_tokens, search, show_system
from holdfast.http.pages.routes import Pages
from holdfast.kernel.ids import is_id
from holdfast.values import Page

pages = Pages()


@dataclass(frozen=True, slots=True)
class AuditedChange:
    """A change that was made: what was asked for, and what came of it.

    `status` is that of an answer of the web, `error` the class of what a command or a program met; `ended`: one of them
    is known.
    """

    seq: int
    record: AuditRecord
    status: int | None
    error: str
    ended: bool


@dataclass(frozen=True, slots=True)
class AuditView:
    changes: Sequence[AuditedChange]
    found: Page[AuditRecord]


@dataclass(frozen=True, slots=True)
class SettingsView:
    settings: Sequence[dict[str, Any]]
    tokens: Page[TokenRecord]
    system: dict[str, Any]


@pages.page("/audit", "audit.html", like="GET /system/audit")
async def show_audit(seen: RequestScope, page: Paged) -> AuditView:
    found = await list_audit(seen, page)
    return AuditView(_changes(found), found)


def _changes(rows: Sequence[AuditRecord]) -> list[AuditedChange]:
    """Each intent with its outcome in one line; the outcome stands above it, because the newest comes first."""
    outcomes = {each.about: each for each in rows if each.phase == "outcome"}
    known = {each.seq for each in rows}
    shown = [each for each in rows if each.phase != "outcome" or each.about not in known]
    return [_change(each, outcomes.get(each.seq, each)) for each in shown]


def _change(row: AuditRecord, outcome: AuditRecord) -> AuditedChange:
    error = str(outcome.detail.get("error", "")) if isinstance(outcome.detail, dict) else ""
    return AuditedChange(row.seq, row, outcome.status, error, outcome.phase != "intent")


@pages.page("/settings", "settings.html", like="GET /system/settings")
async def show_settings(seen: RequestScope) -> SettingsView:
    return SettingsView(
        await list_settings(seen),
        await list_tokens(seen, Paging(None, 200)),
        await show_system(seen),
    )


# The palette: what begins like a few letters or is an id, as a list that the search field shows.


_EACH = 5  # of each noun
_SHORTEST, _LONGEST = 2, 255


class FoundKind(NamedTuple):
    """Where what was found is shown: the path before its id, or the one page that has it, and which icon it has."""

    path: str
    icon: str
    within: str = ""  # before the id in the page that shows all of them


NOUNS = {
    "run": FoundKind("/runs", "play"),
    "session": FoundKind("/sessions", "messages-square"),
    "call": FoundKind("/calls", "wrench"),
    "inquiry": FoundKind("/inbox", "inbox", "#q-"),
    "agent": FoundKind("/agents", "bot"),
    "job": FoundKind("/jobs", "list-checks"),
    "queue": FoundKind("/queues", "layers"),
    "worker": FoundKind("/workers", "cpu"),
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
async def find(seen: RequestScope, q: str = "") -> FoundView:
    wanted = q.strip()[:_LONGEST]
    if len(wanted) < _SHORTEST:
        return FoundView([], "", "")
    hits = await (_within_pinned(seen, wanted) if seen.pinned else _everywhere(seen, wanted))
    waiting = next((each.key for each in hits if each.kind in ("run", "job")), "")
    return FoundView(hits, wanted, waiting if waiting == wanted.lower() else "")


async def _everywhere(seen: PrincipalScope, text: str) -> list[Hit]:
    found = await search(seen, text, _EACH)
    return [_hit(each["noun"], each["id"], each["name"]) for each in found if each["noun"] in NOUNS]


async def _within_pinned(seen: PrincipalScope, text: str) -> list[Hit]:
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
