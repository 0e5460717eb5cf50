"""Messages that come while a run is under way: they wait, are refused, interrupt it, steer it, or join the next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.errors import SessionBusy, UsageError
from holdfast.models.protocol import Request, ResponseHead, Wire, unmarked
from holdfast.models.script import Part, Script, block, call, calls, ends, say
from holdfast.models.scripted import ScriptedModel
from holdfast.testing import Labs
from tests.support.agents import Noting, results, settle
from tests.support.apps import MakeApp, eventually, happens


def last_text(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"][-1].get("text"))


async def test_steering_is_read_after_the_results_of_the_tools(labs: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    seen: list[int] = []

    @hf.tool
    async def look() -> str:
        """Look."""
        if not seen:
            await hf.runs[run.id].steer("Look left, too.")
        seen.append(1)
        return "seen"

    script = Noting(call("look"), say("done"))
    agent = hf.agent("guide", model="scripted:", tools=[look])
    lab = await labs.use(hf, script)
    run = await agent.enqueue("Go", session="s")
    await lab.drain()
    assert (await run.result()).text == "done"
    content = script.bodies[1]["messages"][-1]["content"]
    assert [part["type"] for part in content] == ["tool_result", "text"]
    assert content[1]["text"] == "Look left, too."
    again = await agent.enqueue("And now?", session="s")
    await lab.drain()
    assert (await again.result()).text == "done"
    assert unmarked(script.bodies[2]["messages"][:3]) == unmarked(script.bodies[1]["messages"])


class Gated(ScriptedModel):
    """Says all but the end of its first answer, and that when it may."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.said, self.go = asyncio.Event(), asyncio.Event()

    async def stream(self, request: Request, answered: Callable[[ResponseHead], None]) -> AsyncGenerator[Wire, None]:
        async for event in super().stream(request, answered):
            if event["type"] == "message_delta":
                self.said.set()
                await self.go.wait()
            yield event


async def test_a_run_that_was_about_to_end_reads_what_came(make_app: MakeApp) -> None:
    hf = make_app()
    script = Noting(lambda messages: say("first" if len(messages) == 1 else "second"))
    core_of(hf).book.substitute = model = Gated(script)
    agent = hf.agent("guide", model="scripted:")
    await hf.ensure_worker()
    run = await agent.enqueue("Go", session="s")
    await happens(model.said)
    joined = await hf.session("s").send("Wait!", agent, during="steer")
    model.go.set()
    assert joined.id == run.id
    result = await run.result()
    assert (result.text, result.turns) == ("second", 2)
    assert last_text(script.bodies[1]) == "Wait!"
    later = await hf.session("s").send("Hello", agent, during="steer")
    assert later.id != run.id
    with pytest.raises(UsageError, match="has ended"):
        await run.steer("Too late")
    await later.result()


async def test_steering_waits_while_a_tool_of_the_provider_is_open(make_app: MakeApp) -> None:
    hf = make_app()
    open_use = block("server_tool_use", id="srvtoolu_1", name="web_search", input={"query": "x"})
    found = block("web_search_tool_result", tool_use_id="srvtoolu_1", content=[])
    said: list[Part] = [ends("pause_turn", open_use), ends("end_turn", found), say("read it")]

    def step(messages: list[Wire]) -> Part:
        return said[len(messages) - 1]

    script = Noting(step, step)
    core_of(hf).book.substitute = model = Gated(script)
    agent = hf.agent("guide", model="scripted:")
    await hf.ensure_worker()
    run = await agent.enqueue("Go")
    await happens(model.said)
    await run.steer("Which one?")
    model.go.set()
    assert (await run.result()).outcome == "answered"
    first, second, third = script.bodies
    assert second["messages"][-1]["role"] == "assistant"
    assert last_text(third) == "Which one?"
    assert unmarked(first["messages"]) == unmarked(third["messages"])[:1]


async def test_a_message_joins_a_run_that_has_not_begun(labs: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    script = Noting(say("both"))
    agent, other = hf.agent("guide", model="scripted:"), hf.agent("other", model="scripted:")
    lab = await labs.use(hf, script)
    first = await agent.enqueue("One", session="s", during="coalesce")
    second = await agent.enqueue("Two", session="s", during="coalesce", key="k")
    again = await agent.enqueue("Two", session="s", during="coalesce", key="k")
    third = await other.enqueue("Three", session="s", during="coalesce")
    assert (second.id, again.id) == (first.id, first.id)
    assert third.id != first.id
    await lab.drain()
    assert [part["text"] for part in script.bodies[0]["messages"][0]["content"]] == ["One", "Two"]
    assert (await agent.enqueue("Two", session="s", during="coalesce", key="k")).id == first.id


async def test_the_policy_of_the_session_holds_unless_the_call_says_otherwise(labs: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    agent = hf.agent("guide", model="scripted:")
    lab = await labs.use(hf, Script(say("hello")))
    session = await hf.session("s", during="reject")
    first = await session.send("One", agent)
    with pytest.raises(SessionBusy):
        await session.send("Two", agent)
    assert (await session.send("Two", agent, during="queue")).id != first.id
    await session.update(during="coalesce")
    assert (await session.refresh()).during == "coalesce"
    assert (await session.send("Three", agent)).id != first.id
    with pytest.raises(UsageError, match="queue, reject"):
        await session.send("Four", agent, during="shout")  # type: ignore[arg-type]
    await lab.drain()


async def test_an_interrupted_answer_is_kept_as_far_as_it_came(make_app: MakeApp) -> None:
    hf = make_app(script_pace="50ms")
    hf.script("long", Script(say("word " * 400)))
    hf.script("short", Noting(say("yes?")))
    long, short = hf.agent("long", model="scripted:long"), hf.agent("short", model="scripted:short")
    await hf.ensure_worker()
    run = await long.enqueue("Tell me everything", session="s")
    async for event in run.stream():
        if type(event).__name__ == "TextDelta":
            break
    new = await hf.session("s").send("Stop!", short, during="interrupt")
    result, answer = await run.result(), await new.result()
    assert (result.outcome, result.limit) == ("truncated", "interrupted")
    assert result.text.startswith("word")
    assert len(result.text) < 2_000
    assert answer.text == "yes?"
    sent = core_of(hf).book.scripts["short"].bodies[0]["messages"]  # type: ignore[attr-defined]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"] == [{"type": "text", "text": result.text}]
    (turn,) = await run.turns()
    assert (turn.stop_reason, turn.usage.output_tokens > 0) == ("interrupted", True)


async def test_a_run_that_waits_for_its_tools_is_interrupted_at_once(make_app: MakeApp) -> None:
    hf = make_app()
    started, stopped = asyncio.Event(), asyncio.Event()

    @hf.tool
    async def forever() -> str:
        """Never ends."""
        started.set()
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()
        return ""

    hf.script("one", Script(calls(call("forever"), call("forever")), say("never")))
    hf.script("two", Script(say("here")))
    agent = hf.agent("one", model="scripted:one", tools=[forever])
    await hf.ensure_worker()
    run = await agent.enqueue("Go", session="s")
    await happens(started)
    await run.interrupt()
    assert (await run.result()).outcome == "truncated"
    await happens(stopped)
    told = await results(hf, run.session_id)
    assert [part["is_error"] for part in told] == [True, True]
    after = await hf.agent("two", model="scripted:two").run("And?", session="s")
    assert after.text == "here"
    await eventually(lambda: _none_open(hf))


async def _none_open(hf: Holdfast) -> bool:
    return all(row.state in ("succeeded", "failed", "cancelled") for row in await hf.jobs.list())


async def test_a_run_that_has_not_begun_is_interrupted_and_its_message_kept(labs: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    script = Noting(say("hello"))
    agent = hf.agent("guide", model="scripted:")
    lab = await labs.use(hf, script)
    first = await agent.enqueue("One", session="s", delay="1h")
    second = await agent.enqueue("Two", session="s", during="interrupt")
    await lab.drain()
    assert (await first.result()).outcome == "truncated"
    assert (await second.result()).text == "hello"
    assert [part["text"] for part in script.bodies[0]["messages"][0]["content"]] == ["One", "Two"]


async def test_a_run_that_waits_behind_another_is_interrupted_and_its_message_dropped(labs: Labs) -> None:
    """Nothing is said into the middle of another run."""
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    script = Noting(say("hello"))
    agent = hf.agent("guide", model="scripted:")
    lab = await labs.use(hf, script)
    first = await agent.enqueue("One", session="s", delay="1h")
    second = await agent.enqueue("Two", session="s")
    await second.interrupt()
    assert (await second.result()).limit == "interrupted"
    await lab.clock.advance("1h")
    await lab.drain()
    assert (await first.result()).text == "hello"
    (message, _) = await hf.session("s").messages()
    assert [part["text"] for part in message.blocks] == ["One"]


async def test_no_message_is_lost_between_a_run_and_its_end(make_app: MakeApp) -> None:
    """However steering and the end of a run meet: each message is read by the run it joined, or begins one."""
    hf = make_app()
    read: list[str] = []

    class Reading(Script):
        def turn(self, body: dict[str, Any]) -> Any:
            from holdfast.models.script import Say, ScriptedTurn

            texts = [
                part["text"]
                for message in body["messages"]
                if message["role"] == "user"
                for part in message["content"]
                if part["type"] == "text"
            ]
            read[:] = texts
            return ScriptedTurn((Say("read"),))

    hf.script("reading", Reading())
    agent = hf.agent("reader", model="scripted:reading")
    await hf.ensure_worker()
    session = await hf.session("s")
    sent = [f"message {number}" for number in range(40)]
    runs = []
    for text in sent:
        runs.append(await session.send(text, agent, during="steer"))
        await asyncio.sleep(0.003)
    for run in runs:
        await run.result()
    assert sorted(read) == sorted(sent)


@pytest.mark.parametrize("during", ["queue", "coalesce", "steer", "interrupt", "reject"])
async def test_a_message_that_is_sent_again_under_its_key_is_said_once(labs: Labs, during: Any) -> None:
    """The first one begins a run, and its repetition finds that run not begun yet."""
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    script = Noting(say("done"))
    lab = await labs.use(hf, script)
    agent = hf.agent("guide", model="scripted:")
    first = await agent.enqueue("one", session="s", key="k", during=during)
    again = await agent.enqueue("one", session="s", key="k", during=during)
    assert again.id == first.id
    joins = during in ("coalesce", "steer")
    if joins:
        for _ in range(2):
            assert (await agent.enqueue("two", session="s", key="k2", during=during)).id == first.id
    await settle(lab, first)
    assert (await agent.enqueue("one", session="s", key="k", during=during)).id == first.id
    (body,) = script.bodies
    assert [block["text"] for block in body["messages"][-1]["content"]] == (["one", "two"] if joins else ["one"])
