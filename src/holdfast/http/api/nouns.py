"""Every noun of the API. A new noun is a module, and a line here."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.http.api import (
    agents,
    calls,
    fleet,
    inquiries,
    jobs,
    machines,
    money,
    plans,
    runs,
    sessions,
    streams,
    system,
    tools,
    triggers,
)
from holdfast.http.api.routes import Routes
from holdfast.http.gateway import routes as gateway

NOUNS: Sequence[Routes] = (
    runs.routes,
    sessions.routes,
    agents.routes,
    jobs.routes,
    inquiries.routes,
    calls.routes,
    tools.tools,
    machines.machines,
    machines.routes,
    triggers.routes,
    plans.plans,
    plans.actions,
    tools.pools,
    fleet.queues,
    fleet.lanes,
    fleet.workers,
    fleet.schedules,
    fleet.batches,
    fleet.scale,
    money.usage,
    money.budgets,
    tools.tenants,
    system.routes,
    streams.routes,
    gateway.routes,
)
