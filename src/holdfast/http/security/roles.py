"""Who may do what: one table of route and method. What is not in it is denied.

A route is `fleet` if it shows or changes what belongs to no single tenant; for a principal with a tenant it is not
there. An operator may do what a viewer may, an admin everything.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.access.principals import Role


class Rule(NamedTuple):
    role: Role
    fleet: bool = False
    scope: str = "api"
    sessions: bool = True  # False: of no session, so it is not there where metadata of sessions are pinned


_SEE = Rule("viewer")
_ACT = Rule("operator")
_SEE_ALL = Rule("viewer", sessions=False)
_ACT_ALL = Rule("operator", sessions=False)
_WRITE_ALL = Rule("admin", sessions=False)
_FLEET = Rule("viewer", fleet=True)
_RUN_FLEET = Rule("operator", fleet=True)
_ADMIN = Rule("admin", fleet=True)

METRICS = Rule("viewer", fleet=True, scope="metrics")
TABLE: dict[str, Rule] = {
    "GET /runs": _SEE,
    "POST /runs": _ACT,
    "POST /runs/retry": _ACT,
    "POST /runs/cancel": _ACT,
    "GET /runs/compare": _SEE,
    "GET /runs/{id}": _SEE,
    "GET /runs/{id}/result": _SEE,
    "GET /runs/{id}/tree": _SEE,
    "GET /runs/{id}/turns": _SEE,
    "GET /runs/{id}/calls": _SEE,
    "GET /runs/{id}/children": _SEE,
    "GET /runs/{id}/inquiries": _SEE,
    "GET /runs/{id}/messages": _SEE,
    "GET /runs/{id}/events": _SEE,
    "GET /runs/{id}/stream": _SEE,
    "GET /runs/{id}/usage": _SEE,
    "GET /runs/{id}/why": _SEE,
    "GET /runs/{id}/waterfall": _SEE,
    "GET /runs/{id}/export": _ACT,
    "POST /runs/{id}/cancel": _ACT,
    "POST /runs/{id}/interrupt": _ACT,
    "POST /runs/{id}/steer": _ACT,
    "POST /runs/{id}/fork": _ACT,
    "POST /runs/{id}/retry": _ACT,
    "GET /sessions": _SEE,
    "POST /sessions": _ACT,
    "GET /sessions/values": _SEE,
    "GET /sessions/{id}": _SEE,
    "PATCH /sessions/{id}": _ACT,
    "DELETE /sessions/{id}": _ACT,
    "GET /sessions/{id}/messages": _SEE,
    "GET /sessions/{id}/runs": _SEE,
    "GET /sessions/{id}/usage": _SEE,
    "GET /sessions/{id}/compactions": _SEE,
    "GET /sessions/{id}/stats": _SEE,
    "GET /sessions/{id}/stream": _SEE,
    "POST /sessions/{id}/send": _ACT,
    "POST /sessions/{id}/compact": _ACT,
    "POST /sessions/{id}/restore": _ACT,
    "POST /sessions/{id}/fork": _ACT,
    "POST /sessions/{id}/preserve": _ACT,
    "GET /agents": _SEE,
    "POST /agents": _WRITE_ALL,
    "GET /agents/{id}": _SEE,
    "PATCH /agents/{id}": _WRITE_ALL,
    "DELETE /agents/{id}": _WRITE_ALL,
    "GET /agents/{id}/versions": _SEE,
    "GET /jobs": _SEE_ALL,
    "POST /jobs/retry": _ACT_ALL,
    "POST /jobs/cancel": _ACT_ALL,
    "GET /jobs/{id}": _SEE_ALL,
    "GET /jobs/{id}/attempts": _SEE_ALL,
    "GET /jobs/{id}/why": _SEE_ALL,
    "POST /jobs/{id}/retry": _ACT_ALL,
    "POST /jobs/{id}/cancel": _ACT_ALL,
    "GET /inquiries": _SEE,
    "GET /inquiries/{id}": _SEE,
    "POST /inquiries/{id}/approve": _ACT,
    "POST /inquiries/{id}/deny": _ACT,
    "POST /inquiries/{id}/answer": _ACT,
    "GET /calls": _SEE_ALL,
    "GET /calls/{id}": _SEE,
    "GET /tools": _SEE,
    "GET /tools/{name}": _SEE,
    "GET /machines": _SEE,
    "GET /triggers": _FLEET,
    "GET /executions": _SEE_ALL,
    "POST /executions": _ACT_ALL,
    "GET /executions/{id}": _SEE_ALL,
    "GET /executions/{id}/events": _SEE_ALL,
    "POST /executions/{id}/cancel": _ACT_ALL,
    "POST /executions/{id}/resume": _ACT_ALL,
    "GET /plans": _SEE_ALL,
    "POST /plans": _ACT_ALL,
    "GET /plans/{id}": _SEE_ALL,
    "DELETE /plans/{id}": _ACT_ALL,
    "GET /actions": _SEE_ALL,
    "POST /actions": _ACT_ALL,
    "GET /actions/{id}": _SEE_ALL,
    "GET /pools": _FLEET,
    "GET /pools/{name}": _FLEET,
    "GET /tenants": _ADMIN,
    "GET /tenants/{id}": _ADMIN,
    "GET /queues": _FLEET,
    "GET /queues/{name}": _FLEET,
    "POST /queues/{name}/pause": _RUN_FLEET,
    "POST /queues/{name}/resume": _RUN_FLEET,
    "GET /lanes": _FLEET,
    "GET /lanes/closed": _FLEET,
    "POST /lanes/{name}/open": _RUN_FLEET,
    "GET /workers": _FLEET,
    "GET /workers/duties": _FLEET,
    "GET /workers/{id}": _FLEET,
    "GET /workers/{id}/jobs": _FLEET,
    "POST /workers/{id}/drain": _RUN_FLEET,
    "GET /schedules": _FLEET,
    "GET /schedules/{name}": _FLEET,
    "POST /schedules/{name}/pause": _RUN_FLEET,
    "POST /schedules/{name}/resume": _RUN_FLEET,
    "POST /schedules/{name}/run": _RUN_FLEET,
    "DELETE /schedules/{name}": _ADMIN,
    "GET /batches": _FLEET,
    "GET /batches/{id}": _FLEET,
    "GET /batches/{id}/requests": _FLEET,
    "GET /usage": _SEE_ALL,
    "GET /budgets": _SEE_ALL,
    "PUT /budgets": _ADMIN,
    "DELETE /budgets/{id}": _ADMIN,
    "GET /system": _SEE,
    "GET /system/doctor": _FLEET,
    "GET /system/stats": _SEE_ALL,
    "GET /system/failures": _SEE_ALL,
    "GET /system/search": _SEE_ALL,
    "GET /system/settings": _ADMIN,
    "GET /system/audit": _ADMIN,
    "GET /system/tokens": _ADMIN,
    "POST /system/prune": _ADMIN,
    "GET /events": _FLEET,
    "GET /scale/{queue}": Rule("viewer", fleet=True, scope="scale"),
    "GET /gateway/api/v1/sessions": _SEE,
    "POST /gateway/api/v1/sessions": _ACT,
    "GET /gateway/api/v1/sessions/{id}": _SEE,
    "DELETE /gateway/api/v1/sessions/{id}": _ACT,
    "GET /gateway/api/v1/sessions/{id}/pending": _SEE,
    "POST /gateway/api/v1/sessions/{id}/resume": _ACT,
    "WS /gateway/api/v1/sessions/{id}/stream": _ACT,
    "GET /gateway/api/v1/runs/{id}": _SEE,
    "GET /gateway/api/v1/runs/{id}/attempts": _SEE,
}
