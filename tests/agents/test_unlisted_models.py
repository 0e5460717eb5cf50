"""Models that are not listed: used all the same, and refused only where their price is needed."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest

from holdfast import Holdfast, Limits, RunFailed
from holdfast.errors import UsageError
from holdfast.models import facts
from holdfast.models.prices import Price
from holdfast.models.script import Script, call, say
from holdfast.testing import Labs
from tests.support.agents import settle

NEW = "claude-opus-9"


def app() -> Holdfast:
    return Holdfast("sqlite:////nowhere/at-all.db")


def priced(usd: str = "1") -> list[Price]:
    kinds = ("input", "output", "cache_write_5m", "cache_read")
    return [Price(model=NEW, kind=kind, tier="standard", since=date(2026, 1, 1), usd=Decimal(usd)) for kind in kinds]


async def test_a_model_that_is_not_listed_answers(provided: Labs, caplog: pytest.LogCaptureFixture) -> None:
    facts._unlisted.cache_clear()  # another test may have been told already
    hf = app()

    @hf.tool(strict=True)
    def look(word: str) -> str:
        """Look it up."""
        return word

    agent = hf.agent("a", model=NEW, fallbacks=["claude-haiku-9"], tools=[look], options={"temperature": 0.3})
    lab = await provided.use(hf, Script(call("look", word="cat"), say("A cat.")))
    run = await agent.enqueue("Go")
    await lab.drain()
    result = await run.result()
    assert (result.outcome, result.usage.cost_nano) == ("answered", 0)
    (first, _) = lab.asked
    assert first.body["max_tokens"] == 4096
    assert "strict" not in first.body["tools"][0]
    for name in (NEW, "claude-haiku-9"):
        assert sum(f"{name!r} is not among the models" in record.getMessage() for record in caplog.records) == 1


async def test_a_batch_of_it_is_made_when_asked_for_and_not_else(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("a", model=NEW)
    lab = await provided.use(hf, Script(say("done")))
    asked, chosen = await agent.enqueue("Go", mode="batch"), await agent.enqueue("Go", answer_within="23h")
    rows = await settle(lab, asked, chosen)
    assert [row.mode for row in rows] == ["batch", "streaming"]


@pytest.mark.parametrize("by", ["limit", "run", "tree", "budget"])
async def test_where_money_is_limited_its_price_is_needed(provided: Labs, by: str) -> None:
    hf = app()
    limits = Limits(cost="0.50")
    agent = hf.agent("a", model=NEW, limits=limits if by == "limit" else None)
    boss = hf.agent("boss", model="scripted:", agents=[agent], limits=limits)
    helped = Script.by_agent({"boss": Script(call("a", task="Go"), say("done")), "a": Script(say("done"))})
    lab = await provided.use(hf, helped if by == "tree" else Script(say("done")))
    if by == "budget":
        await hf.budgets.set("10")
    run = await (boss if by == "tree" else agent).enqueue("Go", limits=limits if by == "run" else None)
    await settle(lab, run)
    words = rf"there is no standard price for .* of model '{NEW}': give one, .* hf.budgets.prices = \[Price"
    if by == "tree":
        (told,) = lab.asked[-1].results
        assert told.is_error
    else:
        with pytest.raises(RunFailed, match=words) as refused:
            await run.result()
        assert refused.value.error_type == UsageError.__name__
        assert lab.asked == []
    hf.budgets.prices = priced()
    run = await (boss if by == "tree" else agent).enqueue("Again", limits=limits if by == "run" else None)
    await settle(lab, run)
    assert (await run.result()).usage.cost > 0


async def test_the_price_of_entries_that_live_an_hour_is_needed_where_they_are_written(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("a", model=NEW, caching="1h", limits=Limits(cost="0.50"))
    lab = await provided.use(hf, Script(say("done")))
    hf.budgets.prices = priced()
    run = await agent.enqueue("Go")
    await settle(lab, run)
    with pytest.raises(RunFailed, match="there is no standard price for cache_write_1h") as refused:
        await run.result()
    assert refused.value.error_type == UsageError.__name__
    assert lab.asked == []
    hf.budgets.prices = [*priced(), replace(priced()[0], kind="cache_write_1h")]
    run = await agent.enqueue("Again")
    await settle(lab, run)
    assert (await run.result()).usage.cost > 0
