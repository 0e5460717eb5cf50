"""What a fork may be told: where it begins, what tools are to have returned, how its model is asked."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Agent, Discard, Document, Holdfast, Image, Limits
from holdfast.errors import UsageError
from holdfast.models.script import Script, call, say, truncate
from holdfast.models.steps import Part
from holdfast.testing import Labs
from tests.support.agents import Noting, results, settle

GO_ON = "Continue exactly where you stopped."


def looking(hf: Holdfast, **options: Any) -> Agent[str]:
    @hf.tool(effect="read")
    def look(what: str) -> str:
        """Look."""
        return f"saw {what}"

    return hf.agent("a", model="scripted:", tools=[look], **options)


async def test_what_was_cut_off_goes_on_behind_its_last_turn(hf: Holdfast, labs: Labs) -> None:
    agent = looking(hf)
    script = Noting(lambda messages: truncate("Once upon") if len(messages) == 1 else say(" a time."))
    lab = await labs.use(hf, script)
    run = await agent.enqueue("Tell me")
    await lab.drain()
    assert (await run.result()).outcome == "truncated"
    fork = await run.fork(2)
    await lab.drain()
    result = await fork.result()
    assert (result.outcome, result.text, result.turns) == ("answered", "Once upon a time.", 2)
    said = [block["text"] for message in script.bodies[-1]["messages"] for block in message["content"]]
    assert said == ["Tell me", "Once upon", GO_ON]
    assert (await hf.runs.replay(fork)).differences == ()
    again = await fork.fork(2)
    await lab.drain()
    assert ((await again.result()).text, len(await hf.sessions[str(again.session_id)].messages())) == (result.text, 4)


async def test_a_fork_of_an_answer_in_parts_has_all_of_it(hf: Holdfast, labs: Labs) -> None:
    agent = looking(hf, on_max_tokens="continue")
    parts: dict[int, Part] = {1: truncate("one "), 3: truncate("two "), 5: say("three")}
    lab = await labs.use(hf, Script(lambda messages: parts[len(messages)]))
    run = await agent.enqueue("Count")
    await lab.drain()
    assert await run.text() == "one two three"
    for at in (1, 2, 3):
        fork = await run.fork(at)
        await lab.drain()
        assert await fork.text() == "one two three"


async def test_a_limited_run_goes_on_behind_its_last_turn(hf: Holdfast, labs: Labs) -> None:
    agent = looking(hf)
    lab = await labs.use(hf, Script(call("look", what="x"), say("done")))
    run = await agent.enqueue("Go", limits=Limits(turns=1))
    (row,) = await settle(lab, run)
    assert (row.outcome, row.turns) == ("limited", 1)
    fork = await run.fork(2, limits=Limits(turns=9))
    await lab.drain()
    assert await fork.text() == "done"
    with pytest.raises(UsageError, match="ended with turn"):
        await fork.fork(3)


@pytest.mark.parametrize("at", ["2", True, 2.0, 0, -1])
async def test_a_place_that_is_none_is_refused(hf: Holdfast, labs: Labs, at: Any) -> None:
    agent = looking(hf)
    lab = await labs.use(hf, Script(call("look", what="x"), say("done")))
    run = await agent.enqueue("Go")
    await lab.drain()
    with pytest.raises(UsageError, match=r"at is the number of a turn, from 1"):
        await run.fork(at)
    if not isinstance(at, int) or at is True:
        with pytest.raises(UsageError, match="at must be a whole number"):
            await hf.sessions[str(run.session_id)].fork(at)


async def test_changed_results_are_whatever_a_tool_may_return(hf: Holdfast, labs: Labs) -> None:
    agent = looking(hf)
    lab = await labs.use(hf, Script(call("look", what="x"), say("done")))
    run = await agent.enqueue("Go")
    await lab.drain()
    image, document = Image(b"\x89PNG1234", "image/png"), Document(b"%PDF", "application/pdf")
    wishes: list[tuple[Any, Any, bool]] = [
        ("text", "text", False),
        ({"b": 1, "a": [None]}, '{"b":1,"a":[null]}', False),
        (image, [image.block()], False),
        (["see:", document], [{"type": "text", "text": "see:"}, document.block()], False),
        ([{"type": "text", "text": "as it is"}], [{"type": "text", "text": "as it is"}], False),
        (ValueError("no such thing"), "ValueError: no such thing", True),
        (Discard("never"), "never", True),
    ]
    for given, told, failed in wishes:
        fork = await run.fork(results={"look": given})
        await lab.drain()
        (block,) = await results(hf, fork.session_id)
        assert (block["content"], bool(block.get("is_error"))) == (told, failed)
        assert fork.state == "completed"
    empty = await run.fork(results={"look": None})
    (block,) = await results(hf, empty.session_id)
    assert "content" not in block
    with pytest.raises(UsageError, match="results must be a dict"):
        await run.fork(results=["look"])  # type: ignore[arg-type]


async def test_a_fork_is_streamed_or_put_into_a_batch(hf: Holdfast, labs: Labs) -> None:
    agent = looking(hf)
    lab = await labs.use(hf, Script(call("look", what="x"), say("done")))
    run = await agent.enqueue("Go", mode="batch")
    await lab.pass_time(run)
    streamed, batched = await run.fork(), await run.fork(2, mode="batch")
    await lab.drain()
    assert [(await each.refresh()).mode for each in (streamed, batched)] == ["streaming", "batch"]
    assert (streamed.state, (await batched.refresh()).state.startswith("batch_")) == ("completed", True)
    await lab.pass_time(batched)
    assert await batched.text() == "done"
    with pytest.raises(UsageError, match="mode must be one of"):
        await run.fork(mode="slow")  # type: ignore[arg-type]


async def test_a_fork_in_a_batch_is_answered_from_the_record_too(hf: Holdfast, labs: Labs) -> None:
    did: list[str] = []

    @hf.tool
    def book(seat: str) -> str:
        """Book."""
        did.append(seat)
        return f"booked {seat}"

    agent = hf.agent("desk", model="scripted:", tools=[book])
    lab = await labs.use(hf, Script(call("book", seat="1"), call("book", seat="1"), say("done")))
    run = await agent.enqueue("Go")
    await lab.drain()
    fork = await run.fork(mode="batch")
    await lab.pass_time(fork)
    assert (await fork.text(), did) == ("done", ["1", "1"])
    assert await fork.inquiries() == []


async def test_another_prompt_takes_the_place_of_all_that_was_asked_at_first(hf: Holdfast, labs: Labs) -> None:
    agent = looking(hf)
    script = Noting(say("rain"))
    lab = await labs.use(hf, script)
    session = await hf.session("s")
    run = await session.send("When is", agent)
    assert (await session.send("high water?", agent, during="coalesce")).id == run.id
    await lab.drain()
    whole = await run.fork()
    await lab.drain()
    other = await run.fork(prompt="Will it rain?")
    await lab.drain()
    said = [[block["text"] for block in body["messages"][0]["content"]] for body in script.bodies]
    assert said == [["When is", "high water?"], ["When is", "high water?"], ["Will it rain?"]]
    assert (whole.state, other.state) == ("completed", "completed")
