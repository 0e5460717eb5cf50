"""Budgets of customers: one customer reaches the limit, another one continues because a person allows it.

python budgets.py

A call is reserved, at the most it may cost, before it is made, and settled at what it did cost. So runs that execute at
the same time cannot spend the same money twice.
"""

import asyncio

from holdfast import Holdfast
from holdfast.events import InputRequested, RunEnded
from holdfast.models import Script, call, say

hf = Holdfast()
# A script answers instead of the model, so that this runs without a key; the prices are the model's own.
hf.script("claude-sonnet-5-5", Script(*[call("look_up", page=str(page)) for page in range(1, 7)], say("Read it.")))


@hf.tool(effect="read")
def look_up(page: str) -> str:
    """Look a page of the archive up."""
    return f"page {page}: " + "the harbour, the harbour and the harbour " * 200


reader = hf.agent("reader", model="claude-sonnet-5-5", tools=[look_up], max_tokens=1_000)


async def main() -> None:
    async with hf:
        await hf.budgets.set("0.03", tenant="ann", per="1d")  # its runs end at the limit
        await hf.budgets.set("0.03", tenant="ben", per="1d", policy="ask")  # asks a person
        await hf.budgets.set("5.00")  # everyone together, without end

        ended = await reader.run("Read six pages.", tenant="ann")
        print(f"ann: {ended.outcome} after {ended.turns} turns")
        print(f"  {ended.limit}")
        (budget,) = await hf.budgets.list(tenant="ann")
        assert budget.spent == ended.usage.cost < budget.cost

        run = await reader.enqueue("Read six pages.", tenant="ben")
        async for event in run.stream():
            match event:
                case InputRequested(reason=reason):
                    print(f"ben: waits for a person, because {reason}")
                    await hf.approve(run.id, by="the boss")
                case RunEnded(result=result) if result is not None:
                    print(f"  {result.outcome} after {result.turns} turns")
                case _:
                    pass

        for used in await hf.budgets.used("tenant", "model"):
            print(f"{used.tenant}: {used.turns} turns of {used.model}, {used.cost:.3f} USD")


if __name__ == "__main__":
    asyncio.run(main())
