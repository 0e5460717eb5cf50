"""Compaction by hand: what goes, what stays, what it costs, and that all of it comes back."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Compaction, Holdfast
from holdfast.agents import queries
from holdfast.agents.compaction import commit
from holdfast.app import core_of
from holdfast.errors import BadSetting, NotFound, NothingToCompact, UsageError
from holdfast.events import Compacted, CompactionStarted
from holdfast.kernel.database import Transaction
from holdfast.models import ModelFailure
from holdfast.models.script import Script, refuse, say
from holdfast.models.scripted import ScriptedModel
from tests.support.compaction import SMALL, SUMMARY, sent_now, talk, talker

SUMMARIZE = replace(SMALL, strategy="summarize")


async def test_ap_51_when_it_is_time_and_when_there_is_nothing_to_do(hf: Holdfast) -> None:
    """AP-51."""
    agent, model = talker(hf)
    session = await hf.session("s")
    with pytest.raises(NothingToCompact):
        await session.compact()
    await talk(session, agent, 3)
    stats = await session.compaction_stats(SMALL)
    total = stats.total_tokens
    assert (stats.usage_percent, stats.compactable_messages, stats.messages) == (total / 100, 8, 12)
    guessing = replace(SMALL, count_tokens=False)
    above, below = (replace(guessing, window=round(total / 0.85) + step) for step in (-1, 2))
    assert await session.needs_compaction(above)
    assert not await session.needs_compaction(below)
    assert await session.compact_if_needed(below) is None
    assert await session.compactions() == []
    with pytest.raises(NothingToCompact, match=r"its messages \(12\) are protected or recent"):
        await session.compact()  # the defaults protect far more than there is
    done = await session.compact_if_needed(above)
    assert done is not None
    assert done.state == "done"
    assert model.asked("scripted:sum") == []


async def test_ap_52_what_survives_and_what_is_recorded(hf: Holdfast) -> None:
    """AP-52."""
    agent, model = talker(hf)
    session = await hf.session("s")
    await talk(session, agent, 4)
    before = await session.messages()
    await session.preserve(before[4])  # the second question
    first = await session.compact(SUMMARIZE)
    await talk(session, agent, 2)
    second = await session.compact(SUMMARIZE)
    now = await session.messages()
    assert all(message.text.endswith(SUMMARY) for message in now if message.kind == "summary")
    assert [message.kind for message in now] == ["prompt", *["summary"] * 2, "prompt", "answer", "results", "answer"]
    assert now[0].id == before[4].id
    kept = {message.id for message in now}
    everything = await session.messages(archived=True)
    assert {message.id for message in before} - kept <= {message.id for message in everything if not message.live}
    assert len(everything) == 6 * 4 + 2
    for row in (first, second):
        assert (row.state, row.model, row.summary, row.attempts) == ("done", "scripted:sum", SUMMARY, 1)
        assert row.tokens_before > (row.tokens_after or 0) > 0
        assert row.duration is not None
        assert row.duration >= timedelta()
        assert row.input_tokens > 0
    assert first.removed == 11
    assert [row.id for row in await session.compactions()] == [second.id, first.id]
    (_, asked) = model.asked("scripted:sum")
    told = str(asked.messages)
    assert SUMMARY.splitlines()[0] in told, "earlier summaries are known to the next"
    assert "Question 1?" in told, "and what was marked"


async def test_ap_53_what_is_sent_afterwards_is_a_conversation(hf: Holdfast) -> None:
    """AP-53: pairs are whole, the summary stands before what is newer, and no thinking of another history is sent."""
    agent, model = talker(hf)
    session = await hf.session("s")
    await talk(session, agent, 3)
    done = await session.compact(SUMMARIZE)
    await talk(session, agent, 1)  # a strict model answers: it would have refused
    sent = model.asked("scripted:talk")[-1].messages
    kinds = [block["type"] for message in sent for block in message["content"]]
    assert kinds == ["text", "text", "tool_use", "tool_result", "text", "text", "thinking", "tool_use", "tool_result"]
    assert SUMMARY in sent[0]["content"][0]["text"]
    assert sent[0]["content"][1]["text"] == "Question 2?"
    session_row = await core_of(hf).runtime().transact(_generation, session.id)
    assert session_row == done.id


@pytest.mark.parametrize("strategy", ["summarize", "hybrid"])
async def test_ap_53_a_compaction_that_breaks_off_has_changed_nothing(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, strategy: Any
) -> None:
    """AP-53: the store fails when all of it is written and not committed; afterwards it is done as if nothing had."""
    agent, model = talker(hf)
    session = await hf.session("s")
    await talk(session, agent, 3)
    before = await sent_now(hf, session), await session.messages(archived=True)
    tell = commit._tell

    async def breaking(tx: Transaction, intent: Any, type: str, data: Any) -> None:
        await tell(tx, intent, type, data)
        if type == "compacted":
            raise RuntimeError("cut off")

    with monkeypatch.context() as patch:
        patch.setattr(commit, "_tell", breaking)
        with pytest.raises(RuntimeError, match="cut off"):
            await session.compact(replace(SMALL, strategy=strategy))
    assert (await sent_now(hf, session), await session.messages(archived=True)) == before
    assert "done" not in {row.state for row in await session.compactions()}
    await talk(session, agent, 1)  # a strict model takes it as it was
    done = await session.compact(replace(SMALL, strategy=strategy))
    assert done.state == "done"
    await talk(session, agent, 1)
    assert len(model.asked("scripted:sum")) == (2 if strategy == "summarize" else 0)


async def test_ap_54_outputs_make_room_without_a_model(hf: Holdfast) -> None:
    """AP-54."""
    agent, model = talker(hf)
    session = await hf.session("s")
    await talk(session, agent, 3)
    calls = [block for message in await session.messages() for block in message.blocks if block["type"] == "tool_use"]
    done = await session.compact(SMALL)
    assert (done.pruned, done.removed, done.summary, done.cost_nano, done.input_tokens) == (2, 0, None, 0, 0)
    assert model.asked("scripted:sum") == []
    outputs = [block for message in await session.messages() for block in message.blocks if "tool_use_id" in block]
    assert [block["tool_use_id"] for block in outputs] == [call["id"] for call in calls]
    placeholder = "[output of look_up removed to save context: 3,009 characters]"
    assert [block["content"] == placeholder for block in outputs] == [True, True, False]
    await talk(session, agent, 1)


async def test_a_marked_message_stays_until_the_mark_is_taken_away(hf: Holdfast) -> None:
    agent, _ = talker(hf)
    session = await hf.session("s")
    await talk(session, agent, 3)
    results = (await session.messages())[2]
    await session.preserve(results)
    stats = await session.compaction_stats(SUMMARIZE)
    assert stats.preserved_messages == 3, "its call, and the question it answers, stay with it"
    done = await session.compact(SUMMARIZE)
    assert done.removed == 5
    assert results.id in {message.id for message in await session.messages()}
    await session.restore()
    await session.preserve(results.id, preserved=False)
    assert (await session.compact(SUMMARIZE)).removed == 8
    with pytest.raises(NotFound):
        await session.preserve("no such message")


async def test_restore_goes_back_step_by_step_and_thinking_comes_back(hf: Holdfast) -> None:
    agent, model = talker(hf)
    session = await hf.session("s")
    await talk(session, agent, 3)
    original = await sent_now(hf, session)
    await session.compact(SMALL)
    pruned = await sent_now(hf, session)
    await session.compact(SUMMARIZE)
    assert len(await sent_now(hf, session)) < len(pruned)
    assert (await session.restore()).state == "restored"
    assert await sent_now(hf, session) == pruned
    await session.restore()
    assert await sent_now(hf, session) == original
    with pytest.raises(UsageError, match="no compaction to undo"):
        await session.restore()
    await talk(session, agent, 1)
    sent = model.asked("scripted:talk")[-2].messages
    assert sum(block["type"] == "thinking" for message in sent for block in message["content"]) == 6
    assert [row.state for row in await session.compactions()] == ["restored", "restored"]


async def test_runs_between_a_compaction_and_its_undoing_stay(hf: Holdfast) -> None:
    agent, _ = talker(hf)
    session = await hf.session("s")
    await talk(session, agent, 3)
    original = await sent_now(hf, session)
    await session.compact(SUMMARIZE)
    await talk(session, agent, 1)
    await session.restore()
    now = await sent_now(hf, session)
    assert now[: len(original)] == original
    assert len({row.message for row in now}) == 16
    await talk(session, agent, 1)


async def test_what_a_summary_costs_is_part_of_what_the_session_used(hf: Holdfast) -> None:
    agent, model = talker(hf, {"scripted:priced": ScriptedModel(Script(say(SUMMARY)))})
    session = await hf.session("s")
    await talk(session, agent, 3)
    before = await session.usage()
    done = await session.compact(replace(SUMMARIZE, summarizer="scripted:priced"))
    after = await session.usage()
    assert done.cost_nano > 0
    assert after.cost_nano - before.cost_nano == done.cost_nano
    assert after.input_tokens - before.input_tokens == done.input_tokens
    assert (after.turns, after.runs) == (before.turns, before.runs)
    (asked,) = model.asked("scripted:priced")
    assert "Question 0?" in str(asked.messages)
    assert "characters left out" in str(asked.messages), "long outputs are shortened for the summariser"
    await session.delete()
    assert await core_of(hf).runtime().transact(_count_compactions, session.id) == []


async def test_near_the_limit_the_provider_counts_and_when_it_cannot_the_estimate_stands_that_once(
    hf: Holdfast,
) -> None:
    agent, model = talker(hf)
    session = await hf.session("s")
    await talk(session, agent, 3)
    far = await session.compaction_stats(replace(SMALL, window=100_000))
    assert (far.source, model.counts) == ("usage", 0)
    near = replace(SMALL, window=round(far.total_tokens / 0.85))
    model.uncounted = True
    assert (await session.compaction_stats(near)).source == "usage"
    model.uncounted = False
    assert (await session.compaction_stats(near)).source == "provider"
    assert model.counts == 2
    assert (await session.compaction_stats(replace(near, count_tokens=False))).source == "usage"
    assert model.counts == 2
    await session.compact(SMALL)
    assert (await session.compaction_stats(replace(SMALL, window=100_000))).source == "estimate"


async def test_a_summariser_that_fails_changes_nothing_and_is_accounted_for(hf: Holdfast) -> None:
    agent, _ = talker(hf, {"scripted:no": ScriptedModel(Script(refuse("harm")))})
    session = await hf.session("s")
    await talk(session, agent, 3)
    original = await sent_now(hf, session)
    with pytest.raises(ModelFailure, match="wrote no summary"):
        await session.compact(replace(SUMMARIZE, summarizer="scripted:no"))
    (row,) = await session.compactions()
    assert (row.state, row.attempts, row.unknown) == ("failed", 1, 0)
    assert row.error is not None
    assert row.input_tokens > 0
    assert await sent_now(hf, session) == original
    done = await session.compact(SUMMARIZE)
    assert (done.id, done.state, done.attempts, done.unknown, done.error) == (row.id, "done", 2, 0, None)
    assert done.input_tokens > row.input_tokens


async def test_an_agents_own_way_holds_where_none_is_given(hf: Holdfast) -> None:
    agent, _ = talker(hf, compaction=replace(SUMMARIZE, trigger=1.0))
    session = await hf.session("s")
    await talk(session, agent, 3)
    assert (await session.compaction_stats()).window == 10_000
    assert (await session.compact()).strategy == "summarize"
    stored = (await hf.agents.list())[0]
    assert Compaction.of((await hf.agents[stored.id].load()).spec.compaction or {}).trigger == 1.0


async def test_the_providers_own_way_is_not_done_by_hand(hf: Holdfast) -> None:
    agent, _ = talker(hf)
    session = await hf.session("s")
    await talk(session, agent, 1)
    with pytest.raises(UsageError, match="inside the calls of an agent"):
        await session.compact(Compaction(strategy="provider"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"strategy": "fast"},
        {"trigger": 0},
        {"trigger": 1.1},
        {"trigger": True},
        {"target_tokens": 0},
        {"preserve_last": -1},
        {"protected_tokens": 1.5},
        {"window": 0},
        {"summarizer": ""},
        {"summarizer_max_tokens": 0},
        {"count_tokens": "yes"},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadSetting, match=f"Compaction\\({next(iter(wrong))}="):
        Compaction(**wrong)


async def _generation(tx: Any, session: str) -> str:
    from holdfast.agents.compaction.records import CompactionsSql

    row = await tx.one(CompactionsSql.find_generation, id=session)
    return str(row.generation)


async def _count_compactions(tx: Any, session: str) -> list[Any]:
    return list(await queries.list_compactions(tx, session, limit=10))


async def test_stats_of_a_session_that_the_provider_compacts_are_told(hf: Holdfast) -> None:
    agent, _ = talker(hf, compaction=Compaction(strategy="provider", window=10_000))
    session = await hf.session("s")
    await talk(session, agent, 1)
    stats = await session.compaction_stats()
    assert (stats.window, stats.needs_compaction, await session.needs_compaction()) == (10_000, False, False)
    assert await session.compact_if_needed() is None
    with pytest.raises(UsageError, match="inside the calls of an agent"):
        await session.compact()


@pytest.mark.parametrize("wrong", [True, "hybrid", {"trigger": 0.5}], ids=str)
def test_what_is_no_compaction_is_refused_where_the_agent_is_defined(wrong: Any) -> None:
    hf = Holdfast("sqlite:///:memory:")
    with pytest.raises(BadSetting, match="compaction of agent 'a' must be Compaction"):
        hf.agent("a", model="scripted:a", compaction=wrong)


async def test_an_unknown_summariser_is_refused_where_the_agent_is_defined(hf: Holdfast) -> None:
    with pytest.raises(UsageError, match="claude-mythos-preview"):
        hf.agent("a", model="scripted:a", compaction=Compaction(summarizer="claude-mythos-preview"))
    with pytest.raises(UsageError, match="claude-mythos-preview"):
        await hf.agents.create("b", model="scripted:a", compaction={"summarizer": "claude-mythos-preview"})


def test_the_seeds_word_for_a_summary_is_understood() -> None:
    assert Compaction(strategy="summarization") == Compaction(strategy="summarize")
    assert Compaction.of(Compaction(strategy="summarization").plain()).strategy == "summarize"


async def test_by_hand_the_last_run_tells_of_it(hf: Holdfast) -> None:
    agent, _ = talker(hf)
    session = await hf.session("s")
    await talk(session, agent, 3)
    done = await session.compact(SUMMARIZE)
    first, *_, last = sorted(await session.runs(), key=lambda row: row.ordinal)
    events = await hf.runs[last.id].events()
    told = [event for event in events if isinstance(event, CompactionStarted | Compacted)]
    assert [(type(event), event.compaction) for event in told] == [(CompactionStarted, done.id), (Compacted, done.id)]
    assert not any(isinstance(event, Compacted) for event in await hf.runs[first.id].events())
