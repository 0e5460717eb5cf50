"""Triggers as a page: what starts machines, when next, and how it went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.http.api.seen import Sight
from holdfast.http.api.triggers import list_triggers
from holdfast.http.pages.routes import Pages
from holdfast.machines.triggers import TriggerRecord

pages = Pages()


@dataclass(frozen=True, slots=True)
class TriggersView:
    triggers: Sequence[TriggerRecord]


@pages.page("/triggers", "triggers.html")
async def show_triggers(seen: Sight) -> TriggersView:
    return TriggersView(await list_triggers(seen))
