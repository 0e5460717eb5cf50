"""Where thinking had to be left out of an open tool loop, a model that insists on its own is asked not to think."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.clock import Ports
from holdfast.models.script import call, say, think
from holdfast.models.simulator import simulator
from holdfast.testing import Labs
from tests.support.agents import Noting, audit, settle

ON = {"type": "enabled", "budget_tokens": 1024}
OFF = {"type": "disabled"}


def kinds(script: Noting) -> list[Any]:
    return [body.get("thinking") for body in script.bodies]


@pytest.fixture
def script() -> Noting:
    looks = (think("hm"), call("look", what="1"), think("so"), call("look", what="2"))
    return Noting(*looks, think("well"), say("done"))


async def test_a_fork_with_another_model_inside_a_loop_goes_on_without_thinking(
    hf: Holdfast, provided: Labs, script: Noting
) -> None:
    @hf.tool(effect="read")
    def look(what: str) -> str:
        """Look."""
        return f"saw {what}"

    agent = hf.agent("a", model="claude-haiku-4-5", tools=[look], options={"thinking": ON})
    lab = await provided.use(hf)
    async with simulator(script=script, ports=Ports(lab.clock)) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url})
        run = await agent.enqueue("Go")
        await lab.drain()
        assert (run.state, kinds(script)) == ("completed", [ON] * 3)
        first = (await run.calls())[0]
        wishes: list[tuple[dict[str, Any], list[Any]]] = [
            ({"at": 2}, [ON, ON]),
            ({"at": 2, "model": "claude-opus-4-5"}, [OFF, OFF]),
            ({"model": "claude-opus-4-5"}, [ON] * 3),
            ({"at": 3, "results": {first.id: "other"}}, [OFF]),
            ({"results": {first.id: "other"}}, [ON, ON]),
        ]
        fork = run
        for wish, asked in wishes:
            script.bodies.clear()
            fork = await run.fork(**wish)
            (row,) = await settle(lab, fork)
            assert (row.state, row.error, kinds(script)) == ("completed", None, asked), wish
        script.bodies.clear()
        later = await agent.enqueue("And?", session=hf.sessions[str(fork.session_id)], model="claude-opus-4-5")
        (row,) = await settle(lab, later)
        assert (row.state, kinds(script)[0]) == ("completed", ON)  # the loop is closed: it may think again
        assert [line["rejected"] for line in provider.lines if line["event"] == "done" and line["rejected"]] == []


async def test_a_file_that_expires_inside_a_loop_does_not_end_the_run(
    hf: Holdfast, provided: Labs, tmp_path: Path
) -> None:
    @hf.tool(approve=True)
    def pay(amount: str) -> str:
        """Pay."""
        return "paid"

    (tmp_path / "report.pdf").write_bytes(b"%PDF-1.7 the report")
    script = Noting(think("hm"), call("pay", amount="1"), say("done"))
    agent = hf.agent("a", model="claude-haiku-4-5", tools=[pay], options={"thinking": ON})
    lab = await provided.use(hf)
    async with simulator(script=script, ports=Ports(lab.clock)) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url})
        document = await hf.upload(tmp_path / "report.pdf", expires_in="1h")
        run = await agent.enqueue(["Read", document])
        await lab.drain()
        await lab.clock.advance("2h")
        await lab.approve(run)
        (row,) = await settle(lab, run)
        assert (row.state, kinds(script)) == ("completed", [ON, OFF])
        await audit(hf, provider)


async def test_models_that_think_as_they_like_are_asked_as_ever(hf: Holdfast, labs: Labs) -> None:
    @hf.tool(effect="read")
    def look(what: str) -> str:
        """Look."""
        return f"saw {what}"

    script = Noting(think("hm"), call("look", what="1"), say("done"))
    for options in ({"thinking": {"type": "adaptive"}}, {}):
        agent = hf.agent(f"a{len(options)}", model="scripted:", tools=[look], options=options)
        lab = await labs.use(hf, script)
        run = await agent.enqueue("Go")
        await lab.drain()
        await run.fork(2, model="scripted:other")
        await lab.drain()
        assert kinds(script) == [options.get("thinking")] * 3
        script.bodies.clear()
        await lab.close()


async def test_a_model_that_did_not_think_is_still_asked_to(hf: Holdfast, labs: Labs) -> None:
    """Many think only at the beginning of a loop: nothing was left out there."""

    @hf.tool(effect="read")
    def look(what: str) -> str:
        """Look."""
        return f"saw {what}"

    script = Noting(call("look", what="1"), say("done"))
    agent = hf.agent("a", model="scripted:", tools=[look], options={"thinking": ON})
    lab = await labs.use(hf, script)
    await agent.enqueue("Go")
    await lab.drain()
    assert kinds(script) == [ON, ON]
