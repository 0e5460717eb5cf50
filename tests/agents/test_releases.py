"""Releases that mix: what a newer release has written into the store is read, passed on or left to it, never lost."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import field, make_dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.definition import LATER, AgentSpec, Delegate, Limits, ToolSpec, as_stored
from holdfast.agents.tools import ToolContext
from holdfast.app import core_of
from holdfast.cli.jobs import Watcher, _as_line
from holdfast.cli.tables import ASCII
from holdfast.cli.top import plain_frame, sampler_for
from holdfast.errors import NotUnderstood
from holdfast.events import ApprovalRequested, RunEnded, TextDelta, UnknownEvent, event_of, wire
from holdfast.kernel import codec
from holdfast.kernel.rows import NewJob
from holdfast.kernel.schedules import list_schedules
from holdfast.models.script import call, say
from holdfast.values import moment
from holdfast.workers.role import Role
from tests.conftest import Place, fresh_file
from tests.support.agents import in_run_state, scripted
from tests.support.apps import MakeApp, eventually, working
from tests.support.past_kernel import lift_checks, query

FUTURE = {"invented": {"later": [1, 2]}}


@pytest.fixture
def place(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    """A database of the test's own, whose checks it may lift."""
    if dialect == "sqlite":
        return fresh_file(tmp_path, request)
    url = request.getfixturevalue("postgres_url")
    return Place(url, url)


def change_definitions(place: Place, agent: str, change: dict[str, Any]) -> None:
    """Put these fields into the stored definitions of an agent, as a newer release would have written them."""
    found = query(
        place,
        "select v.agent, v.version, v.definition from holdfast.agent_version v join holdfast.agent a on a.id = v.agent "
        f"where a.name = '{agent}'",
    )
    for id, version, definition in found:
        known = definition if isinstance(definition, dict) else json.loads(definition)
        text = json.dumps(known | change).replace("'", "''")
        query(
            place,
            f"update holdfast.agent_version set definition = '{text}' where agent = '{id}' and version = {version}",
        )


def with_tool(app: Holdfast) -> Any:
    @app.tool
    def dig(depth: int) -> str:
        """Dig."""
        return f"dug {depth}"

    return dig


async def test_a_definition_with_fields_of_the_future_is_adopted_and_played(make_app: MakeApp, place: Place) -> None:
    """Of the agent, its tools, its limits, and the agents it may call. Fields that are missing have their defaults."""
    author, fresh = make_app(embedded=False), make_app(embedded=False)
    with_tool(author)
    with_tool(fresh)
    model = scripted(author, call("dig", depth=2), say("deep"))
    core_of(fresh).book.scripts |= core_of(author).book.scripts
    helper = author.agent("helper", model=model)
    row = await author.agents.create("digger", model=model, tools=["dig"], agents=[helper])
    (stored_one,) = await author.agents.versions(row.id)
    spec = stored_one.definition
    spec["tools"] = [tool | FUTURE for tool in spec["tools"]]
    spec["agents"] = [each | FUTURE for each in spec["agents"]]
    spec["limits"] |= FUTURE
    del spec["continuations"], spec["tools"][0]["review"], spec["agents"][0]["requires"]
    query(place, "delete from holdfast.run")
    definition = json.dumps(spec | FUTURE).replace("'", "''")
    query(place, f"update holdfast.agent_version set definition = '{definition}' where agent = '{row.id}'")
    run = await author.agents[row.id].enqueue("Dig")
    query(place, """update holdfast.run set options = '{"limits": {"turns": 3, "invented": 1}, "invented": 2}'""")
    async with working(fresh):
        assert await run.text() == "deep"
    assert [call.state for call in await run.calls()] == ["completed"]


async def test_an_agent_that_is_not_understood_keeps_nobody_from_claiming(
    make_app: MakeApp, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Adoption looks at it at every poll: it says so once, and everything else goes on, plain jobs included."""
    author, fresh = make_app(embedded=False), make_app(embedded=False, route_refresh="50ms", poll_interval="20ms")

    @fresh.job(name="plain")
    async def plain() -> str:
        return "done"

    model = scripted(author, say("fine"))
    core_of(fresh).book.scripts |= core_of(author).book.scripts
    odd = await author.agents.create("odd", model=model)
    fine = await author.agents.create("fine", model=model)
    left = await author.agents[odd.id].enqueue("Go")
    change_definitions(place, "odd", {"max_tokens": {"at": "most"}})
    caplog.set_level(logging.WARNING, "holdfast.agents")
    async with working(fresh):
        for _ in range(3):
            assert await (await plain.enqueue()).result() == "done"
            assert await (await author.agents[fine.id].enqueue("Go")).text() == "fine"
    assert (await left.refresh()).state == "pending"
    assert await author.jobs.attempts(left.id) == []
    told = [record.getMessage() for record in caplog.records if "left to other workers" in record.getMessage()]
    assert len(told) == 1
    assert "max_tokens must be int; got {'at': 'most'}" in told[0]


@pytest.mark.parametrize(
    "change",
    [
        {"on_max_tokens": "reflect"},
        {"tools": [{"name": "dig", "description": "Dig.", "schema": {}, "effect": "thrice"}]},
        {"limits": {"turns": "as many as it likes"}},
        {"compaction": {"strategy": "dream"}},
    ],
    ids=["member", "nested member", "shape", "compaction"],
)
async def test_a_run_whose_definition_is_not_understood_waits_and_says_why(
    make_app: MakeApp, place: Place, change: dict[str, Any]
) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("digger", model=scripted(hf, say("done")), tools=[with_tool(hf)])
    run = await agent.enqueue("Go")
    known = json.loads(agent.spec.text())
    change_definitions(place, "digger", change)
    async with working(hf):
        await eventually(lambda: attempts(hf, run.id))
        query(place, "update holdfast.later set due_at = 1")
        await eventually(lambda: attempts(hf, run.id, 2))
        assert (await run.refresh()).state == "pending"
        assert {attempt.outcome for attempt in await hf.jobs.attempts(run.id)} == {"snoozed"}
        assert "this release of holdfast does not understand" in str(await hf.why(run.id))
        change_definitions(place, "digger", known)
        query(place, "update holdfast.later set due_at = 1")
        assert await run.text() == "done"


async def attempts(hf: Holdfast, id: str, number: int = 1) -> bool:
    return len(await hf.jobs.attempts(id)) >= number


@pytest.mark.parametrize(
    "change",
    [
        "state = 'dreaming'",
        """options = '{"limits": {"turns": []}}'""",
        """options = '{"tree": 7}'""",
        """options = '{"fork": {"tools": "guessed"}}'""",
        """options = '{"fork": "yes"}'""",
        "options = '[]'",
    ],
    ids=["state", "limits", "tree", "policy", "fork", "options"],
)
async def test_a_run_that_is_not_understood_itself_waits_before_it_costs_anything(
    make_app: MakeApp, place: Place, change: str
) -> None:
    lift_checks(place)
    hf = make_app(embedded=False)
    run = await hf.agent("a", model=scripted(hf, say("done"))).enqueue("Go")
    query(place, f"update holdfast.run set {change}")
    async with working(hf):
        await eventually(lambda: attempts(hf, run.id))
        assert (await hf.jobs.attempts(run.id))[0].outcome == "snoozed"
        assert await run.turns() == []
        assert "does not understand" in str(await hf.why(run.id))
        query(place, "update holdfast.run set state = 'pending', options = '{}'")
        query(place, "update holdfast.later set due_at = 1")
        assert await run.text() == "done"


async def test_a_call_whose_surroundings_are_not_understood_waits_for_a_newer_worker(
    make_app: MakeApp, place: Place
) -> None:
    hf = make_app(embedded=False)

    @hf.tool(queue="elsewhere")
    def dig(ctx: ToolContext) -> str:
        """Dig."""
        return f"dug in turn {ctx.turn}"

    run = await hf.agent("digger", model=scripted(hf, call("dig"), say("done")), tools=[dig]).enqueue("Go")
    async with working(hf, Role(queues=("default",))):
        await eventually(run.calls)
    (asked,) = await run.calls()
    about = json.dumps((await hf.jobs.get(asked.id)).metadata)
    query(place, f"""update holdfast.job set metadata = '{{"call": "7"}}' where id = '{asked.id}'""")
    async with working(hf):
        await eventually(lambda: attempts(hf, asked.id))
        assert (await hf.jobs.attempts(asked.id))[0].outcome == "snoozed"
        assert "does not understand the call" in str(await hf.why(asked.id))
        query(place, f"update holdfast.job set metadata = '{about}' where id = '{asked.id}'")
        query(place, "update holdfast.later set due_at = 1")
        assert await run.text() == "done"


async def test_a_schedule_of_the_future_is_fired_and_one_that_is_not_understood_says_why(
    make_app: MakeApp, place: Place
) -> None:
    hf = make_app(embedded=False)

    @hf.schedule("every 1h", name="known")
    async def known() -> str:
        return "ticked"

    @hf.schedule("every 1h", name="odd")
    async def odd() -> str:
        return "ticked"

    async with working(hf):
        await eventually(hf.schedules.list)
    stored_json = await core_of(hf).runtime().transact(list_schedules)
    rows = {row.name: json.loads(row.job) for row in stored_json}
    new = {"job": rows["known"]["job"] | FUTURE, "route": rows["known"]["route"] | FUTURE, **FUTURE}
    del new["job"]["layer"], new["job"]["replaces"]
    query(place, f"update holdfast.schedule set job = '{json.dumps(new)}' where name = 'known'")
    odd_job = {"job": rows["odd"]["job"] | {"priority": "high"}, "route": rows["odd"]["route"]}
    query(place, f"update holdfast.schedule set job = '{json.dumps(odd_job)}' where name = 'odd'")
    query(place, "update holdfast.schedule set next_at = 1")
    passer = make_app(embedded=False, poll_interval="20ms")  # it declares neither
    async with working(passer):

        async def fired() -> bool:
            return any(row.error for row in await hf.schedules.list()) and bool(
                await hf.jobs.list(kind=known.definition.kind)
            )

        await eventually(fired)
    (error,) = [row.error for row in await hf.schedules.list() if row.error]
    assert "priority must be int; got 'high'" in error


def test_events_of_the_future_are_passed_on() -> None:
    place: dict[str, Any] = {"run": "r", "seq": 4, "at": 5}
    shown = {**place, "at": moment(5)}
    assert event_of(**place, type="dreamt", data={"of": "sheep"}) == UnknownEvent(
        **shown, type="dreamt", data={"of": "sheep"}
    )
    assert event_of(**place, type="text_delta", data={"text": "a", **FUTURE}) == TextDelta(**shown, text="a")
    odd = [("approval_requested", {}), ("approval_requested", {"call": 7}), ("turn_ended", [1]), ("run_created", None)]
    for type, data in odd:
        event = event_of(**place, type=type, data=data)  # type: ignore[arg-type]
        assert isinstance(event, UnknownEvent | ApprovalRequested)
        name, told = wire(event)
        assert (name, told["run"]) == (type, "r")
    asked = event_of(**place, type="approval_requested", data={"call": {"name": "dig", "input": {}, **FUTURE}})
    assert isinstance(asked, ApprovalRequested)
    assert asked.call.name == "dig"


async def test_states_and_kinds_of_the_future_are_shown_as_they_are(make_app: MakeApp, place: Place) -> None:
    """Lists, `why`, streams: an ended run in a state that this release does not know, and events it never wrote."""
    lift_checks(place)
    hf = make_app(embedded=False)
    agent = hf.agent("a", model=scripted(hf, say("done")))
    async with working(hf):
        run = await agent.enqueue("Go")
        assert await run.text() == "done"
    query(place, "update holdfast.run set state = 'rewarded', outcome = 'applauded'")
    query(place, "update holdfast.run_event set type = 'dreamt' where seq = 2")
    query(place, "update holdfast.run_event set data = '7' where seq = 3")
    query(place, "update holdfast.message set kind = 'aside' where kind = 'prompt'")
    (row,) = await hf.runs.list()
    assert (row.state, row.outcome) == ("rewarded", "applauded")
    assert [row.id for row in await hf.runs.list(agent="a")] == [run.id]
    assert "it ended as rewarded at" in str(await hf.why(run.id))
    seen = [event async for event in run.stream()]
    assert [type(event) for event in seen[1:3]] == [UnknownEvent, UnknownEvent]
    assert isinstance(seen[-1], RunEnded)
    assert [event.seq for event in await run.events()] == [event.seq for event in seen]
    with pytest.raises(Exception, match="ended as rewarded"):
        await run.result()
    assert [message.kind for message in await hf.sessions[row.session].messages()] == ["aside", "answer"]
    async with working(hf):  # the next run of the session reads it all
        assert await (await agent.enqueue("Go on", session=hf.sessions[row.session])).text() == "done"


async def test_inquiries_of_the_future_are_shown_and_left_to_it(make_app: MakeApp, place: Place) -> None:
    lift_checks(place)
    hf = make_app(embedded=False)

    @hf.tool(approve=True)
    def dig() -> str:
        """Dig."""
        return "dug"

    run = await hf.agent("digger", model=scripted(hf, call("dig"), say("done")), tools=[dig]).enqueue("Go")
    async with working(hf):
        await eventually(hf.inquiries.list)
        query(place, """update holdfast.inquiry set kind = 'wager', data = '{"call": {"title": 1}, "stake": 5}'""")
        (inquiry,) = await hf.inquiries.list()
        assert (inquiry.kind, inquiry.call, inquiry.data["stake"]) == ("wager", None, 5)
        assert (await hf.inquiries.get(inquiry.id)).kind == "wager"
        assert "wager of dig" in str(await hf.why(run.id))
        with pytest.raises(NotUnderstood, match="its kind is 'wager'"):
            await hf.approve(inquiry.id)
        query(
            place, """update holdfast.inquiry set kind = 'approval', data = '{"call": {"name": "dig", "input": {}}}'"""
        )
        await hf.approve(inquiry.id)
        assert await run.text() == "done"


async def test_jobs_and_attempts_of_the_future_are_shown_as_they_are(make_app: MakeApp, place: Place) -> None:
    lift_checks(place)
    hf = make_app(embedded=False)

    @hf.job(name="work")
    async def work() -> str:
        return "done"

    async with working(hf):
        done = await work.enqueue()
        await done.result()
    waiting = await work.options(delay="1h").enqueue()
    query(place, "update holdfast.ended set outcome = 'praised'")
    query(place, "update holdfast.later set state = 'dormant'")
    assert [attempt.outcome for attempt in await hf.jobs.attempts(done.id)] == ["praised"]
    assert {row.state for row in await hf.jobs.list()} == {"succeeded", "dormant"}
    assert "it is dormant" in str(await hf.why(waiting.id))
    changes = await Watcher(hf, None, 10).look()
    assert sorted(shown.split("  ")[2].strip() for shown in map(_as_line, changes)) == ["dormant", "succeeded"]
    assert all(re.match(r"\d\d:\d\d:\d\d  ", _as_line(change, today=True)) for change in changes)
    assert "default" in plain_frame(await sampler_for(hf).sample(), 100, ASCII)
    with pytest.raises(NotUnderstood, match="dormant"):
        await waiting.cancel()
    assert str((await hf.jobs.get(waiting.id)).state) == "dormant"


def test_a_record_is_read_by_its_declared_types() -> None:
    spec = AgentSpec(name="a", model="scripted:x")
    assert AgentSpec.parse(spec.text()) == spec
    changes: list[dict[str, Any]] = [
        {"tools": {}},
        {"tools": [7]},
        {"name": None},
        {"priority": "high"},
        {"agents": [{}]},
    ]
    for change in changes:
        with pytest.raises(NotUnderstood, match="the definition of agent"):
            AgentSpec.parse(json.dumps(json.loads(spec.text()) | change))
    for text in ("[]", "7", "null"):
        with pytest.raises(NotUnderstood):
            AgentSpec.parse(text)
    with pytest.raises(NotUnderstood, match="kind is missing"):
        codec.read(NewJob, {"id": "x"}, what="a job")


async def test_a_batch_in_a_state_of_the_future_waits_for_a_newer_worker(make_app: MakeApp, place: Place) -> None:
    lift_checks(place)
    hf = make_app(embedded=False, batch_wait="1h")
    run = await hf.agent("a", model=scripted(hf, say("done"))).enqueue("Go", mode="batch")
    async with working(hf):
        (batch,) = await eventually(hf.batches.list)
        await in_run_state(run, "batch_submitting")
        query(place, "update holdfast.batch set state = 'audited'")
        query(place, "update holdfast.later set due_at = 1 where due_at is not null")
        (job,) = await hf.jobs.list(kind="system:batch")
        await eventually(lambda: attempts(hf, job.id))
        assert (await hf.jobs.attempts(job.id))[0].outcome == "snoozed"
        assert f"does not understand batch {batch.id}" in str(await hf.why(job.id))
        assert "which is audited" in str(await run.why())
        assert [row.state for row in await hf.batches.list()] == ["audited"]
        query(place, "update holdfast.batch set state = 'gathering'")
        query(place, "update holdfast.later set due_at = 1 where due_at is not null")
        await in_run_state(run, "completed")


WRITTEN_BY_0_1_0 = {
    "AgentSpec": (
        *("name", "model", "instructions", "max_tokens", "options", "tools", "agents", "server_tools", "output"),
        *("limits", "attempts", "queue", "priority", "requires", "caching", "compaction", "tool_search", "fallbacks"),
        *("fallback_after", "on_max_tokens", "continuations"),
    ),
    "ToolSpec": (
        *("name", "description", "schema", "effect", "queue", "requires", "timeout_us", "attempts", "priority"),
        *("strict", "defer", "lane", "concurrency", "approve", "person", "within_us", "otherwise", "review"),
    ),
    "Delegate": ("name", "description", "agent", "queue", "priority", "requires"),
    "Limits": ("turns", "depth", "tokens", "cost", "time", "on_limit", "within"),
}


def test_a_definition_that_uses_nothing_new_is_written_as_0_1_0_writes_it() -> None:
    """A field more would make a new version of every agent at the upgrade: mark it as `LATER`."""
    tool = ToolSpec(name="dig", description="Dig.", schema={}, requires=("tag:pit",))
    spec = AgentSpec(name="a", model="scripted:x", tools=(tool,), agents=(Delegate(name="b", description="B"),))
    written = json.loads(spec.text())
    parts = {"AgentSpec": written, "ToolSpec": written["tools"][0], "Delegate": written["agents"][0]}
    for name, part in {**parts, "Limits": written["limits"]}.items():
        assert set(part) == set(WRITTEN_BY_0_1_0[name])
    assert AgentSpec.parse(spec.text()) == spec


def test_a_later_field_is_written_where_it_says_something() -> None:
    hops = ("hops", int | None, field(default=None, metadata=LATER))
    newer = make_dataclass("Limits", [hops], bases=(Limits,), frozen=True)
    assert as_stored(newer(turns=3)) == as_stored(Limits(turns=3))
    assert as_stored(newer(turns=3, hops=2)) == as_stored(Limits(turns=3)) | {"hops": 2}
