"""AgentPG's statements on sessions, agents, waiting and listening: AP-48 to AP-50, AP-55, AP-56, AP-60."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, RunFailed
from holdfast.agents import queries
from holdfast.app import core_of
from holdfast.errors import IdempotencyConflict, NotFound, ResultTimeout
from holdfast.events import ToolCalled
from holdfast.models.script import call, calls, ends, say
from tests.conftest import Place
from tests.support.agents import Gated, scripted
from tests.support.apps import MakeApp, eventually, working

TOPICS = ("run_created", "run_state", "run_finalized", "tool_pending", "tools_complete")


async def test_ap_48_lists_filter_by_containment_and_count(hf: Holdfast) -> None:
    """AP-48: metadata that contain what was asked for, totals, and distinct values with their counts."""
    for n in range(6):
        await hf.session(metadata={"user": f"u{n % 2}", "tags": ["a", "b"][: n % 3], "deep": {"n": n}, "a.b": n % 2})
    parent = await hf.session("parent", metadata={"user": "u9", "flag": True, "none": None})
    child = await hf.session(parent=parent)
    assert (await child.refresh()).depth == 1
    for wanted, count in (
        ({"user": "u0"}, 3),
        ({"tags": ["b"]}, 2),
        ({"tags": []}, 6),
        ({"deep": {"n": 3}}, 1),
        ({"user": "u0", "deep": {"n": 3}}, 0),
        ({"flag": True}, 1),
        ({"flag": 1}, 0),
        ({"none": None}, 1),
        ({"a.b": 1}, 3),
        ({}, 8),
    ):
        assert await hf.sessions.count(metadata=wanted) == count, wanted
        assert len(await hf.sessions.list(metadata=wanted)) == count, wanted
    assert await hf.sessions.values("user") == [("u0", 3), ("u1", 3), ("u9", 1)]
    assert sorted(await hf.sessions.values("a.b")) == [(0, 3), (1, 3)]
    assert await hf.sessions.values("flag") == [(True, 1)]
    assert await hf.sessions.values("nothing") == []
    assert [row.id for row in await hf.sessions.list(parent=parent.id)] == [child.id]
    first = await hf.sessions.list(limit=3)
    second = await hf.sessions.list(limit=3, after=first.next)
    third = await hf.sessions.list(limit=3, after=second.next)
    assert (len(first), len(second), len(third), third.next) == (3, 3, 2, None)
    assert len({row.id for row in [*first, *second, *third]}) == 8


async def test_ap_49_one_name_may_stand_for_several_agents(hf: Holdfast) -> None:
    """AP-49: told apart by their metadata, in every lookup."""
    made = {}
    for place in ("a", "b", None):
        metadata = {} if place is None else {"place": place, "n": 1}
        model = scripted(hf, say(f"I am of {place}"))
        made[place] = await hf.agents.create("clerk", model=model, metadata=metadata, description=str(place))
    assert len({row.id for row in made.values()}) == 3
    assert (await hf.agents.get("clerk", metadata={"n": 1, "place": "b"})).id == made["b"].id
    assert (await hf.agents.get("clerk")).id == made[None].id
    assert (await hf.agents.get(made["a"].id)).description == "a"
    with pytest.raises(NotFound):
        await hf.agents.get("clerk", metadata={"place": "a"})
    assert [row.id for row in await hf.agents.list(metadata={"place": "a"})] == [made["a"].id]
    assert len(await hf.agents.list(name="clerk")) == 3
    assert [await hf.agents.count(name=name) for name in ("clerk", "nobody")] == [3, 0]
    assert await hf.agents.count(metadata={"place": "a"}) == 1
    assert await hf.agents.count() == len(await hf.agents.list())
    assert (await hf.agents[made["a"].id].run("Who?")).text == "I am of a"
    assert (await hf.agents[made["b"].id].run("Who?")).text == "I am of b"


async def test_ap_49_agents_declared_here_with_one_name_are_told_apart_too(hf: Holdfast) -> None:
    """AP-49: first generation, agents of the program."""
    one = hf.agent("clerk", model=scripted(hf, say("one")), metadata={"n": 1})
    two = hf.agent("clerk", model=scripted(hf, say("two")), metadata={"n": 2})
    assert [(await agent.run("Who?")).text for agent in (one, two, one)] == ["one", "two", "one"]
    for agent, name in ((one, "first"), (two, "second")):  # as a delegate, which is found by the id of its agent
        lead = hf.agent(name, model=scripted(hf, call("clerk", task="Who?"), say("asked")), agents=[agent])
        run = await lead.enqueue("Go")
        assert await run.text() == "asked"
        (child,) = await run.children()
        assert child.output["text"] == ("one" if agent is one else "two")
    for number, agent in ((1, one), (2, two)):
        row = await hf.agents.get("clerk", metadata={"n": number})
        assert [each.id for each in await hf.agents.list(name="clerk", metadata={"n": number})] == [row.id]
        told = await hf.agents[row.id].run("Who?")
        assert told.text == (await agent.run("Who?")).text
        assert (await hf.runs.get(told.run_id)).agent == row.id


async def test_ap_50_fifty_who_create_one_agent_get_one(make_app: MakeApp) -> None:
    """AP-50: on several connections, and with the first session of a key too."""
    apps = [make_app(embedded=False) for _ in range(3)]
    made = await asyncio.gather(
        *(apps[n % 3].agents.create("same", model="scripted:", metadata={"b": 2, "a": 1}) for n in range(50))
    )
    assert len({(row.id, row.version) for row in made}) == 1
    assert len(await apps[0].agents.versions(made[0].id)) == 1
    opened = await asyncio.gather(*(apps[n % 3].session("one") for n in range(50)))
    assert len({session.id for session in opened}) == 1


async def test_ap_55_waiting_for_a_run(make_app: MakeApp) -> None:
    """AP-55: at once when it has ended; an error says which run and why; a wait can be given up."""
    hf = make_app(embedded=False)
    core_of(hf).book.substitute = model = Gated(say("done"))
    run = await hf.agent("a", model="scripted:").enqueue("Go")
    async with working(hf):
        await model.reached(1)
        with pytest.raises(ResultTimeout, match="it continues"):
            await run.result(timeout="10ms")
        wait = asyncio.create_task(run.result())
        await asyncio.sleep(0)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait
        assert (await run.refresh()).state == "streaming"
        model.gate.set()
        assert await run.text() == "done"
        core_of(hf).book.substitute = None
        failing = await hf.agent("b", model=scripted(hf, ends("mystery", say("?")))).enqueue("Go", session="s")
        with pytest.raises(RunFailed) as caught:
            await failing.result()
    assert (await run.result()).text == "done"
    assert (caught.value.job, caught.value.state, caught.value.type) == (failing.id, "failed", "streaming_error")
    assert caught.value.run == failing.id
    assert caught.value.session == failing.session_id == (await hf.sessions.get("s")).id
    with pytest.raises(NotFound):
        await hf.runs["018f0000-0000-7000-8000-000000000000"].result()


async def all_heard(listener: psycopg.AsyncConnection, prefix: str) -> list[tuple[str, Any]]:
    """Topic and payload of what was announced so far; a note of our own says that there is no more."""
    heard: list[tuple[str, Any]] = []
    await listener.execute(f"notify {prefix}_run_created, '\"that was all\"'".encode())
    async for note in listener.notifies():
        if note.payload == '"that was all"':
            break
        heard.append((note.channel.removeprefix(f"{prefix}_"), json.loads(note.payload)))
    await listener.close()
    return heard


@pytest.mark.parametrize(("prefix", "public"), [("holdfast", True), ("agentpg", True), ("holdfast", False)])
async def test_ap_56_outside_listeners_hear_the_five_topics(
    make_app: MakeApp, place: Place, prefix: str, public: bool
) -> None:
    """AP-56: by LISTEN with the documented payloads, under a prefix of one's own, or not at all.

    Nobody can listen to a file: there the same topics are read from the store.
    """
    hf = make_app(embedded=False, topic_prefix=prefix, public_topics=public)

    @hf.tool
    def look() -> str:
        """Look."""
        return "seen"

    inner = hf.agent("inner", model=scripted(hf, say("ok")))
    model = scripted(hf, calls(call("look"), call("inner", task="x")), say("done"))
    outer = hf.agent("outer", model=model, tools=[look], agents=[inner])
    await core_of(hf).runtime().open()
    listener = None if place.url.startswith("sqlite") else await psycopg.AsyncConnection.connect(place.direct)
    if listener is not None:
        await listener.set_autocommit(True)
        for topic in TOPICS:
            await listener.execute(f"listen {prefix}_{topic}".encode())
    async with working(hf):
        run = await outer.enqueue("Go")
        await run.result()
    if listener is not None:
        await hf.close()  # changes are announced after their commits: this tells the last of them
        heard = await all_heard(listener, prefix)
    else:
        rows = await core_of(hf).runtime().transact(queries.topics_after, (0, 0, 0), 1_000)
        heard = [(row.topic, json.loads(row.data)) for row in rows]
    if not public and listener is not None:
        assert heard == []
        return
    (child,) = await run.children()
    looked, delegated = await run.calls()
    by_topic: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for topic, payload in heard:
        by_topic[topic].append(payload)
    row = await run.refresh()
    created = {"run_id": run.id, "session_id": row.session, "agent_name": "outer", "run_mode": "streaming"}
    assert by_topic["run_created"][0] == {**created, "agent_id": row.agent, "parent_run_id": None, "depth": 0}
    assert {(each["run_id"], each["agent_id"]) for each in by_topic["run_state"]} == {
        (run.id, row.agent),
        (child.id, child.agent),
    }
    assert by_topic["run_created"][1]["run_id"] == child.id
    assert (by_topic["run_created"][1]["parent_run_id"], by_topic["run_created"][1]["depth"]) == (run.id, 1)
    states = [each["state"] for each in by_topic["run_state"] if each["run_id"] == run.id]
    assert states == ["streaming", "pending_tools", "pending", "streaming", "completed"]
    before = [each["previous_state"] for each in by_topic["run_state"] if each["run_id"] == run.id]
    assert before == ["pending", "streaming", "pending_tools", "pending", "streaming"]
    assert {frozenset(each) for each in by_topic["run_state"]} == {
        frozenset({"run_id", "session_id", "agent_name", "agent_id", "state", "previous_state", "parent_run_id"})
    }
    final = {"session_id": row.session, "state": "completed"}
    assert {"run_id": run.id, **final, "parent_run_id": None, "parent_tool_execution_id": None} in by_topic[
        "run_finalized"
    ]
    below = {"run_id": child.id, **final, "parent_run_id": run.id, "parent_tool_execution_id": delegated.id}
    assert below in by_topic["run_finalized"]
    assert len(by_topic["run_finalized"]) == 2
    assert by_topic["tools_complete"] == [{"run_id": run.id}]
    if listener is None:
        assert [event.call for event in await run.events() if isinstance(event, ToolCalled)] == [
            looked.id,
            delegated.id,
        ]
        return
    pending = {each["execution_id"]: each for each in by_topic["tool_pending"]}
    assert pending == {
        looked.id: {
            "execution_id": looked.id,
            "run_id": run.id,
            "tool_name": "look",
            "is_agent_tool": False,
            "agent_name": None,
            "agent_id": None,
        },
        delegated.id: {
            "execution_id": delegated.id,
            "run_id": run.id,
            "tool_name": "inner",
            "is_agent_tool": True,
            "agent_name": "inner",
            "agent_id": child.agent,
        },
    }


async def test_ap_60_a_key_makes_two_calls_one_run(make_app: MakeApp) -> None:
    """AP-60: also of fifty at once; another prompt under the key is refused."""
    hf, other = make_app(embedded=False), make_app(embedded=False)
    agents = [app.agent("a", model=scripted(app, say("once"))) for app in (hf, other)]
    runs = await asyncio.gather(*(agents[n % 2].enqueue("Pay", key="k", session="s") for n in range(50)))
    assert len({run.id for run in runs}) == 1
    assert len({run.session_id for run in runs}) == 1
    with pytest.raises(IdempotencyConflict):
        await agents[0].enqueue("Pay more", key="k", session="s")
    with pytest.raises(IdempotencyConflict):
        await agents[0].enqueue("Pay", key="k", session="s", variables={"n": 2})
    assert (await agents[0].enqueue("Pay", key="k", session="s", tenant="b")).id != runs[0].id
    async with working(hf):
        assert await runs[-1].text() == "once"
    assert (await agents[1].enqueue("Pay", key="k", session="s")).id == runs[0].id

    async def settled() -> bool:
        return len(await hf.runs.list()) == 2

    await eventually(settled)
