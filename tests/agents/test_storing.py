"""What is stored of a conversation, and what of it is sent again: byte for byte, and only what the provider takes."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.content import Document, Image
from holdfast.agents.definition import AgentSpec
from holdfast.agents.rows import WindowBlock
from holdfast.agents.runs.history import CallBounds, ask, messages
from holdfast.agents.statements import MessagesSql
from holdfast.app import core_of
from holdfast.kernel.database import Transaction, reading
from holdfast.models.script import block, call, ends, say, think
from holdfast.models.simulator import simulator
from holdfast.settings import Settings
from holdfast.testing import Labs
from tests.conftest import Place
from tests.support.agents import MODEL, Noting, audit, scripted, settle
from tests.support.past_kernel import query

THINKING = {"thinking": {"type": "adaptive"}}


async def test_signed_thinking_goes_back_as_it_came_until_the_agent_changes(provided: Labs) -> None:
    """The simulator verifies every signature against everything before it."""
    script = Noting(think("Hm."), call("add", a=1, b=2), think("Ah."), say("Three."))
    async with simulator(script=script) as running:
        hf = Holdfast("sqlite:////nowhere/at-all.db", settings=Settings(provider_url=running.url))

        @hf.tool
        def add(a: int, b: int) -> int:
            """Add."""
            return a + b

        first = hf.agent("a", model=MODEL, tools=[add], options=THINKING, instructions="Be brief.")
        other = hf.agent("b", model=MODEL, tools=[add], options=THINKING, instructions="Be long.")
        lab = await provided.use(hf)
        for agent in (first, first, other, other):
            await settle(lab, await agent.enqueue("1 + 2?", session="s"))
        assert running.state.stats["rejected"] == 0
        thoughts = [
            sum(part["type"] == "thinking" for message in body["messages"] for part in message["content"])
            for body in script.bodies
        ]
        # Two per run of the same agent; the other agent's request leaves out what was thought under the first one's.
        assert thoughts == [0, 1, 2, 3, 0, 1, 2, 3]
        await audit(hf, running)


async def test_a_prefix_once_sent_never_changes(provided: Labs) -> None:
    script = Noting(call("add", a=1, b=2), call("add", a=3, b=4), say("Done."))
    async with simulator(script=script) as running:
        hf = Holdfast("sqlite:////nowhere/at-all.db", settings=Settings(provider_url=running.url))

        @hf.tool
        def add(a: int, b: int) -> int:
            """Add."""
            return a + b

        agent = hf.agent("a", model=MODEL, tools=[add], instructions="Add.")
        lab = await provided.use(hf)
        for prompt in ("One", "Two"):
            await settle(lab, await agent.enqueue(prompt, session="s"))

    def unmarked(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: unmarked(each) for key, each in value.items() if key != "cache_control"}
        return [unmarked(each) for each in value] if isinstance(value, list) else value

    texts = [json.dumps([*unmarked(body["messages"])])[:-1] for body in script.bodies]
    for before, after in itertools.pairwise(texts):
        assert after.startswith(before)


async def test_blocks_are_kept_byte_for_byte(hf: Holdfast) -> None:
    odd = block("server_tool_use", id="srvtoolu_1", zebra=1, name="web_search", input={"q": "ü", "a": 1.5}, alpha=None)
    found = block("web_search_tool_result", tool_use_id="srvtoolu_1", content=[{"z": 1, "a": [True, {"y": "\u2028"}]}])
    result = await hf.agent("a", model=scripted(hf, ends("end_turn", odd, found, say("Found.")))).run("Go")
    (_, answer) = await hf.sessions[result.session_id].messages()
    for kept, sent in zip(answer.blocks, (odd.body, found.body), strict=False):
        assert json.dumps(kept, ensure_ascii=False) == json.dumps(sent, ensure_ascii=False)


async def test_large_blocks_are_stored_once(hf: Holdfast, place: Place) -> None:
    picture = Image(b"\x89PNG" + bytes(range(256)) * 1_000)
    agent = hf.agent("a", model=scripted(hf, say("Nice.")))
    for _ in range(3):
        await agent.run(["Look:", picture, Document.from_text("text", "T")], session="s")
    session = (await hf.sessions.get("s")).id
    prompts = [m for m in await hf.sessions[session].messages() if m.kind == "prompt"]
    assert [[part["type"] for part in m.blocks] for m in prompts] == [["text", "image", "document"]] * 3
    assert len({json.dumps(m.blocks[1]) for m in prompts}) == 1

    @reading
    async def window(tx: Transaction) -> list[WindowBlock]:
        return await tx.many(MessagesSql.window, session=session, branch="")

    sent = messages(await core_of(hf).runtime().transact(window), "")
    assert sent[0]["content"][1] == picture.block()


async def test_a_long_history_costs_its_window_only(hf: Holdfast, place: Place) -> None:
    """Ten thousand messages that are not live any more are not read: the plan goes by the index of the live ones."""
    agent = hf.agent("a", model=scripted(hf, say("Yes.")))
    session = (await agent.run("First", session="s")).session_id
    copies = (
        "insert into holdfast.message (id, session, branch, ordinal, role, run, turn, kind, live, created_at) "
        "select 'old' || n, '{0}', '', 100 + n, 'user', 'x', 0, 'prompt', 0, 0 from {1}"
    )
    blocks = (
        "insert into holdfast.block (message, ordinal, type, body) "
        'select \'old\' || n, 0, \'text\', \'{{"type":"text","text":"old"}}\' from {1}'
    )
    if place.url.startswith("sqlite"):
        numbers = "(with recursive c(n) as (select 1 union all select n + 1 from c where n < 10000) select n from c)"
    else:
        numbers = "generate_series(1, 10000) as c (n)"
    for text in (copies, blocks):
        query(place, text.format(session, numbers))
    query(place, "analyze")

    @reading
    async def window(tx: Transaction) -> list[WindowBlock]:
        return await tx.many(MessagesSql.window, session=session, branch="")

    assert len(await core_of(hf).runtime().transact(window)) == 2
    assert (await agent.run("Next", session="s")).text == "Yes."
    where = f"m.session = '{session}' and m.branch = '' and m.live = 1"
    select = f"select m.id from holdfast.message m where {where} order by m.ordinal"
    if place.url.startswith("sqlite"):
        plan = " ".join(str(row[-1]) for row in query(place, f"explain query plan {select}"))
        assert "message_live" in plan
        assert "SCAN" not in plan
    else:
        plan = "\n".join(str(row[0]) for row in query(place, f"explain (analyze, buffers, timing off) {select}"))
        assert "message_live" in plan
        assert "Rows Removed" not in plan
    assert len(await hf.sessions[session].messages(limit=5)) == 5


async def test_usage_is_replaced_by_later_counts_and_never_added_up(provided: Labs) -> None:
    """The provider's counts are cumulative: what is recorded is what it billed."""
    async with simulator(script=Noting(say("A long answer, in several pieces, with words."))) as running:
        hf = Holdfast("sqlite:////nowhere/at-all.db", settings=Settings(provider_url=running.url))
        lab = await provided.use(hf)
        run = await hf.agent("a", model=MODEL).enqueue("Go")
        await settle(lab, run)
        (bill,) = [line["billed"] for line in running.lines if line["event"] == "done"]
        usage = await run.usage()
        assert (usage.input_tokens, usage.output_tokens) == (bill["input_tokens"], bill["output_tokens"])
        assert usage.cost_nano > 0


def test_what_the_provider_refuses_to_read_is_left_out() -> None:
    bodies = [
        ("answer", {"type": "thinking", "thinking": "cut", "signature": ""}),
        ("answer", {"type": "text", "text": " \n"}),
        ("answer", {"type": "text", "text": "kept"}),
        ("answer", {"type": "thinking", "thinking": "at the end", "signature": "s"}),
    ]
    window = [WindowBlock("m", 2, "assistant", kind, "f", body["type"], json.dumps(body)) for kind, body in bodies]
    assert messages(window, "f") == [{"role": "assistant", "content": [{"type": "text", "text": "kept"}]}]
    assert messages(window[:2], "f") == []


def test_the_fingerprint_names_all_that_thinking_is_bound_to() -> None:
    spec = AgentSpec(name="a", model=MODEL)

    def printed(of: AgentSpec, model: str = MODEL, credential: str = "c") -> str:
        asked = ask(
            of, model, [], [{"type": "text", "text": "x"}], credential=credential, container=None, bounds=BOUNDS
        )
        return asked.fingerprint

    others = [
        printed(spec.changed(instructions="else")),
        printed(spec.changed(server_tools=({"type": "web_search_20260318", "name": "web_search"},))),
        printed(spec.changed(output={"type": "object"})),
        printed(spec, model="claude-opus-5"),
        printed(spec, credential="d"),
    ]
    assert printed(spec) == printed(spec.changed(max_tokens=17))
    assert len({printed(spec), *others}) == 6


BOUNDS = CallBounds("r/1/1", 1.0, 1.0)


async def test_metadata_of_a_session_can_be_changed(hf: Holdfast) -> None:
    session = await hf.session("s", metadata={"a": 1})
    row = await session.update(metadata={"b": 2})
    assert row.metadata == {"b": 2}
    assert (await hf.session("s", metadata={"c": 3})).id == session.id
    assert (await hf.sessions.get("s")).metadata == {"b": 2}


async def test_a_deleted_session_leaves_nothing(hf: Holdfast, place: Place) -> None:
    @hf.tool
    def look() -> str:
        """Look."""
        return "seen"

    agent = hf.agent("a", model=scripted(hf, call("look"), say("ok")), tools=[look])
    result = await agent.run("Go", session="s", key="k")
    waiting = await agent.enqueue("Later", session="s", delay="1h")
    with pytest.raises(Exception, match="has an active run"):
        await hf.sessions.delete("s")
    await waiting.cancel()
    await hf.sessions.delete("s")
    for table in ("session", "run", "turn", "message", "block", "tool_call", "run_event"):
        assert query(place, f"select count(*) from holdfast.{table}") == [(0,)], table
    with pytest.raises(Exception, match="there is no run"):
        await hf.runs.get(result.run_id)
    assert (await agent.run("Anew", session="s")).text == "ok"
