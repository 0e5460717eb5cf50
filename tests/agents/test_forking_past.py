"""Which history a fork begins with: the one its run saw, told by what is stored, never by the time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import Compaction, Holdfast
from holdfast.models.script import Script, say
from holdfast.testing import Labs
from tests.support.compaction import SMALL, talk, talker


@pytest.mark.parametrize("strategy", ["hybrid", "summarize"])
async def test_what_a_run_saw_is_known_while_the_clock_stands_still(labs: Labs, tmp_path: Path, strategy: Any) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    agent, strict = talker(hf)
    lab = await labs.use(hf)
    session = await hf.session("long")
    await talk(session, agent, 4)
    before = await session.send("Before?", agent)
    await lab.drain()
    asked = strict.asked(agent.spec.model)[-2:]
    await session.compact(replace(SMALL, strategy=strategy))
    after = await session.send("After?", agent)
    await lab.drain()
    asked += strict.asked(agent.spec.model)[-2:]
    assert len(asked[2].messages) < len(asked[0].messages) or len(str(asked[2])) < len(str(asked[0]))
    for run, then in ((before, asked[:2]), (after, asked[2:])):
        for turn, request in enumerate(then, 1):
            fork = await run.fork(turn)
            await lab.drain()
            assert fork.state == "completed"
            first = strict.asked(agent.spec.model)[turn - 3]
            assert first.messages == request.messages
        assert (await hf.runs.replay(run)).differences == ()
        await run.export(tmp_path / f"{run.id}.db")
        async with Holdfast(f"sqlite:///{tmp_path / f'{run.id}.db'}", embedded=False) as elsewhere:
            assert (await elsewhere.runs.replay(run.id)).differences == ()


async def test_what_was_undone_since_leaves_the_compactions_below_it(labs: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    agent, strict = talker(hf)
    lab = await labs.use(hf)
    session = await hf.session("long")
    await talk(session, agent, 4)
    await session.compact(replace(SMALL, strategy="summarize"))
    await talk(session, agent, 4)
    await session.compact(replace(SMALL, strategy="summarize"))
    run = await session.send("Now?", agent)
    await lab.drain()
    await session.restore()
    await run.fork()
    await lab.drain()
    sent = [str(message) for message in strict.requests[-2].messages]
    assert sum("To know the weather" in text for text in sent) == 1
    assert sum("Question 0?" in text for text in sent) == 1  # the second one: the first is in the summary


async def test_a_run_that_ended_before_it_asked_is_forked_as_it_stood(labs: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    agent, strict = talker(hf)
    lab = await labs.use(hf)
    session = await hf.session("long")
    await talk(session, agent, 4)
    run = await session.send("Wait", agent)
    await run.interrupt()
    await lab.drain()
    assert ((await run.refresh()).turns, (await run.refresh()).outcome) == (0, "truncated")
    await session.compact(replace(SMALL, strategy="summarize"))
    fork = await run.fork()
    await lab.drain()
    assert fork.state == "completed"
    assert "Question 0?" in str(strict.requests[-2].messages)


async def test_a_fork_of_a_compacted_session_is_as_small_as_that_one(labs: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    small = Compaction(window=4_000, target_tokens=100, preserve_last=2, protected_tokens=0, summarizer="scripted:sum")
    agent = hf.agent("talker", model="scripted:talk")
    said = Script(lambda _messages: say("rain " * 100))
    await labs.use(hf, Script.by_model({"scripted:talk": said, "scripted:sum": Script(say("Rain."))}))
    session = await hf.session("long")
    for number in range(6):
        await agent.run(f"{number} " * 600, session=session)
    large = (await session.compaction_stats(small)).total_tokens
    await session.compact(small)
    after, fork = await session.compaction_stats(small), await (await session.fork()).compaction_stats(small)
    assert (fork.total_tokens, fork.source) == (after.total_tokens, after.source)
    assert after.total_tokens < large / 2
    result = await agent.run("And now?", session=session)
    grown = await session.compaction_stats(small)
    assert grown.source == "usage"  # while the clock stands still, too
    assert (
        grown.total_tokens
        == sum((result.usage.input_tokens, result.usage.cache_write_tokens, result.usage.cache_read_tokens))
        + result.usage.output_tokens
    )
    assert (await (await session.fork()).compaction_stats(small)).total_tokens == grown.total_tokens
