"""The loop of a run: turns, tools, delegation, and what is stored of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.tools import ToolContext
from holdfast.app import core_of
from holdfast.events import TextDelta
from holdfast.models.script import Script, call, calls, say
from tests.support.apps import MakeApp, eventually, working

pytestmark = pytest.mark.asyncio


async def _all_in(app: Holdfast, state: str) -> bool:
    return {row.state for row in await app.runs.list()} == {state}


def scripted(app: Holdfast, *steps: Any) -> str:
    name = f"s{len(core_of(app).book.scripts)}"
    app.script(name, Script(*steps))
    return f"scripted:{name}"


async def test_answers_without_tools(hf: Holdfast) -> None:
    agent = hf.agent("plain", model=scripted(hf, say("Good day.")))
    result = await agent.run("Hello")
    assert (result.text, result.outcome, result.output) == ("Good day.", "answered", "Good day.")
    row = await hf.runs.get(result.run_id)
    assert (row.state, row.stop_reason, row.turns) == ("completed", "end_turn", 1)
    assert row.finalized_at is not None
    session = hf.sessions[result.session_id]
    assert [(m.role, m.kind, m.text) for m in await session.messages()] == [
        ("user", "prompt", "Hello"),
        ("assistant", "answer", "Good day."),
    ]


async def test_calls_tools_in_parallel_and_answers_in_their_order(hf: Holdfast) -> None:
    together = asyncio.Barrier(2)

    @hf.tool
    async def slow(word: str) -> str:
        """Slow."""
        async with asyncio.timeout(30):
            await together.wait()
        await asyncio.sleep(0.1 if word == "first" else 0)
        return word

    script = scripted(hf, calls(call("slow", word="first"), call("slow", word="second")), say("both"))
    agent = hf.agent("pair", model=script, tools=[slow])
    result = await agent.run("Go")
    assert result.text == "both"
    results = (await hf.sessions[result.session_id].messages())[2]
    assert [block["content"] for block in results.blocks] == ["first", "second"]
    assert [c.state for c in await hf.runs[result.run_id].calls()] == ["completed", "completed"]


async def test_gives_tools_their_context_and_variables(hf: Holdfast) -> None:
    seen: dict[str, object] = {}

    @hf.tool
    def look(ctx: ToolContext, n: int) -> dict[str, int]:
        """Look."""
        seen.update(variables=dict(ctx.variables), run=ctx.run_id, agent=ctx.agent, key=ctx.idempotency_key, n=n)
        return {"n": n}

    agent = hf.agent("looker", model=scripted(hf, call("look", n=3), say("ok")), tools=[look])
    result = await agent.run("Look", variables={"customer": 42})
    (made,) = await hf.runs[result.run_id].calls()
    assert seen == {"variables": {"customer": 42}, "run": result.run_id, "agent": "looker", "key": made.id, "n": 3}
    assert look.spec.schema["properties"] == {"n": {"type": "integer"}}


async def test_unknown_tools_and_bad_arguments_get_error_results(hf: Holdfast) -> None:
    @hf.tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    script = scripted(hf, call("nothing", x=1), call("add", a="many", b=2), say("sorry"))
    result = await hf.agent("clumsy", model=script, tools=[add]).run("Go")
    assert result.text == "sorry"
    results = [m.blocks[0] for m in await hf.sessions[result.session_id].messages() if m.kind == "results"]
    assert [block["is_error"] for block in results] == [True, True]
    assert "There is no tool 'nothing'" in results[0]["content"]
    assert "a:" in results[1]["content"]


async def test_a_tool_is_tried_again_and_its_failure_is_told(hf: Holdfast) -> None:
    attempts: list[int] = []

    @hf.tool
    def flaky(ctx: ToolContext) -> str:
        """Flaky."""
        attempts.append(ctx.attempt)
        raise ValueError("out of order")

    result = await hf.agent("stubborn", model=scripted(hf, call("flaky"), say("gave up")), tools=[flaky]).run("Go")
    assert attempts == [1, 2]
    results = [m.blocks[0] for m in await hf.sessions[result.session_id].messages() if m.kind == "results"]
    assert results[0]["is_error"]
    assert "out of order" in results[0]["content"]


async def test_agents_call_agents_three_levels_deep(hf: Holdfast) -> None:
    @hf.tool
    def look_up(ctx: ToolContext, word: str) -> str:
        """Look a word up."""
        return f"{word} for {ctx.variables['who']} at depth {ctx.depth}"

    worker = hf.agent("worker", model=scripted(hf, call("look_up", word="cat"), say("found")), tools=[look_up])
    lead = hf.agent("lead", model=scripted(hf, call("worker", task="find cat"), say("led")), agents=[worker])
    boss = hf.agent("boss", model=scripted(hf, call("lead", task="do it"), say("bossed")), agents=[lead])
    result = await boss.run("Go", variables={"who": "me"})
    assert result.text == "bossed"
    runs = {row.agent_name: row for row in await hf.runs.list()}
    assert [runs[name].depth for name in ("boss", "lead", "worker")] == [0, 1, 2]
    assert {row.session for row in runs.values()} == {result.session_id}
    assert {row.root for row in runs.values()} == {result.run_id}
    (looked,) = await hf.runs[runs["worker"].id].calls()
    assert looked.output == "cat for me at depth 2"
    usage = await hf.runs[result.run_id].usage()
    assert (usage.runs, usage.turns) == (3, 6)
    messages = await hf.sessions[result.session_id].messages()
    assert (len(messages), messages[0].text) == (4, "Go")


async def test_runs_of_one_session_take_turns_in_accepted_order(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    order: list[str] = []

    @hf.tool
    async def note(word: str) -> str:
        """Note."""
        order.append(word)
        await asyncio.sleep(0.02)
        return word

    agents = [
        hf.agent(f"a{n}", model=scripted(hf, call("note", word=str(n)), say(f"done {n}")), tools=[note])
        for n in range(4)
    ]
    runs = [await agents[n].enqueue(f"message {n}", session="chat") for n in range(4)]
    async with working(hf), working(hf):
        assert [await run.text() for run in runs] == [f"done {n}" for n in range(4)]
    assert order == ["0", "1", "2", "3"]
    (session,) = await hf.sessions.list()
    texts = [m.text for m in await hf.sessions[session.id].messages() if m.kind in ("prompt", "answer") and m.text]
    assert texts == [text for n in range(4) for text in (f"message {n}", f"done {n}")]


async def test_a_key_makes_repeated_calls_one_run(hf: Holdfast) -> None:
    agent = hf.agent("once", model=scripted(hf, say("one")))
    first = await agent.enqueue("Hello", key="k")
    second = await agent.enqueue("Hello", key="k")
    assert first.id == second.id
    with pytest.raises(Exception, match="already belongs"):
        await agent.enqueue("Something else", key="k")


async def test_streams_from_any_point(hf: Holdfast) -> None:
    @hf.tool
    def noop() -> str:
        """Nothing."""
        return "x"

    agent = hf.agent("talker", model=scripted(hf, call("noop"), say("one two three four")), tools=[noop])
    await hf.ensure_worker()
    run = await agent.enqueue("Go")
    events = [event async for event in run.stream()]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    names = [type(event).__name__ for event in events]
    assert (names[0], names[-1]) == ("RunCreated", "RunEnded")
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "one two three four"
    again = [event async for event in run.stream(after=events[3].seq)]
    assert [event.seq for event in again] == [event.seq for event in events[4:]]


async def test_cancel_reaches_the_tree_and_leaves_no_call_unanswered(make_app: MakeApp) -> None:
    hf = make_app(heartbeat="1s")
    started = asyncio.Event()
    stopped = asyncio.Event()

    @hf.tool
    async def forever() -> str:
        """Never ends."""
        started.set()
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()
        return ""

    inner = hf.agent("inner", model=scripted(hf, call("forever"), say("never")), tools=[forever])
    outer = hf.agent("outer", model=scripted(hf, call("inner", task="wait"), say("never")), agents=[inner])
    await hf.ensure_worker()
    run = await outer.enqueue("Go", session="c")
    async with asyncio.timeout(60):
        await started.wait()
        await run.cancel()
        await stopped.wait()
    await eventually(lambda: _all_in(hf, "cancelled"))
    (session,) = await hf.sessions.list()
    last = (await hf.sessions[session.id].messages())[-1]
    assert (last.blocks[0]["type"], last.blocks[0]["is_error"]) == ("tool_result", True)
    after = hf.agent("after", model=scripted(hf, say("still here")))
    assert (await after.run("And now?", session="c")).text == "still here"


async def test_a_session_is_a_handle_that_can_be_awaited(hf: Holdfast) -> None:
    agent = hf.agent("host", model=scripted(hf, say("welcome")))
    handle = hf.session("house", metadata={"floor": 1})
    assert await hf.sessions.list() == []
    await hf.ensure_worker()
    first = await handle.send("Hello", agent)
    assert await first.text() == "welcome"
    opened = await hf.session("house")
    assert opened.id == handle.id
    assert (await hf.sessions.get("house")).metadata == {"floor": 1}
    new = hf.session()
    assert await (await agent.enqueue("Hello", session=new)).text() == "welcome"
    assert await (await agent.enqueue("Hello", session=new)).text() == "welcome"
    assert [run.ordinal for run in await new.runs()] == [2, 1]
