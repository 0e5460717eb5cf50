"""What the fleet does now, as those see it who watch. Every question is bounded."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import ClassVar

from holdfast.agents.activity import agent_activity, open_inquiries, turn_latencies
from holdfast.kernel import watch
from holdfast.kernel.queries import now as now_us
from holdfast.kernel.database import Transaction, reading
from holdfast.values.quantiles import Quantiles, quantiles
from holdfast.values.times import moment

_GRACE_US = 5_000_000  # a lease that ended longer ago should have been noticed


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentNow:
    """An agent: its open runs, those that wait for a person, and what it did in the last minute."""

    SHOWN: ClassVar = ("cost",)

    agent: str
    open: int
    asking: int
    ended: int
    failed: int
    turns: int
    cost_nano: int
    input_tokens: int = 0
    output_tokens: int = 0
    cache_write_tokens: int = 0
    cache_read_tokens: int = 0

    @property
    def cost(self) -> Decimal:
        return Decimal(self.cost_nano) / 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetNow:
    """`oldest_pending` is for how many seconds the oldest job of each queue has waited for a worker, `turn_seconds` how
    long the turns of each model took in the last minute, by quantile."""

    at: datetime
    agents: list[AgentNow]
    inquiries: int
    lapsed: int
    oldest_pending: dict[str, float]
    turn_seconds: dict[str, Quantiles]


@reading
async def fleet_now(tx: Transaction) -> FleetNow:
    now = await now_us(tx)
    oldest: dict[str, float] = {}
    for each in await watch.backlogs(tx):
        if each.oldest_at is not None:
            oldest[each.queue] = max(oldest.get(each.queue, 0.0), (now - each.oldest_at) / 1e6)
    return FleetNow(
        at=moment(now),
        agents=[AgentNow(**each._asdict()) for each in await agent_activity(tx)],
        inquiries=(await open_inquiries(tx)).n,
        lapsed=(await watch.symptoms(tx, grace_us=_GRACE_US)).lapsed,
        oldest_pending=oldest,
        turn_seconds={row.model: quantiles(*row[1:]) for row in await turn_latencies(tx)},
    )
