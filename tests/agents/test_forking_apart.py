"""A fork and its original do not touch each other, whatever happens to one of them, and when."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Agent, Holdfast
from holdfast.errors import NotFound
from holdfast.models.script import Script, call, refuse, say
from holdfast.testing import Labs
from tests.support.agents import Noting, results
from tests.support.apps import MakeApp


def booking(hf: Holdfast) -> tuple[Agent[str], list[str]]:
    """An agent that books, and what it has booked."""
    did: list[str] = []

    @hf.tool
    def book(seat: str) -> str:
        """Book."""
        did.append(seat)
        return f"booked {seat}"

    return hf.agent("desk", model="scripted:", tools=[book]), did


async def test_an_original_that_is_declined_later_leaves_the_fork_alone(labs: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")

    @hf.tool(approve=True)
    def ask_first() -> str:
        """Ask."""
        return "asked"

    script = Noting(call("ask_first"), refuse("bio"))
    agent = hf.agent("a", model="scripted:", tools=[ask_first])
    lab = await labs.use(hf, script)
    run = await agent.enqueue("Go", session="s")
    await lab.drain()
    session, fork = await hf.session("s").fork(), await run.fork(tools="ask")
    await hf.approve(run.id)
    await lab.drain()
    assert (await run.result()).outcome == "refused"
    assert [message.live for message in await session.messages()] == [True]
    assert [message.live for message in await hf.sessions[str(fork.session_id)].messages()] == [True, True]
    await hf.approve(fork.id)
    await lab.drain()
    assert (await fork.result()).outcome == "refused"  # and its own exchange is not sent again
    assert not any(message.live for message in await hf.sessions[str(fork.session_id)].messages())
    again = await fork.fork(2)  # what was declined can be tried again all the same
    assert [message.live for message in await hf.sessions[str(again.session_id)].messages()] == [True] * 3


async def test_without_its_original_a_fork_asks_about_every_effect(labs: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    desk, did = booking(hf)
    lab = await labs.use(hf, Script(call("book", seat="1"), say("done")))
    run = await desk.enqueue("Go")
    await lab.drain()
    fork = await run.fork()
    await hf.sessions[str(run.session_id)].delete()
    await lab.drain()
    assert (fork.state, did) == ("awaiting_input", ["1"])


async def test_a_fork_is_answered_with_what_was_really_done_before_it(labs: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    did: list[str] = []

    @hf.tool
    def book(seat: str) -> str:
        """Book."""
        did.append(seat)
        return f"number {len(did)}"

    desk = hf.agent("desk", model="scripted:", tools=[book])
    lab = await labs.use(hf, Script(*(call("book", seat="1") for _ in range(4)), say("done")))
    run = await desk.enqueue("Go")
    await lab.drain()
    late = await run.fork(4, tools="live")  # the original's first three, and a fifth of its own
    await lab.drain()
    early = await late.fork(2, tools="live")  # the first, and three more
    await lab.drain()
    last = await early.fork(1)
    await lab.drain()
    told = [[block["content"] for block in await results(hf, each.session_id)] for each in (run, late, early, last)]
    assert told[0] == ["number 1", "number 2", "number 3", "number 4"]
    assert told[1] == ["number 1", "number 2", "number 3", "number 5"]
    assert told[2] == ["number 1", "number 6", "number 7", "number 8"]
    assert told[3] == told[2]
    assert len(did) == 8


@pytest.mark.long
async def test_a_fork_that_is_killed_anywhere_repeats_no_effect_and_buys_nothing_twice(
    labs: Labs, dialect: str
) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    desk, did = booking(hf)
    script = Script(call("book", seat="1"), call("book", seat="1"), say("done"))
    async for lab in labs.crash_everywhere(hf, script, at_most=20 if dialect == "sqlite" else 5):
        did.clear()
        run = await desk.enqueue("Go")
        await run.result()
        made = len(did)
        fork = await run.fork()
        assert (await fork.result()).text == "done"
        assert len(did) == made
        assert lab.rebought == []
        assert await results(hf, fork.session_id) != []


async def test_a_session_that_is_deleted_while_it_is_forked_is_forked_whole_or_not(make_app: MakeApp) -> None:
    hf = make_app()
    agent = hf.agent("a", model="scripted:")
    long = "x" * 70_000
    await hf.ensure_worker()
    for number in range(8):
        session = await hf.session(f"s{number}")
        await agent.run(f"{long}{number}", session=session)
        forked, deleted = await asyncio.gather(session.fork(), session.delete(), return_exceptions=True)
        assert deleted is None
        if isinstance(forked, BaseException):
            assert isinstance(forked, NotFound)
            continue
        prompt, answer = await forked.messages()
        assert prompt.text == f"{long}{number}"
        assert answer.text
        with pytest.raises(NotFound):
            await session.refresh()


async def test_two_forks_under_one_key_at_once_are_one(make_app: MakeApp) -> None:
    hf = make_app()
    agent = hf.agent("a", model="scripted:")
    await hf.ensure_worker()
    session = await hf.session("s")
    result = await agent.run("Go", session=session)
    run = hf.runs[result.run_id]
    sessions = await asyncio.gather(*(session.fork(key="k") for _ in range(4)))
    runs = await asyncio.gather(*(run.fork(key="k") for _ in range(4)))
    assert len({each.id for each in sessions}) == len({each.id for each in runs}) == 1
    assert len(await sessions[0].messages()) == 2
    assert (await runs[0].result()).text


async def test_an_interrupted_run_is_replayed_to_where_it_was_cut(make_app: MakeApp) -> None:
    hf = make_app(script_pace="50ms")
    hf.script("long", Script(say("word " * 400)))
    agent = hf.agent("a", model="scripted:long")
    await hf.ensure_worker()
    run = await agent.enqueue("Tell me everything")
    async for event in run.stream():
        if type(event).__name__ == "TextDelta":
            break
    await run.interrupt()
    assert (await run.result()).outcome == "truncated"
    replayed = await hf.runs.replay(run)
    assert replayed.differences == ()
