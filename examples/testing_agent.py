"""How to test an agent: no model, no key, no sleeping, and a worker killed at every commit.

    pip install path/to/holdfast pytest pytest-asyncio
    pytest examples/testing_agent.py

`holdfast` is a fixture of Holdfast's pytest plugin. The database, the SQL, the worker and the tools are real.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.testing import Lab, Labs, Script, call, expect, say

pytestmark = pytest.mark.asyncio

hf = Holdfast("sqlite:///shop.db")  # labs use their own databases; this one is never opened


@hf.tool(effect="read")
def find_order(number: str) -> dict[str, str]:
    """Look up an order."""
    return {"number": number, "total": "80"}


@hf.tool(effect="idempotent", approve=lambda call: call.input["amount"] > 50)
def refund(number: str, amount: Decimal) -> str:
    """Refund an order; a person approves large amounts."""
    return f"{amount} euros for {number}"


support = hf.agent("support", model="claude-sonnet-5-5", tools=[find_order, refund])

TALK = Script(
    expect(text="A1", tools={"find_order", "refund"}).call("find_order", number="A1"),
    expect(tool="find_order", result="80").call("refund", number="A1", amount="80"),
    expect(tool="refund", is_error=False).say("Done: 80 euros."),
)


async def test_a_large_refund_waits_for_a_person(holdfast: Labs) -> None:
    lab = await holdfast.use(hf, TALK)
    run = await support.enqueue("My order A1 never came.")
    await lab.drain()
    assert run.state == "awaiting_input"
    await lab.approve(run)
    await lab.drain()
    assert await run.text() == "Done: 80 euros."
    assert lab.calls("refund") == [{"number": "A1", "amount": "80"}]


async def test_it_survives_every_crash_and_buys_nothing_twice(holdfast: Labs) -> None:
    async def refunding(lab: Lab) -> str:
        run = await support.enqueue("My order A1 never came.")
        await lab.drain()
        await lab.approve(run)
        return await run.text()

    await holdfast.survives(hf, refunding, TALK, at_most=12)


async def test_a_recorded_run_answers_again(holdfast: Labs, tmp_path: Path) -> None:
    lab = await holdfast.use(hf, Script(call("find_order", number="A1"), say("It is on its way.")))
    run = await support.enqueue("Where is A1?")  # imagine that a real model answers here
    await lab.drain()
    await run.cassette(tmp_path / "where.json")
    await lab.close()
    await holdfast.use(hf, Script.cassette(tmp_path / "where.json", strict=True))
    assert (await support.run("Where is A1?")).text == "It is on its way."


async def test_a_tenant_spends_no_more_than_its_budget(holdfast: Labs) -> None:
    lab = await holdfast.use(hf, Script(*[call("find_order", number="A1")] * 9, say("Done.")))
    lab.price("0.01")
    await lab.budget("0.05", tenant="acme")
    assert (await support.run("Look at A1.", tenant="acme")).outcome == "limited"
    assert lab.spent(tenant="acme") == Decimal("0.05")


async def test_a_batch_takes_its_time(holdfast: Labs) -> None:
    lab = await holdfast.use(hf, Script(say("Tomorrow.")))
    run = await support.enqueue("When?", mode="batch")
    await lab.pass_time(run)
    assert await run.text() == "Tomorrow."
