"""Calls that cannot be told apart: the answer is paid for, so it is repaired and kept, and bought once."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.runs.decision import UNNAMED, repair_calls
from holdfast.events import AnswerRepaired
from holdfast.models.fold import Reply
from holdfast.models.script import Raw, Script, call, calls, ends, say
from holdfast.testing import Labs
from tests.agents.test_bad_days import an_app, provider
from tests.support.agents import MODEL, audit, results, settle

NOWHERE = "sqlite:////nowhere/at-all.db"
TWICE = calls(call("add", a=1, b=2), call("add", a=3, b=4))


def add_of(hf: Holdfast) -> Any:
    @hf.tool(effect="read")
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    return add


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["duplicate_ids", "no_ids"])
async def test_calls_without_ids_of_their_own_are_told_apart_and_bought_once(provided: Labs, fault: str) -> None:
    async with provider(Script(TWICE, say("Three and seven.")), {"match": {"nth": 1}, "do": {fault: True}}) as running:
        hf = an_app(running.url)
        lab = await provided.use(hf)
        run = await hf.agent("adder", model=MODEL, tools=[add_of(hf)]).enqueue("Add", session="s")
        await settle(lab, run)
        assert (await run.result()).text == "Three and seven."
        assert [(turn.attempts, turn.unknown) for turn in await run.turns()] == [(1, 0), (1, 0)]
        told = await results(hf, run.session_id)
        assert [block["content"] for block in told] == ["3", "7"]
        assert len({block["tool_use_id"] for block in told}) == 2
        (repaired,) = [event for event in await run.events() if isinstance(event, AnswerRepaired)]
        changed = [entry["index"] for entry in repaired.calls]
        assert changed == ([1] if fault == "duplicate_ids" else [0, 1])
        await audit(hf, running)


@pytest.mark.asyncio
async def test_a_call_without_a_name_is_answered_with_an_error(provided: Labs) -> None:
    script = Script(call("add", a=1, b=2), call("add", a=1, b=2), say("Three."))
    async with provider(script, {"match": {"nth": 1}, "do": {"no_names": True}}) as running:
        hf = an_app(running.url)
        lab = await provided.use(hf)
        run = await hf.agent("adder", model=MODEL, tools=[add_of(hf)]).enqueue("Add")
        await settle(lab, run)
        assert (await run.result()).text == "Three."
        first, second = await results(hf, run.session_id)
        assert first["is_error"]
        assert "named no tool" in first["content"]
        assert second["content"] == "3"
        await audit(hf, running)


@pytest.mark.asyncio
async def test_an_id_that_an_earlier_turn_has_is_replaced(provided: Labs) -> None:
    rule = {"do": {"duplicate_ids": True}}
    script = Script(call("add", a=1, b=2), call("add", a=3, b=4), say("Three and seven."))
    async with provider(script, rule) as running:
        hf = an_app(running.url)
        lab = await provided.use(hf)
        run = await hf.agent("adder", model=MODEL, tools=[add_of(hf)]).enqueue("Add")
        await settle(lab, run)
        assert (await run.result()).text == "Three and seven."
        await audit(hf, running)


@pytest.mark.asyncio
async def test_the_calls_of_an_answer_from_a_batch_are_told_apart_too(labs: Labs) -> None:
    def use(a: int, b: int, **more: Any) -> Raw:
        return Raw({"type": "tool_use", "id": "same", "name": "add", "input": {"a": a, "b": b}, **more})

    hf = Holdfast(NOWHERE)
    twice = ends("tool_use", use(1, 2), use(3, 4), use(5, 6, name=""))
    lab = await labs.use(hf, Script(twice, ends("tool_use", use(7, 8)), say("Done.")))
    run = await hf.agent("adder", model="scripted:", tools=[add_of(hf)]).enqueue("Add", mode="batch")
    await lab.pass_time(run)
    assert (await run.result()).text == "Done."
    assert [turn.attempts for turn in await run.turns()] == [1, 1, 1]
    told = await results(hf, run.session_id)
    assert [block.get("is_error", False) for block in told] == [False, False, True, False]
    assert [block["content"] for block in told[:2]] == ["3", "7"]
    assert len({block["tool_use_id"] for block in told}) == 4
    assert lab.rebought == []


def test_the_same_answer_is_repaired_the_same_way_every_time() -> None:
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": "Now."},
        {"type": "tool_use", "id": "a", "name": "add", "input": {}},
        {"type": "tool_use", "id": "a", "name": None, "input": []},
        {"type": "tool_use", "id": "no id!", "name": "add", "input": {}},
    ]
    reply = Reply(id="m", model="x", blocks=blocks, stop_reason="tool_use")
    once, again = repair_calls(reply, "run", 1), repair_calls(reply, "run", 1)
    assert once == again
    ids = [block["id"] for block in once.reply.tool_uses]
    assert ids[0] == "a"
    assert len(set(ids)) == 3
    assert once.reply.blocks[2] == {"type": "tool_use", "id": ids[1], "name": UNNAMED, "input": {}}
    assert set(once.reply.nameless) == set(once.reply.bad_inputs) == {ids[1]}
    assert repair_calls(once.reply, "run", 1).repairs == ()
    assert repair_calls(reply, "run", 2).reply != once.reply
