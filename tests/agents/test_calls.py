"""Calls of tools: their arguments, their slots, and what they did."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast import Holdfast, Limits
from holdfast.models.fold import ReplyFold
from holdfast.models.script import Script, call, calls, say
from holdfast.models.simulator.strict import check_request
from holdfast.models.wire import KEY
from holdfast.testing import Labs
from tests.support.agents import Noting, in_run_state, settle
from tests.support.apps import MakeApp, eventually, happens


@pytest.mark.parametrize("text", ['{"x": NaN}', '{"x": 1e999}', '{"x": ' + "[" * 100_000 + "]" * 100_000 + "}"])
def test_arguments_that_are_no_json_are_bad_ones(text: str) -> None:
    folding = ReplyFold()
    use = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    for event in (
        {"type": "message_start", "message": {"id": "m", "model": "x", "content": [], "usage": {}}},
        {"type": "content_block_start", "index": 0, "content_block": use},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": text}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}},
        {"type": "message_stop"},
    ):
        folding.feed(event)
    assert list(folding.reply().bad_inputs) == ["toolu_1"]


async def test_what_a_call_did_is_kept_when_its_run_is_cancelled(make_app: MakeApp) -> None:
    hf = make_app()
    paid = asyncio.Event()

    @hf.tool(effect="once")
    async def refund() -> str:
        """Refund."""
        paid.set()
        return "refunded 80"

    @hf.tool
    async def forever() -> str:
        """Never ends."""
        await asyncio.sleep(3600)
        return ""

    hf.script("both", Script(calls(call("refund"), call("forever")), say("never")))
    agent = hf.agent("till", model="scripted:both", tools=[refund, forever])
    await hf.ensure_worker()
    run = await agent.enqueue("Go")
    await happens(paid)
    await eventually(lambda: _completed(hf, run.id))
    await run.cancel()
    await in_run_state(run, "cancelled")
    assert run.session_id is not None
    last = (await hf.sessions[run.session_id].messages())[-1]
    assert last.blocks[0].get("content") == "refunded 80"
    assert [bool(block.get("is_error")) for block in last.blocks] == [False, True]


async def _completed(hf: Holdfast, run: str) -> bool:
    return any(each.state == "completed" for each in await hf.runs[run].calls())


async def test_a_tool_on_a_thread_that_hangs_gives_its_slot_back(make_app: MakeApp) -> None:
    hf = make_app(max_concurrent_tools=1)
    release = threading.Event()

    @hf.tool(timeout="200ms", effect="once", unknown="report")
    def hang() -> str:
        """Hang."""
        release.wait(60)
        return ""

    @hf.tool
    def quick() -> str:
        """Quick."""
        return "done"

    hf.script("two", Script(call("hang"), call("quick"), say("both")))
    try:
        result = await hf.agent("two", model="scripted:two", tools=[hang, quick]).run("Go")
    finally:
        release.set()
    assert result.text == "both"
    assert [each.state for each in await hf.runs[result.run_id].calls()] == ["failed", "completed"]


NOWHERE = "sqlite:////nowhere/at-all.db"


async def test_a_call_that_ends_while_it_waits_for_approval_is_answered(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)

    @hf.tool(approve=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    agent = hf.agent("payer", model="scripted:", tools=[pay])
    script = Noting(call("pay"), say("so be it"))
    lab = await labs.use(hf, script)
    run = await agent.enqueue("Go", session="s", limits=Limits(time="1h"))
    await lab.drain()
    assert run.state == "awaiting_input"
    await lab.clock.advance("2h")
    await settle(lab, run)
    assert await hf.inquiries.list() == []
    await agent.enqueue("And now?", session="s")
    await lab.drain()
    assert len(script.bodies) == 2
    for body in script.bodies:
        check_request(body, key=KEY, account="")
