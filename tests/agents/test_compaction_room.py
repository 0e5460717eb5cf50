"""Room for a call: every call is looked at before it is sent, and nothing is concluded from an estimate alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast import Compaction, Holdfast, Limits
from holdfast.agents.api.agent import Agent
from holdfast.app import core_of
from holdfast.models.request_view import CONTINUE
from holdfast.models.script import Script, call, ends, refuse, say
from holdfast.models.scripted import ScriptedModel
from holdfast.testing import Lab, Labs
from tests.support.agents import settle
from tests.support.compaction import SUMMARY, Strict

TIGHT = Compaction(window=3_000, target_tokens=100, preserve_last=0, protected_tokens=0, summarizer="scripted:sum")


def speaker(hf: Holdfast, script: Script, **options: Any) -> tuple[Agent[str], Strict]:
    @hf.tool(effect="read")
    def look(words: int) -> str:
        """Look."""
        return "wind " * words

    model = Strict({"scripted:talk": script, "scripted:sum": Script(say(SUMMARY))})
    core_of(hf).book.substitute = model
    agent = hf.agent(
        "speaker", model="scripted:talk", tools=[look], **{"max_tokens": 500, "compaction": TIGHT, **options}
    )
    return agent, model


async def full(lab: Lab, agent: Agent[str], session: Any) -> None:
    for _ in range(4):
        await settle(lab, await session.send("q " * 300, agent))


@pytest.mark.parametrize("counts", ["fewer", "as many", "not at all"])
async def test_a_call_that_does_not_fit_by_estimate_alone_is_counted_before_anything_is_concluded(
    labs: Labs, counts: str
) -> None:
    hf = Holdfast("sqlite:///:memory:")
    agent, model = speaker(hf, Script(say("Read.")))
    model.counting = {"fewer": 1_000, "as many": 5_000}.get(counts)
    model.uncounted = counts == "not at all"
    lab = await labs.use(hf)
    run = await agent.enqueue("    x = 1\n" * 1_500)
    await settle(lab, run)
    result = await run.result()
    assert model.counts == 1
    if counts == "as many":
        assert (result.outcome, result.limit, model.requests) == ("truncated", "context_window", [])
    else:
        assert (result.outcome, len(model.asked("scripted:talk"))) == ("answered", 1)


@pytest.mark.parametrize("counts", ["fewer", "not at all"])
async def test_no_summary_is_bought_on_an_estimate(labs: Labs, counts: str) -> None:
    hf = Holdfast("sqlite:///:memory:")
    agent, model = speaker(hf, Script(lambda _: say("rain " * 100)))
    lab = await labs.use(hf)
    session = await hf.session("s")
    await full(lab, agent, session)
    model.uncounted, model.counting = counts == "not at all", 1_000
    await settle(lab, await session.send("word " * 1_600, agent))
    assert [row for row in await session.compactions() if row.trigger == "before_call"] == []


async def test_a_message_that_joins_a_run_is_measured_with_it(labs: Labs) -> None:
    hf = Holdfast("sqlite:///:memory:")
    agent, model = speaker(hf, Script(lambda _: say("rain " * 100)))
    lab = await labs.use(hf)
    session = await hf.session("s")
    await full(lab, agent, session)
    run = await session.send("hello", agent)
    assert (await session.send("word " * 1_600, agent, during="coalesce")).id == run.id
    await settle(lab, run)
    (row,) = await session.compactions()
    assert (row.trigger, row.run) == ("before_call", run.id)
    assert row.tokens_before > 3_000
    assert SUMMARY.splitlines()[1] in str(model.asked("scripted:talk")[-1].messages)


HYBRID = Compaction(
    window=10_000, target_tokens=500, preserve_last=0, protected_tokens=0, trigger=0.8, summarizer="scripted:sum"
)


@pytest.mark.parametrize("helps", [True, False])
async def test_when_no_summary_comes_outputs_make_room_before_a_call(labs: Labs, helps: bool) -> None:
    hf = Holdfast("sqlite:///:memory:")
    words = 600 if helps else 1
    answers = Script(call("look", words=words), say("talk " * (500 if helps else 1_200)))
    agent, model = speaker(hf, answers, compaction=None, max_tokens=2_000)
    careful = hf.agent("careful", model="scripted:talk", max_tokens=2_000, compaction=HYBRID)
    model.models["scripted:sum"] = ScriptedModel(Script(refuse("harm")))
    lab = await labs.use(hf)
    session = await hf.session("s")
    for number in range(4):
        await settle(lab, await session.send(f"q{number}", agent))
    run = await session.send("word " * 4_000, careful)
    await settle(lab, run)
    result, rows = await run.result(), [row for row in await session.compactions() if row.run == run.id]
    assert "failed" in {row.state for row in rows}
    done = [(row.removed, row.pruned) for row in rows if row.state == "done"]
    if helps:
        assert (result.outcome, done) == ("answered", [(0, 4)])
    else:
        assert (result.outcome, result.limit, done) == ("truncated", "context_window", [])


async def test_when_no_summary_comes_outputs_make_room_after_a_run(labs: Labs) -> None:
    hf = Holdfast("sqlite:///:memory:")
    config = replace(HYBRID, trigger=0.2)
    agent, model = speaker(hf, Script(call("look", words=1_500), say("talk " * 500)), compaction=config)
    model.models["scripted:sum"] = ScriptedModel(Script(refuse("harm")))
    lab = await labs.use(hf)
    session = await hf.session("s")
    await settle(lab, await session.send("q", agent))
    rows = await session.compactions()
    assert sorted((row.state, row.trigger, row.pruned) for row in rows) == [
        ("done", "after_run", 1),
        ("failed", "after_run", 0),
    ]


@pytest.mark.parametrize("whose", ["root", "child"])
async def test_a_tool_loop_that_outgrows_the_window_ends_with_what_it_has(labs: Labs, whose: str) -> None:
    hf = Holdfast("sqlite:///:memory:")
    agent, model = speaker(hf, Script(*[call("look", words=600)] * 9, say("never")))
    top = hf.agent("top", model="scripted:top", agents=[agent])
    model.play("scripted:top", Script(call("speaker", task="Go."), say("so")))
    lab = await labs.use(hf)
    session = await hf.session("s")
    run = await session.send("Go.", agent if whose == "root" else top)
    await settle(lab, run)
    result = await run.result()
    asked = model.asked("scripted:talk")
    assert 2 <= len(asked) < 9
    if whose == "root":
        assert (result.outcome, result.limit, result.turns) == ("truncated", "context_window", len(asked))
        (row,) = await session.compactions()
        assert (row.trigger, row.state) == ("after_run", "done")
        assert (await session.messages())[-1].kind in ("results", "summary"), "no call is left open"
    else:
        assert result.outcome == "answered"
        (below,) = [each for each in await hf.runs.list() if each.parent is not None]
        assert (below.state, below.outcome, below.limited) == ("completed", "truncated", "context_window")


async def test_far_from_the_window_a_turn_of_a_tool_loop_costs_no_more(labs: Labs) -> None:
    hf = Holdfast("sqlite:///:memory:")
    agent, model = speaker(hf, Script(*[call("look", words=10)] * 3, say("done")), compaction=Compaction())
    lab = await labs.use(hf)
    await settle(lab, await agent.enqueue("Go."))
    assert (len(model.requests), model.counts) == (4, 0)


@pytest.mark.parametrize("verdict", ["approve", "deny"])
async def test_a_person_may_have_it_sent_all_the_same(labs: Labs, verdict: str) -> None:
    hf = Holdfast("sqlite:///:memory:")
    script = Script(*[call("look", words=600)] * 5, say("done"))
    agent, model = speaker(hf, script, limits=Limits(on_limit="ask"))
    lab = await labs.use(hf)
    run = await agent.enqueue("Go.")
    await lab.drain()
    assert (await run.refresh()).state == "awaiting_input"
    asked = len(model.requests)
    (inquiry,) = await run.inquiries()
    assert (inquiry.kind, inquiry.data["limit"]) == ("limit", "context_window")
    await (hf.approve if verdict == "approve" else hf.deny)(inquiry.id)
    await settle(lab, run)
    result = await run.result()
    if verdict == "approve":
        assert (result.outcome, len(model.asked("scripted:talk"))) == ("answered", 6)
    else:
        assert (result.outcome, result.limit, len(model.requests)) == ("truncated", "context_window", asked)


async def test_an_answer_that_goes_on_makes_room_before_it_does(labs: Labs) -> None:
    hf = Holdfast("sqlite:///:memory:")
    agent, model = speaker(hf, Script(lambda _: say("rain " * 100)))
    long = hf.agent(
        "long", model="scripted:long", max_tokens=500, compaction=replace(TIGHT, trigger=1.0), on_max_tokens="continue"
    )
    cut, rest = ends("max_tokens", say("so " * 2_400)), say("it is.")
    model.play("scripted:long", Script(lambda messages: rest if CONTINUE in str(messages) else cut))
    lab = await labs.use(hf)
    session = await hf.session("s")
    for _ in range(3):
        await settle(lab, await session.send("q " * 300, agent))
    run = await session.send("Tell.", long)
    await settle(lab, run)
    result = await run.result()
    (row,) = [row for row in await session.compactions() if row.trigger == "before_call"]
    assert (row.run, row.state) == (run.id, "done")
    assert (result.outcome, result.text.count("so "), result.text.endswith("it is.")) == ("answered", 2_400, True)
    kinds = [message.kind for message in await session.messages()]
    assert kinds[:4] == ["summary", "prompt", "answer", "continuation"], "what the run said itself is not touched"
