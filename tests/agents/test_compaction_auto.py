"""Compaction by itself: after a run, and before a call that would not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast import Compaction, Holdfast
from holdfast.app import core_of
from holdfast.events import Compacted, CompactionStarted
from holdfast.models import ModelFailure
from holdfast.models.script import Script, block, calls, refuse, say
from holdfast.models.scripted import ScriptedModel
from holdfast.testing import Labs
from tests.support.agents import Noting, settle
from tests.support.apps import MakeApp, eventually, working
from tests.support.compaction import SMALL, SUMMARY, talk, talker

TIGHT = replace(SMALL, strategy="summarize", window=3_500, trigger=0.8, target_tokens=500)


async def compacted(hf: Holdfast, session: Any) -> Any:
    async def look() -> Any:
        return [row for row in await session.compactions() if row.state == "done"]

    return (await eventually(look))[0]


async def test_after_a_run_that_reaches_the_trigger_a_worker_compacts(hf: Holdfast) -> None:
    agent, model = talker(hf, max_tokens=500, compaction=replace(TIGHT, window=3_125))
    session = await hf.session("s")
    await talk(session, agent, 1)
    assert [job.kind for job in await hf.jobs.list(kind="system:compact")] == []
    await talk(session, agent, 2)
    row = await compacted(hf, session)
    assert (row.trigger, row.run, row.strategy) == ("after_run", None, "summarize")
    await talk(session, agent, 1)
    assert any(SUMMARY in request.messages[0]["content"][0]["text"] for request in model.asked("scripted:talk"))
    for job in await hf.jobs.list(kind="system:compact"):
        await hf.jobs[job.id].result()


async def test_an_agent_that_does_not_ask_for_it_is_left_alone(hf: Holdfast) -> None:
    agent, _ = talker(hf)
    session = await hf.session("s")
    await talk(session, agent, 4)
    assert await hf.jobs.list(kind="system:compact") == []
    assert await session.compactions() == []


async def test_a_worker_that_adopts_an_agent_compacts_for_it_too(make_app: MakeApp) -> None:
    here, there = make_app(embedded=False), make_app(embedded=False)
    agent, _ = talker(here, compaction=replace(TIGHT, trigger=0.2, preserve_last=0, protected_tokens=0))
    talker(there)
    del core_of(there).registry.definitions["agent:talker"]
    async with working(there):
        session = await here.session("s")
        await (await session.send("One?", agent)).result()
        assert (await compacted(here, session)).trigger == "after_run"


async def test_before_a_call_that_would_not_fit_a_run_makes_room(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    long, model = talker(hf)
    careful = hf.agent("careful", model="scripted:talk", max_tokens=500, compaction=TIGHT)
    session = await hf.session("s")
    async with working(hf):
        for number in range(4):
            await (await session.send(f"{number}", long)).result()
        model.requests.clear()
        run = await session.send("And?", careful)
        events = [event async for event in run.stream()]
    (row,) = await session.compactions()
    assert (row.trigger, row.run, row.state) == ("before_call", run.id, "done")
    (started,) = [event for event in events if isinstance(event, CompactionStarted)]
    (done,) = [event for event in events if isinstance(event, Compacted)]
    assert (started.compaction, done.compaction, done.removed) == (row.id, row.id, row.removed)
    assert done.tokens_before > TIGHT.trigger * 3_500 > done.tokens_after
    assert [request.model for request in model.requests][:2] == ["scripted:sum", "scripted:talk"]
    assert model.requests[1].messages[0]["content"][0]["text"].endswith(SUMMARY)
    assert "And?" not in str(model.requests[0].messages), "what is asked now is not summarised"


async def test_a_run_that_cannot_be_made_to_fit_is_not_sent(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    long, model = talker(hf)
    careful = hf.agent("careful", model="scripted:talk", compaction=replace(TIGHT, protected_tokens=100_000))
    session = await hf.session("s")
    async with working(hf):
        for number in range(4):
            await (await session.send(f"{number}", long)).result()
        asked = len(model.requests)
        result = await (await session.send("And?", careful)).result()
        assert (result.outcome, result.limit, result.turns) == ("truncated", "context_window", 0)
        assert len(model.requests) == asked
        assert (await (await session.send("And now?", long)).result()).outcome == "answered"


class Failing(ScriptedModel):
    """Fails so many times, then writes its summary."""

    def __init__(self, times: int) -> None:
        super().__init__(Script(say(SUMMARY)))
        self.left = times

    async def stream(self, request: Any, answered: Any) -> Any:
        if self.left:
            self.left -= 1
            raise ModelFailure("overloaded", "busy", bought="no")
        async for event in super().stream(request, answered):
            yield event


async def test_a_summariser_that_is_away_is_waited_for_only_where_nothing_fits_without_it(labs: Labs) -> None:
    hf = Holdfast("sqlite:///:memory:")
    failing = Failing(2)
    long, model = talker(hf, {"scripted:away": failing})
    away = replace(TIGHT, summarizer="scripted:away")
    careful = hf.agent("careful", model="scripted:talk", max_tokens=500, compaction=away)
    roomy = hf.agent(
        "roomy", model="scripted:talk", max_tokens=500, compaction=replace(away, window=5_000, trigger=0.5)
    )
    lab = await labs.use(hf)
    session = await hf.session("s")
    for number in range(4):
        await settle(lab, await session.send(f"{number}", long))
    failing.left = 1
    (row,) = await settle(lab, await session.send("It fits anyway.", roomy))
    assert (row.state, row.outcome, len(await session.compactions())) == ("completed", "answered", 1)
    failing.left = 2
    (row,) = await settle(lab, await session.send("It does not.", careful))
    assert (row.state, row.outcome) == ("completed", "answered")
    assert "done" in {each.state for each in await session.compactions()}
    assert model.asked("scripted:away")


async def test_a_summariser_that_refuses_does_not_keep_a_run_waiting(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    long, _ = talker(hf, {"scripted:no": ScriptedModel(Script(refuse("harm")))})
    careful = hf.agent("careful", model="scripted:talk", compaction=replace(TIGHT, summarizer="scripted:no"))
    session = await hf.session("s")
    async with working(hf):
        for number in range(4):
            await (await session.send(f"{number}", long)).result()
        result = await (await session.send("And?", careful)).result()
    assert (result.outcome, result.limit) == ("truncated", "context_window")


@pytest.mark.parametrize("commit", ["begin_compaction", "apply_compaction"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_wherever_a_worker_dies_the_history_is_whole_and_no_stored_summary_is_bought_again(
    labs: Labs, when: str, commit: str
) -> None:
    app = Holdfast("sqlite:///:memory:")
    long, model = talker(app)
    careful = app.agent("careful", model="scripted:talk", max_tokens=500, compaction=TIGHT)
    lab = await labs.use(app)
    session = await app.session("s")
    for number in range(4):
        await settle(lab, await session.send(f"{number}", long))
    lab.crash(before=commit if when == "before" else None, after=commit if when == "after" else None)
    (row,) = await settle(lab, await session.send("And?", careful))
    assert [str(crash).rpartition(" ")[0] for crash in lab.crashes] == [f"{when} {commit}"]
    assert (row.state, row.outcome) == ("completed", "answered")
    (compaction,) = await session.compactions()
    asked_twice = (when, commit) == ("before", "apply_compaction")
    assert len(model.asked("scripted:sum")) == (2 if asked_twice else 1)
    assert (compaction.state, compaction.unknown) == (
        "done",
        int(asked_twice or (when, commit) == ("after", "begin_compaction")),
    )
    assert [message.kind for message in await session.messages()].count("summary") == 1


async def test_the_providers_own_compaction_is_asked_for_and_its_block_kept_as_it_came(hf: Holdfast) -> None:
    made = block("compaction", content="What was said.", encrypted_content="opaque", signature="s")
    script = Noting(calls(made, say("Yes.")))
    hf.script("own", script)
    agent = hf.agent("own", model="scripted:own", compaction=Compaction(strategy="provider", window=100_000))
    session = await hf.session("s")
    await agent.run("One?", session=session)
    await agent.run("Two?", session=session)
    first, second = script.bodies
    (edit,) = first["context_management"]["edits"]
    assert edit == {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 85_000}}
    assert second["messages"][1]["content"][0] == made.body
    assert await hf.jobs.list(kind="system:compact") == []


async def test_after_a_run_that_run_tells_of_it(hf: Holdfast) -> None:
    agent, _ = talker(hf, max_tokens=500, compaction=replace(TIGHT, trigger=0.2, preserve_last=0, protected_tokens=0))
    session = await hf.session("s")
    await talk(session, agent, 1)
    (run,) = await session.runs()
    row = await compacted(hf, session)
    assert (row.trigger, row.run) == ("after_run", None)
    told = [event for event in await hf.runs[run.id].events() if isinstance(event, CompactionStarted | Compacted)]
    assert [(type(event), event.compaction) for event in told] == [(CompactionStarted, row.id), (Compacted, row.id)]


async def test_a_way_to_compact_may_be_given_without_its_being_done_by_itself(labs: Labs) -> None:
    app = Holdfast("sqlite:///:memory:")
    config = replace(TIGHT, trigger=0.2, preserve_last=0, protected_tokens=0, automatic=False)
    agent, model = talker(app, compaction=config)
    lab = await labs.use(app)
    session = await app.session("s")
    for number in range(4):
        await settle(lab, await session.send(f"{number}", agent))
    assert (await app.jobs.list(kind="system:compact"), await session.compactions()) == ([], [])
    assert await session.needs_compaction()
    assert (await session.compact()).strategy == "summarize"
    own = app.agent("own", model="scripted:talk", compaction=Compaction(strategy="provider", automatic=False))
    await settle(lab, await own.enqueue("One?"))
    assert "context_management" not in model.requests[-1].body()
