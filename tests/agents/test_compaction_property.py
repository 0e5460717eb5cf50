"""Any history, compacted any way, is one that a provider accepts; what is protected stays; all of it comes back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Compaction, Holdfast
from holdfast.agents.compaction.partition import partition, prune, read, units
from holdfast.agents.compaction.records import HistoryBlock
from holdfast.agents.messages import add_message
from holdfast.agents.rows import WindowBlock
from holdfast.agents.runs.history import SentMessage, merged, messages
from holdfast.app import core_of
from holdfast.errors import NothingToCompact
from holdfast.kernel.database import Transaction
from holdfast.models.facts import facts_for
from holdfast.models.script import Script, say
from holdfast.models.simulator.http import RequestRefused
from holdfast.models.simulator.strict import check_conversation
from tests.support.compaction import SUMMARY, sent_now

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}
PROMPT = SentMessage("user", [{"type": "text", "text": "And now?"}])

_numbers = itertools.count()


class Line(NamedTuple):
    """A run as it is stored: what was said, by kind, and which of it is marked."""

    id: str
    session: str
    branch: str
    said: list[tuple[str, int, list[dict[str, Any]]]]


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


texts = st.integers(1, 300).map(lambda length: text("word " * length))
contents = st.one_of(
    st.integers(0, 400).map(lambda length: "out " * length),
    st.lists(st.one_of(texts, st.just(IMAGE)), min_size=1, max_size=3),
)


@st.composite
def tool_turns(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """An answer that calls tools, and their results."""
    ids = [f"toolu_{next(_numbers)}" for _ in range(draw(st.integers(1, 3)))]
    thought = [{"type": "thinking", "thinking": "hm", "signature": "s"}] if draw(st.booleans()) else []
    before = [draw(texts)] if draw(st.booleans()) else []
    uses = [{"type": "tool_use", "id": id, "name": "look", "input": {"at": id}} for id in ids]
    results = []
    for id in ids:
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": id}
        if content := draw(contents):
            result["content"] = content
        if draw(st.booleans()):
            result["is_error"] = True
        results.append(result)
    return [*thought, *before, *uses], results


@st.composite
def lines(draw: st.DrawFn) -> list[tuple[str, list[dict[str, Any]]]]:
    """What one run says: a question, tools, words in between, and an answer, unless it was stopped before."""
    said: list[tuple[str, list[dict[str, Any]]]] = [
        ("prompt", [draw(texts), *([IMAGE] if draw(st.booleans()) else [])])
    ]
    for answer, results in draw(st.lists(tool_turns(), max_size=3)):
        said += [("answer", answer), ("results", results)]
        if draw(st.integers(0, 5)) == 0:
            said.append(("steer", [draw(texts)]))
    match draw(st.sampled_from(["answer", "answer", "continued", "paused", "both", "thought", "stopped"])):
        case "answer":
            said.append(("answer", [draw(texts)]))
        case "continued":
            said += [("answer", [draw(texts)]), ("continuation", [text("Go on.")]), ("answer", [draw(texts)])]
        case "paused":
            use = {"type": "server_tool_use", "id": f"srvtoolu_{next(_numbers)}", "name": "web_search", "input": {}}
            found = {"type": "web_search_tool_result", "tool_use_id": use["id"], "content": []}
            said += [("answer", [use]), ("answer", [found, draw(texts)])]
        case "both":  # of the provider's own tools and of ours: its result comes after ours
            use = {"type": "server_tool_use", "id": f"srvtoolu_{next(_numbers)}", "name": "web_search", "input": {}}
            found = {"type": "web_search_tool_result", "tool_use_id": use["id"], "content": []}
            asked, results = draw(tool_turns())
            said += [("answer", [use, *asked]), ("results", results), ("answer", [found, draw(texts)])]
        case "thought":
            said.append(("answer", [{"type": "thinking", "thinking": "hm", "signature": "s"}, draw(texts)]))
        case _:
            pass
    return said


histories = st.lists(lines(), min_size=1, max_size=6)
marks = st.sets(st.integers(0, 40), max_size=4)
configs = st.builds(
    Compaction,
    strategy=st.sampled_from(["hybrid", "summarize"]),
    target_tokens=st.sampled_from([1, 500, 100_000]),
    preserve_last=st.integers(0, 8),
    protected_tokens=st.sampled_from([0, 50, 500, 2_000]),
    preserve_tool_outputs=st.booleans(),
    window=st.just(10_000),
    summarizer=st.just("scripted:sum"),
)


def rows_of(history: Sequence[Sequence[tuple[str, list[dict[str, Any]]]]], marked: set[int]) -> list[HistoryBlock]:
    """A history as the store would read it."""
    from holdfast.agents.messages import encode_block

    rows: list[HistoryBlock] = []
    ordinal = 0
    for run, said in enumerate(history):
        for kind, blocks in said:
            role = "assistant" if kind == "answer" else "user"
            place = (f"m{ordinal}", ordinal, role, kind, "before")
            rows += [
                HistoryBlock(*place, block["type"], encode_block(block), f"r{run}", 1, int(ordinal in marked))
                for block in blocks
            ]
            ordinal += 1
    return rows


def check(rows: Sequence[HistoryBlock]) -> None:
    """The provider takes it, with the next question after it."""
    said = [
        SentMessage(each["role"], each["content"]) for each in messages([WindowBlock(*row[:7]) for row in rows], "now")
    ]
    sent = [{"role": each.role, "content": each.blocks} for each in merged([*said, PROMPT])]
    check_conversation({"messages": sent}, facts_for("scripted:"))


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(histories, marks, configs)
def test_whatever_is_taken_out_pairs_stay_whole(history: Any, marked: set[int], config: Compaction) -> None:
    rows = rows_of(history, marked)
    said = read(rows)
    parts = partition(said, config)
    assert [message for unit in units(said) for message in unit.messages] == said
    gone = {message.id: message for unit in parts.compactable for message in unit.messages}
    assert not any(message.preserved for message in gone.values())
    assert not {message.id for message in said[len(said) - config.preserve_last :]} & gone.keys()
    if gone:
        last = max(gone.values(), key=lambda message: message.ordinal)
        summary = HistoryBlock(
            "s", last.ordinal, "user", "summary", "", "text", f'{{"type":"text","text":"{len(gone)}"}}', "", 0, 0
        )
        check(sorted([*(row for row in rows if row.message not in gone), summary], key=lambda row: row.ordinal))
    for unit in parts.compactable:
        for pruned in prune(unit):
            assert [block.get("tool_use_id") for block in pruned.blocks] == [
                block.get("tool_use_id") for block in pruned.message.blocks
            ]
            assert [block.get("is_error") for block in pruned.blocks] == [
                block.get("is_error") for block in pruned.message.blocks
            ]
            assert pruned.saved > 0


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories, st.lists(lines(), max_size=1), marks, st.lists(configs, min_size=1, max_size=3))
async def test_what_is_stored_is_accepted_and_comes_back_byte_for_byte(
    hf: Holdfast, history: Any, child: Any, marked: set[int], several: list[Compaction]
) -> None:
    hf.script("sum", Script(say(SUMMARY)))
    session = await hf.session(f"s{next(_numbers)}")
    branches = [(said, "") for said in history] + [(said, "child") for said in child]
    for number, (said, branch) in enumerate(branches):
        numbered = [(kind, turn, blocks) for turn, (kind, blocks) in enumerate(said)]
        await core_of(hf).runtime().transact(store, Line(f"{session.id}-{number}", session.id, branch, numbered))
    for number, message in enumerate(await session.messages()):
        if number in marked:
            await session.preserve(message)
    states = [await sent_now(hf, session)]
    beside = await core_of(hf).runtime().transact(beside_of, session.id)
    check(states[0])
    for config in several:
        parts = partition(read(states[-1]), config)
        kept = {message.id for unit in parts.compactable for message in unit.messages}
        try:
            done = await session.compact(config)
        except NothingToCompact:
            assert not kept
            continue
        now = await sent_now(hf, session)
        check(now)
        untouched = [row for row in states[-1] if row.message not in kept]
        assert [row for row in now if row in untouched] == untouched
        assert (done.removed == 0) is (done.summary is None)
        states.append(now)
    while len(states) > 1:
        states.pop()
        await session.restore()
        assert await sent_now(hf, session) == states[-1]
    assert await core_of(hf).runtime().transact(beside_of, session.id) == beside


async def store(tx: Transaction, run: Line) -> None:
    for kind, turn, blocks in run.said:
        await add_message(tx, run, kind, turn, blocks)  # type: ignore[arg-type]


async def beside_of(tx: Transaction, session: str) -> list[Any]:
    """What other branches would send."""
    from holdfast.agents.statements import MessagesSql

    return list(await tx.many(MessagesSql.window, session=session, branch="child"))


def test_a_server_tools_use_and_result_stay_together_across_ours() -> None:
    use = {"type": "server_tool_use", "id": "srvtoolu_a", "name": "web_search", "input": {}}
    ours = {"type": "tool_use", "id": "toolu_a", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_a", "content": "out " * 400}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_a", "content": []}
    said = [
        ("prompt", [text("Search, and look.")]),
        ("answer", [use, ours]),
        ("results", [result]),
        ("answer", [found, text("Found.")]),
    ]
    parts = partition(read(rows_of([said], set())), Compaction(preserve_last=1, protected_tokens=0))
    assert [[message.kind for message in unit.messages] for _, unit in parts.units] == [
        ["prompt"],
        ["answer", "results", "answer"],
    ]
    assert parts.compactable == []
    check(rows_of([said], set()))
    with pytest.raises(RequestRefused, match="unexpected `tool_use_id` found in `web_search_tool_result`"):
        check(rows_of([[said[0], said[3]]], set()))
    for after in ([("answer", [text("Lost.")])], [("prompt", [text("Lost?")])]):
        sent = [
            {"role": "assistant" if kind == "answer" else "user", "content": blocks}
            for kind, blocks in [*said[:3], *after]
        ]
        with pytest.raises(RequestRefused, match="without a corresponding `web_search_tool_result`"):
            check_conversation({"messages": sent}, facts_for("scripted:"))
