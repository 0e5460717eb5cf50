"""Audit and settings as pages: who changed what, how it is set, whether it is well, who may come in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.access.audit import AuditRecord
from holdfast.access.tokens import TokenRecord
from holdfast.http.api.paging import Paged, Paging
from holdfast.http.api.seen import Sight
from holdfast.http.api.system import list_audit, list_settings, list_tokens, show_system
from holdfast.http.pages.routes import Pages
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
async def show_audit(seen: Sight, page: Paged) -> AuditView:
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
async def show_settings(seen: Sight) -> SettingsView:
    return SettingsView(
        await list_settings(seen),
        await list_tokens(seen, Paging(None, 200)),
        await show_system(seen),
    )
