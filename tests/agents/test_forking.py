"""Forks: a session or a run that goes on from some place, with what is to be different, and without a second effect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.api.agent import Agent
from holdfast.agents.api.run import Run
from holdfast.app import core_of
from holdfast.errors import IdempotencyConflict, NotFound, UsageError
from holdfast.models.script import Script, call, calls, say, think
from holdfast.testing import Lab, Labs
from tests.support.agents import Noting, results, settle
from tests.support.compaction import SMALL, Strict, talker

LONG = "x" * 70_000  # so large that it is stored once


class Desk:
    """An agent with a tool of each effect, and what they did."""

    def __init__(self, **options: Any) -> None:
        self.hf = Holdfast("sqlite:////nowhere/at-all.db")
        self.did: list[str] = []

        @self.hf.tool(effect="read")
        def look(what: str) -> str:
            """Look."""
            self.did.append(f"look {what}")
            return f"saw {what}"

        @self.hf.tool
        def book(seat: str) -> str:
            """Book."""
            self.did.append(f"book {seat}")
            return f"booked {seat} as number {len(self.did)}"

        @self.hf.tool(effect="once")
        def pay(amount: int) -> str:
            """Pay."""
            self.did.append(f"pay {amount}")
            return f"paid {amount}"

        self.agent: Agent[str] = self.hf.agent("desk", model="scripted:", tools=[look, book, pay], **options)


ALL = (call("look", what="seats"), call("book", seat="4A"), call("pay", amount=9), say("done"))


async def played(lab: Lab, desk: Desk, prompt: str = "Go", **options: Any) -> Run[str]:
    run = await desk.agent.enqueue(prompt, **options)
    await lab.drain()
    assert run.state == "completed"
    return run


async def texts(hf: Holdfast, session: str | None) -> list[tuple[str, str]]:
    assert session is not None
    return [(message.kind, message.text) for message in await hf.sessions[session].messages()]


async def test_a_session_is_forked_whole_and_each_goes_its_own_way(labs: Labs) -> None:
    desk = Desk()
    lab = await labs.use(desk.hf, Script(say("hello")))
    session = await desk.hf.session("a", metadata={"for": "ann"})
    await session.send("One", desk.agent)
    await lab.drain()
    fork = await session.fork(key="b")
    assert (fork.id != session.id, fork.key) == (True, "b")
    assert await texts(desk.hf, fork.id) == [("prompt", "One"), ("answer", "hello")]
    assert (await fork.refresh()).metadata == {"for": "ann"}
    await fork.send("Two", desk.agent)
    await lab.drain()
    assert [text for _, text in await texts(desk.hf, fork.id)] == ["One", "hello", "Two", "hello"]
    assert [text for _, text in await texts(desk.hf, session.id)] == ["One", "hello"]
    assert (await session.fork(key="b")).id == fork.id
    with pytest.raises(UsageError, match="not a fork of session"):
        await fork.fork(key="a")


async def test_a_session_is_not_cut_between_a_call_and_its_answer(labs: Labs) -> None:
    desk = Desk()
    lab = await labs.use(desk.hf, Script(call("look", what="x"), say("seen")))
    run = await played(lab, desk)
    session = desk.hf.sessions[str(run.session_id)]
    with pytest.raises(UsageError, match="calls tools whose answers come after it"):
        await session.fork(2)
    with pytest.raises(UsageError, match="no message at or before"):
        await session.fork(0)
    fork = await session.fork(3)
    assert [message.kind for message in await fork.messages()] == ["prompt", "answer", "results"]
    await fork.send("And?", desk.agent)
    await lab.drain()
    assert [row.state for row in await fork.runs()] == ["completed"]


async def test_a_session_whose_run_waits_for_tools_is_forked_without_the_open_call(labs: Labs) -> None:
    desk = Desk()

    @desk.hf.tool(effect="once", approve=True)
    def fire() -> str:
        """Fire."""
        return "fired"

    agent = desk.hf.agent("risky", model="scripted:", tools=[fire])
    lab = await labs.use(desk.hf, Script(call("fire"), say("done")))
    run = await agent.enqueue("Go")
    await lab.drain()
    assert run.state == "awaiting_input"
    fork = await desk.hf.sessions[str(run.session_id)].fork()
    assert [message.kind for message in await fork.messages()] == ["prompt"]
    with pytest.raises(UsageError, match="not answered yet"):
        await run.fork(2)
    again = await run.fork(1)
    await lab.drain()
    assert again.state == "awaiting_input"


@pytest.mark.parametrize("first", ["original", "fork"])
async def test_deleting_one_of_the_two_leaves_the_other_whole(labs: Labs, first: str) -> None:
    desk = Desk()
    lab = await labs.use(desk.hf, Script(say("short")))
    run = await played(lab, desk, LONG)
    original = desk.hf.sessions[str(run.session_id)]
    fork = await original.fork()
    forked = await run.fork()
    await lab.drain()
    before = await texts(desk.hf, fork.id)
    if first == "original":
        await original.delete()
        assert await texts(desk.hf, fork.id) == before == [("prompt", LONG), ("answer", "short")]
        assert await texts(desk.hf, forked.session_id) == before
        await fork.send("On", desk.agent)
        await lab.drain()
        assert len(await fork.messages()) == 4
    else:
        await fork.delete()
        await desk.hf.sessions[str(forked.session_id)].delete()
        assert await texts(desk.hf, original.id) == before
        assert (await run.refresh()).state == "completed"


async def test_a_run_is_played_again_from_a_turn_with_another_model(labs: Labs) -> None:
    desk = Desk()
    script = Noting(*ALL)
    lab = await labs.use(desk.hf, script)
    run = await played(lab, desk, variables={"who": "ann"}, metadata={"n": 1})
    fork = await run.fork(3, model="scripted:other")
    await lab.drain()
    row, before = await fork.refresh(), await run.refresh()
    assert (row.state, row.turns, row.version, row.agent) == ("completed", 4, before.version, before.agent)
    assert (row.variables, row.metadata, row.root, row.session != before.session) == (
        before.variables,
        before.metadata,
        fork.id,
        True,
    )
    assert [body["model"] for body in script.bodies] == ["scripted:"] * 4 + ["scripted:other"] * 2
    assert script.bodies[4]["messages"][:5] == script.bodies[2]["messages"]
    assert [turn.number for turn in await fork.turns()] == [3, 4]
    assert await texts(desk.hf, fork.session_id) == await texts(desk.hf, run.session_id)


async def test_a_fork_never_repeats_an_effect_by_itself(labs: Labs) -> None:
    desk = Desk()
    lab = await labs.use(desk.hf, Script(*ALL))
    run = await played(lab, desk)
    assert desk.did == ["look seats", "book 4A", "pay 9"]
    fork = await run.fork()
    await lab.drain()
    assert fork.state == "completed"
    assert desk.did == ["look seats", "book 4A", "pay 9", "look seats"]
    assert await results(desk.hf, fork.session_id) != []
    contents = [
        [block["content"] for block in await results(desk.hf, each)] for each in (run.session_id, fork.session_id)
    ]
    assert contents[0] == contents[1]
    live = await run.fork(tools="live")
    await lab.drain()
    assert live.state == "completed"
    assert desk.did[4:] == ["look seats", "book 4A", "pay 9"]


async def test_equal_calls_take_their_records_in_order(labs: Labs) -> None:
    desk = Desk()
    twice = calls(call("book", seat="1"), call("book", seat="1"))
    lab = await labs.use(desk.hf, Script(twice, call("book", seat="1"), say("done")))
    run = await played(lab, desk)
    told = sorted(block["content"] for block in await results(desk.hf, run.session_id))
    assert len(set(told)) == 3
    first, fork = await run.fork(1), await run.fork(2)
    await lab.drain()
    for each in (first, fork):
        assert [block["content"] for block in await results(desk.hf, each.session_id)] == [
            block["content"] for block in await results(desk.hf, run.session_id)
        ]
    again = await fork.fork(1)  # a fork of a fork has the records of both
    await lab.drain()
    assert again.state == "completed"
    assert len(desk.did) == 3


async def test_asking_asks_about_every_effect_and_runs_what_is_approved(labs: Labs) -> None:
    desk = Desk()
    lab = await labs.use(desk.hf, Script(*ALL))
    run = await played(lab, desk)
    fork = await run.fork(tools="ask")
    await lab.drain()
    assert (fork.state, desk.did[3:]) == ("awaiting_input", ["look seats"])
    (inquiry,) = await fork.inquiries()
    assert (inquiry.kind, inquiry.name) == ("approval", "book")
    await desk.hf.approve(inquiry.id)
    await lab.drain()
    assert desk.did[4:] == ["book 4A"]
    (inquiry,) = await fork.inquiries()
    await desk.hf.deny(inquiry.id, message="no")
    await lab.drain()
    assert (fork.state, desk.did[5:]) == ("completed", [])


async def test_another_prompt_is_answered_and_what_differs_is_asked_about(labs: Labs) -> None:
    desk = Desk()

    def seat(messages: list[Any]) -> Any:
        return call("book", seat=messages[0]["content"][0]["text"])

    lab = await labs.use(desk.hf, Script(seat, say("done")))
    run = await played(lab, desk, "4A")
    fork = await run.fork(prompt="5B")
    await lab.drain()
    assert fork.state == "awaiting_input"
    assert await texts(desk.hf, fork.session_id) == [("prompt", "5B"), ("answer", "")]
    assert desk.did == ["book 4A"]
    with pytest.raises(UsageError, match="from the beginning"):
        await run.fork(2, prompt="5B")


async def test_a_changed_result_is_what_the_model_reads(labs: Labs) -> None:
    desk = Desk()
    script = Noting(*ALL)
    lab = await labs.use(desk.hf, script)
    run = await played(lab, desk)
    fork = await run.fork(results={"look": "saw nothing"})
    await lab.drain()
    assert [turn.number for turn in await fork.turns()] == [2, 3, 4]
    told = [block["content"] for block in await results(desk.hf, fork.session_id)]
    assert told[0] == "saw nothing"
    assert desk.did == ["look seats", "book 4A", "pay 9"]
    first = (await run.calls())[0]
    by_id = await run.fork(results={first.id: {"seats": 0}})
    assert (await results(desk.hf, by_id.session_id))[0]["content"] == '{"seats":0}'
    with pytest.raises(UsageError, match="no call 'fly'"):
        await run.fork(results={"fly": ""})
    with pytest.raises(UsageError, match="no call 'book'"):
        await run.fork(2, results={"book": ""})


async def test_a_name_that_was_called_twice_does_not_say_which_call(labs: Labs) -> None:
    desk = Desk()
    lab = await labs.use(desk.hf, Script(calls(call("look", what="a"), call("look", what="b")), say("done")))
    run = await played(lab, desk)
    with pytest.raises(UsageError, match="called 2 times"):
        await run.fork(results={"look": ""})


async def test_where_a_run_cannot_be_forked_is_said(labs: Labs) -> None:
    desk = Desk()
    lab = await labs.use(desk.hf, Script(*ALL))
    run = await desk.agent.enqueue("Go")
    with pytest.raises(UsageError, match="has not begun"):
        await run.fork()
    await lab.drain()
    for at in (0, 6, -1):
        with pytest.raises(UsageError):
            await run.fork(at)
    with pytest.raises(UsageError, match="ended with turn"):
        await run.fork(5)
    with pytest.raises(UsageError, match="tools must be one of"):
        await run.fork(tools="never")  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        await desk.hf.runs["018f0000-0000-7000-8000-000000000000"].fork()
    with pytest.raises(NotFound):
        await desk.hf.tenant("other").runs[run.id].fork()


async def test_a_key_makes_repeated_forks_one(labs: Labs) -> None:
    desk = Desk()
    lab = await labs.use(desk.hf, Script(*ALL))
    run = await played(lab, desk)
    first, second = [await run.fork(2, key="k") for _ in range(2)]
    assert (first.id, first.session_id) == (second.id, second.session_id)
    with pytest.raises(IdempotencyConflict):
        await run.fork(3, key="k")


async def test_a_run_that_failed_goes_on_where_it_failed(labs: Labs) -> None:
    desk = Desk()
    broken = [True]

    def last(_messages: list[Any]) -> Any:
        if broken:
            raise UsageError("not today")
        return say("mended")

    lab = await labs.use(desk.hf, Script(call("book", seat="4A"), last))
    run = await desk.agent.enqueue("Go")
    (row,) = await settle(lab, run)
    assert (row.state, row.turns) == ("failed", 1)
    broken.clear()
    fork = await run.fork(2)
    await lab.drain()
    assert ((await fork.result()).text, desk.did) == ("mended", ["book 4A"])


async def test_a_child_agent_is_answered_from_the_record(labs: Labs) -> None:
    desk = Desk()
    boss = desk.hf.agent("boss", model="scripted:", agents=[desk.agent])
    by_role = _ByAgent(
        boss=Script(call("desk", task="Book"), say("all done")), desk=Script(call("book", seat="4A"), say("booked"))
    )
    lab = await labs.use(desk.hf, by_role)
    run = await boss.enqueue("Go")
    await lab.drain()
    assert (run.state, desk.did) == ("completed", ["book 4A"])
    fork = await run.fork()
    await lab.drain()
    assert (fork.state, desk.did) == ("completed", ["book 4A"])
    assert await fork.children() == []
    (child,) = await run.children()
    with pytest.raises(UsageError, match="the root of both"):
        await desk.hf.runs[child.id].fork()
    asked = await run.fork(tools="ask")
    await lab.drain()
    (inquiry,) = await asked.inquiries()
    assert inquiry.name == "desk"
    with pytest.raises(UsageError, match="about an agent"):
        await desk.hf.approve(inquiry.id, input={"task": "Else"})
    await desk.hf.approve(inquiry.id)
    await lab.drain()
    (below,) = await asked.children()
    (deeper,) = await desk.hf.runs[below.id].inquiries()  # what it does in turn is asked about too
    assert (deeper.name, desk.did) == ("book", ["book 4A"])
    answered = await run.fork(tools="ask")
    await lab.drain()
    (inquiry,) = await answered.inquiries()
    await desk.hf.answer(inquiry.id, "as if booked")
    await lab.drain()
    assert (answered.state, [row.state for row in await answered.children()]) == ("completed", ["completed"])


class _ByAgent(Script):
    """Plays by who is asked: only the boss has an agent to call."""

    def __init__(self, boss: Script, desk: Script) -> None:
        super().__init__()
        self._boss, self._desk = boss, desk

    def turn(self, body: Any) -> Any:
        names = {tool["name"] for tool in body["tools"]}
        return (self._boss if "desk" in names else self._desk).turn(body)


class Thinker:
    """A run that thought before every step, against a model that refuses what the provider refuses."""

    def __init__(self) -> None:
        self.desk = Desk()
        look, thought = ("a", "b"), ("first", "second", "third")
        steps = (think(thought[0]), call("look", what=look[0]), think(thought[1]), call("look", what=look[1]))
        self.strict = Strict(
            {"scripted:": Script(*steps, think(thought[2]), say("x")), "scripted:b": Script(*steps, say("y"))}
        )
        core_of(self.desk.hf).book.substitute = self.strict

    def thoughts(self, request: int) -> list[str]:
        messages = self.strict.requests[request].messages
        blocks = [block for message in messages for block in message["content"]]
        return [block["thinking"] for block in blocks if block["type"] == "thinking"]


async def test_thinking_is_kept_byte_for_byte_before_a_change_and_left_out_after_it(labs: Labs) -> None:
    thinker = Thinker()
    desk, strict = thinker.desk, thinker.strict
    lab = await labs.use(desk.hf)
    run = await played(lab, desk)
    same = await run.fork(3)
    await lab.drain()
    assert strict.requests[3].messages == strict.requests[2].messages
    assert thinker.thoughts(3) == ["first", "second"]
    first = (await run.calls())[0]
    changed = await run.fork(3, results={first.id: "other"})
    await lab.drain()
    assert thinker.thoughts(4) == ["first"]
    other = await run.fork(3, model="scripted:b")
    await lab.drain()
    assert thinker.thoughts(5) == []
    assert [each.state for each in (same, changed, other)] == ["completed"] * 3


async def test_thinking_outlives_the_run_that_thought_it(labs: Labs) -> None:
    thinker = Thinker()
    desk, strict = thinker.desk, thinker.strict
    lab = await labs.use(desk.hf)
    run = await played(lab, desk)
    session = desk.hf.sessions[str(run.session_id)]
    fork, forked = await session.fork(), await run.fork(3)
    await session.delete()
    await lab.drain()
    assert (await forked.refresh()).state == "completed"
    assert strict.requests[3].messages == strict.requests[2].messages
    later = await fork.send("On", desk.agent)
    await lab.drain()
    assert later.state == "completed"
    assert thinker.thoughts(4)[:3] == ["first", "second", "third"]


@pytest.mark.parametrize("strategy", ["hybrid", "summarize"])
async def test_what_was_compacted_since_is_forked_as_it_was(labs: Labs, strategy: Any) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    agent, strict = talker(hf)
    lab = await labs.use(hf)
    session = await hf.session("long")
    runs = []
    for number in range(4):
        runs.append(await session.send(f"Question {number}", agent))
        await lab.drain()
        await lab.clock.advance("1s")
    asked = [request for request in strict.requests if request.model == agent.spec.model]
    await session.compact(replace(SMALL, strategy=strategy))
    await lab.clock.advance("1s")
    fork = await runs[1].fork(2)
    await lab.drain()
    assert fork.state == "completed"
    turn = (await runs[0].refresh()).turns + 1
    assert strict.requests[-1].messages == asked[turn].messages  # byte for byte, thinking included
    after = await session.send("Later", agent)
    await lab.drain()
    assert after.state == "completed"
    seen = strict.requests[-1].messages
    again = await after.fork((await after.refresh()).turns)
    await lab.drain()
    assert (again.state, strict.requests[-1].messages) == ("completed", seen)
    copy = await session.fork()
    with pytest.raises(UsageError, match="restore it there"):
        await copy.restore()
    await session.restore()
    back = await after.fork((await after.refresh()).turns)
    await lab.drain()
    assert back.state == "completed"
    assert len(str(strict.requests[-1].messages)) > len(str(seen))
