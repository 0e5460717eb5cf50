"""Money: prices are rows that a program can put its own before."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from holdfast import Holdfast
from holdfast.models.prices import Price
from holdfast.models.script import Script, say

SINCE = date(2026, 1, 1)


def price(kind: str, usd: str) -> Price:
    return Price(model="scripted:dear", kind=kind, tier="standard", since=SINCE, usd=Decimal(usd))


async def test_own_prices_come_before_the_shipped_ones(hf: Holdfast) -> None:
    hf.script("dear", Script(say("Thank you.")))
    hf.budgets.prices = [price("input", "2000"), price("output", "0.001")]
    agent = hf.agent("dear", model="scripted:dear")
    result = await agent.run("Hello")
    expected = Decimal(result.usage.input_tokens) * 2000 / 1_000_000
    expected += Decimal(result.usage.output_tokens) * Decimal("0.001") / 1_000_000
    assert result.usage.cost == expected
    assert (await hf.sessions[result.session_id].usage()).cost == expected
    (turn,) = await hf.runs[result.run_id].turns()
    assert turn.usage.cost == expected
