"""What customers may spend: one of them runs into the end of it, another one is let go on by a person.

python budgets.py

A call is reserved, at the most it may cost, before it is made, and settled at what it did cost. So runs that go on at
the same time cannot spend the same money twice.
"""

import asyncio

from holdfast import Holdfast
from holdfast.events import InputRequested, RunEnded
from holdfast.models import Script, ScriptedModel, call, say

hf = Holdfast()
# A script answers in the model's place, so that this runs without a key; the prices are the model's own.
hf.book.substitute = ScriptedModel(Script(*[call("look_up", page=str(page)) for page in range(1, 7)], say("Read it.")))


@hf.tool(effect="read")
def look_up(page: str) -> str:
    """Look a page of the archive up."""
    return f"page {page}: " + "the harbour, the harbour and the harbour " * 200


reader = hf.agent("reader", model="claude-sonnet-5-5", tools=[look_up], max_tokens=1_000)


async def main() -> None:
    async with hf:
        await hf.budgets.set("0.03", tenant="ann", per="1d")  # its runs end there
        await hf.budgets.set("0.03", tenant="ben", per="1d", policy="ask")  # a person is asked
        await hf.budgets.set("5.00")  # everybody together, ever

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

        for used in await hf.used("tenant", "model"):
            print(f"{used.tenant}: {used.turns} turns of {used.model}, {used.cost:.3f} USD")


if __name__ == "__main__":
    asyncio.run(main())
