"""Each table of the schema: whose it is, what removes its old rows, what removes a tenant's, what exports them.

A statement is named by its package, file and name. Where there is none, a sentence says why. A new table needs
an entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import holdfast


class TableOwner(NamedTuple):
    """`pruned`, `erased` and `exported` are statements, or a reason that begins with "not"."""

    owner: str
    pruned: str
    erased: str
    exported: str = "not part of a run"


_STATE = "not for long: a job's end takes the row away"
_OWN = "not by age: its owner removes it"
_ONE = "not needed: a fixed number of rows"
SHARED = "not a tenant's"
_OPERATOR = "not erased: the operator revokes it"
_COUNTED = "not erased: what was used stays counted, without a name"
_WITH_SESSION = "agents/sessions:delete_session"
_JOB = "not exported: a run's job is made anew where it is replayed"
_NOT_ASKED = "not exported: it says nothing of what was asked or answered"


def _of_a_job(statement: str, exported: str = "not part of a run") -> TableOwner:
    return TableOwner("kernel", f"kernel/retention:{statement}", f"kernel/retention:{statement}", exported)


def _of_a_session(statement: str, exported: str, pruned: str | None = None) -> TableOwner:
    return TableOwner("agents", pruned or f"agents/{statement}", f"agents/{statement}", exported)


OWNERS: Final[Mapping[str, TableOwner]] = {
    # kernel
    "schema": TableOwner("kernel", _ONE, SHARED),
    "cluster": TableOwner("kernel", _ONE, SHARED),
    "duty": TableOwner("kernel", _ONE, SHARED),
    "queue": TableOwner("kernel", _OWN, SHARED),
    "pool": TableOwner("kernel", _OWN, SHARED),
    "route": TableOwner("kernel", "kernel/workers:prune_routes", SHARED),
    "worker": TableOwner("kernel", "kernel/workers:prune_workers", SHARED),
    "lane": TableOwner("kernel", "kernel/lanes:prune_lanes", "kernel/lanes:forget_empty"),
    "lane_note": TableOwner("kernel", "kernel/lanes:take_notes", "kernel/lanes:take_notes"),
    "route_note": TableOwner("kernel", "kernel/workers:drop_route_notes", SHARED),
    "schedule": TableOwner("kernel", _OWN, "kernel/schedules:delete_schedule"),
    "job": _of_a_job("prune", "agents/capsules:kept_jobs"),
    "ended": _of_a_job("prune_endings", _JOB),
    "attempt": _of_a_job("prune_attempts", _JOB),
    "step": _of_a_job("prune_steps", _JOB),
    "family": _of_a_job("prune_families", _JOB),
    "progress": _of_a_job("prune_progress", _JOB),
    "unique_key": _of_a_job("prune_unique_keys"),
    "idempotency": TableOwner("kernel", "kernel/retention:prune_keys", "agents/erasing:delete_keys"),
    "ready": TableOwner("kernel", _STATE, "kernel/cancel:cancel"),
    "later": TableOwner("kernel", _STATE, "kernel/cancel:cancel"),
    "lease": TableOwner("kernel", _STATE, "not by erasing: workers end what they run when its cancel is asked for"),
    "cancellation": TableOwner("kernel", _STATE, "kernel/cancel:close_cancellation"),
    "channel": TableOwner("kernel", "kernel/waiting:prune_channels", SHARED),
    "signal": TableOwner("kernel", "kernel/waiting:prune_signals", SHARED),
    "alias": TableOwner("kernel", "not pruned: a name is never given to other work", SHARED),
    "tally": TableOwner("kernel", "kernel/tally:forget_tallies", "kernel/tally:forget_empty_tallies"),
    "tally_time": TableOwner("kernel", "kernel/tally:forget_times", "kernel/tally:forget_empty_times"),
    "tally_mark": TableOwner("kernel", _ONE, SHARED),
    "failure_group": TableOwner("kernel", "kernel/tally:forget_failures", "kernel/tally:delete_failures_of"),
    # agents
    "agent": TableOwner("agents", _OWN, "agents/agents:delete_agent", "agents/capsules:kept_agents"),
    "agent_version": TableOwner("agents", _OWN, "agents/agents:delete_versions", "agents/capsules:kept_versions"),
    "tool": TableOwner("agents", _OWN, SHARED),
    "session": _of_a_session("sessions:delete_session", "agents/capsules:kept_session"),
    "session_total": TableOwner(
        "agents",
        "not by a statement: a trigger removes it with its session",
        "not by a statement: a trigger does",
        _NOT_ASKED,
    ),
    "run": _of_a_session("sessions:delete_runs", "agents/capsules:kept_runs"),
    "turn": _of_a_session("sessions:delete_turns", "agents/capsules:kept_turns", "agents/pruning:prune_turns"),
    "message": _of_a_session("sessions:delete_messages", "agents/capsules:kept_messages"),
    "block": _of_a_session("sessions:delete_blocks", "not by a statement of capsules: read with its message"),
    "blob": _of_a_session("sessions:delete_blobs", "not by a statement of capsules: read with its message"),
    "tool_call": _of_a_session("sessions:delete_calls", "agents/capsules:kept_calls"),
    "run_event": _of_a_session("sessions:delete_events", "agents/capsules:kept_events", "agents/pruning:prune_events"),
    "inquiry": _of_a_session(
        "sessions:delete_inquiries", "agents/capsules:kept_inquiries", "agents/pruning:prune_inquiries"
    ),
    "steer": _of_a_session("sessions:delete_steers", "agents/capsules:kept_steers", "agents/inbox:prune_steers"),
    "compaction": _of_a_session("compaction:delete_compactions", _NOT_ASKED),
    "batch": TableOwner("agents", "agents/batches:delete_batches", SHARED, _NOT_ASKED),
    "batch_request": _of_a_session("sessions:delete_batched", _NOT_ASKED, "agents/batches:delete_requests"),
    "reservation": _of_a_session("sessions:delete_session_reservations", _NOT_ASKED, "agents/budgets:settle"),
    "budget": TableOwner("agents", _OWN, "agents/sessions:delete_session_budgets", _NOT_ASKED),
    "budget_use": TableOwner("agents", "agents/budgets:prune_uses", "agents/sessions:delete_session_uses", _NOT_ASKED),
    "usage_total": TableOwner("agents", "not pruned: what was used stays counted", "agents/totals:delete_total"),
    "provider_lane": TableOwner("agents", "agents/provider_lanes:forget_lane", SHARED),
    "reader": TableOwner("agents", "agents/events:prune_readers", SHARED),
    "retention_mark": TableOwner("agents", _ONE, "agents/pruning:delete_marks"),
    "tenant_retention": TableOwner("agents", _OWN, "agents/pruning:delete_ages"),
    # access
    "token": TableOwner("access", _OWN, _OPERATOR),
    "login": TableOwner("access", "access/logins:prune_logins", _OPERATOR),
    "audit": TableOwner("access", "not pruned: a record that must stay whole", "not erased: who did what stays"),
    "audit_head": TableOwner("access", _ONE, SHARED),
    "request_key": TableOwner("access", "access/requests:prune_requests", "not erased: it goes by age"),
    # the gateway
    "resp_key": TableOwner("resp", _OWN, _OPERATOR),
    "plan": TableOwner("resp", _OWN, "resp/plans:erase_plans"),
    "action": TableOwner("resp", "resp/plans:remove_action", "resp/plans:erase_actions"),
    "plan_job": TableOwner("resp", "resp/plans:remove_action_jobs", "resp/plans:erase_jobs"),
    "resp_value": TableOwner("resp", "resp/keyspace:remove_value", "resp/keyspace:remove_value"),
    "resp_part": TableOwner("resp", "resp/keyspace:remove_parts", "resp/keyspace:remove_parts"),
}

# Whose rows still name a tenant that was erased.
KEEPS_A_NAME: Final = frozenset({"usage_total", "tally", "tally_time", "budget", "audit"})


def text_of(statement: str) -> str:
    """The SQL of `package/file:name`, in all of its forms."""
    place, _, name = statement.partition(":")
    package, _, file = place.partition("/")
    whole = (Path(holdfast.__file__).parent / package / "sql" / f"{file}.sql").read_text()
    return "".join(part for part in whole.split("-- name: ") if part.split(" ", 1)[0] == name)
