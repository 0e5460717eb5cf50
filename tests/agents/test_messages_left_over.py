"""Messages for a run that ends before it reads them."""

from __future__ import annotations

from holdfast import Holdfast, Limits, Snooze
from holdfast.models.script import call, say
from holdfast.models.simulator.strict import check_request
from holdfast.models.wire import KEY
from holdfast.testing import Labs
from tests.support.agents import Noting, settle

NOWHERE = "sqlite:////nowhere/at-all.db"


async def test_a_message_for_a_run_that_ends_otherwise_is_read_by_the_next(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)
    waited: list[int] = []

    @hf.tool(effect="read")
    def wait() -> str:
        """Wait."""
        waited.append(1)
        if len(waited) == 1:
            raise Snooze("1h")
        return "waited"

    agent = hf.agent("waiter", model="scripted:", tools=[wait])
    script = Noting(call("wait"), say("done"))
    lab = await labs.use(hf, script)
    run = await agent.enqueue("Go", session="s", limits=Limits(turns=1))
    await lab.drain()
    await run.steer("Do not forget this.")
    await lab.clock.advance("1h")
    await settle(lab, run)
    assert (await run.result()).outcome == "limited"
    await (await agent.enqueue("And?", session="s")).result()
    assert "Do not forget this." in str(script.bodies[-1]["messages"])
    check_request(script.bodies[-1], key=KEY, account="")
