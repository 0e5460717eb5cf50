"""The SQL file of capsules as Python sees it."""

from __future__ import annotations

from holdfast.agents.capsules.capsule_rows import (
    KeptAgent,
    KeptCall,
    KeptEvent,
    KeptInquiry,
    KeptJob,
    KeptMessage,
    KeptRun,
    KeptSession,
    KeptSteer,
    KeptTurn,
    KeptVersion,
    NewSeq,
)
from holdfast.kernel.sql import Exec, Many, One, Statements

_PACKAGE = "holdfast.agents.sql"


class CapsulesSql(
    Statements,
    package=_PACKAGE,
    file="capsules.sql",
    types={
        "job_id": "uuid",
        "metadata": "jsonb",
        **dict.fromkeys(("definition", "input", "variables", "options", "output", "refusal", "usage", "error"), "json"),
        **dict.fromkeys(("data", "otherwise", "decision", "payload", "result", "body"), "json"),
    },
):
    kept_agents: Many[KeptAgent]
    keep_agent: Exec
    kept_versions: Many[KeptVersion]
    keep_version: Exec
    kept_session: One[KeptSession]
    keep_session: Exec
    kept_runs: Many[KeptRun]
    keep_run: Exec
    kept_messages: Many[KeptMessage]
    keep_message: Exec
    kept_turns: Many[KeptTurn]
    keep_turn: Exec
    kept_calls: Many[KeptCall]
    keep_call: Exec
    kept_events: Many[KeptEvent]
    keep_event: Exec
    kept_inquiries: Many[KeptInquiry]
    keep_inquiry: Exec
    kept_steers: Many[KeptSteer]
    keep_steer: Exec
    kept_jobs: Many[KeptJob]
    keep_job: One[NewSeq]
    end_kept_job: Exec
