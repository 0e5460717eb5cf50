"""What agents do now and did in the last minute, for who watches. Every question is bounded."""

from __future__ import annotations

from holdfast.agents.activity_rows import AgentActivity, OpenInquiries, TurnLatencies
from holdfast.agents.statements import ActivitySql
from holdfast.kernel.database import Transaction, reading

CAP = 10_000  # rows that each part of a question reads
LOOK = 1_000  # turns whose times are compared


@reading
async def agent_activity(tx: Transaction) -> list[AgentActivity]:
    """Of every agent with an open run, or one that did something in the last minute; the busiest first."""
    return await tx.many(ActivitySql.agent_activity, cap=CAP)


@reading
async def open_inquiries(tx: Transaction) -> OpenInquiries:
    return await tx.one(ActivitySql.waiting_people, cap=CAP) or OpenInquiries()


@reading
async def turn_latencies(tx: Transaction) -> list[TurnLatencies]:
    """How long the last turns of each model took, of those that ended in the last minute."""
    return await tx.many(ActivitySql.turn_latencies, look=LOOK)
