"""Every subject that has pages. A new one is a module, and a line here."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.http.pages import (
    administration,
    agents,
    batches,
    chat,
    failures,
    inbox,
    jobs,
    machines,
    money,
    now,
    plans,
    pools,
    queues,
    run,
    runs,
    schedules,
    search,
    sessions,
    tools,
    triggers,
    workers,
)
from holdfast.http.pages.routes import Pages

PAGES: Sequence[Pages] = (
    now.pages,
    inbox.pages,
    runs.pages,
    run.pages,
    jobs.pages,
    failures.pages,
    sessions.pages,
    chat.pages,
    agents.pages,
    tools.pages,
    queues.pages,
    workers.pages,
    schedules.pages,
    batches.pages,
    pools.pages,
    machines.pages,
    triggers.pages,
    plans.pages,
    money.pages,
    administration.pages,
    search.pages,
)
