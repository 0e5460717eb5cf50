"""A refund that waits for a person, who may be anywhere: in this program, or in another terminal, tomorrow.

python approval.py             # this program decides, too
python approval.py elsewhere   # somebody else does; the command to type is printed

While it waits nothing runs and nothing is held. Leave with Ctrl-C, come back, and it waits still: the key makes both
the same run. Decide twice, and the second time says what the first one did.
"""

import asyncio
import sys
from decimal import Decimal

from holdfast import Holdfast
from holdfast.events import ApprovalRequested, InputGiven, RunEnded
from holdfast.models import Script, call, calls, say

hf = Holdfast()
hf.script(
    "desk",
    Script(
        calls(call("refund", number="A1", amount="80"), call("refund", number="B2", amount="20")),
        say("You get both back."),
    ),
)


@hf.tool(effect="once", approve=lambda call: call.input["amount"] > 50, within="2d", otherwise="deny")
def refund(number: str, amount: Decimal) -> str:
    """Refund an order, in euros."""
    return f"{amount} euros for {number}"


desk = hf.agent("desk", model="scripted:desk", tools=[refund])


async def main(*, elsewhere: bool) -> None:
    async with hf:
        run = await desk.enqueue("A1 and B2 never came.", key="ann-1")
        async for event in run.stream():
            match event:
                case ApprovalRequested(call=asked, digest=digest):
                    print(f"{asked.name} {asked.input['number']} waits for a person")
                    if elsewhere:
                        print(f"holdfast runs approve {asked.id} --digest {digest} --by ann", flush=True)
                    else:
                        await hf.approve(asked.id, digest=digest, by="ann")
                case InputGiven(verdict=verdict, by=by):
                    print(f"{verdict} by {by}")
                case RunEnded(result=result) if result is not None:
                    print(result.text)
                case _:
                    pass
        for made in await run.calls():
            print(made.name, made.state, made.output)


if __name__ == "__main__":
    asyncio.run(main(elsewhere="elsewhere" in sys.argv))
