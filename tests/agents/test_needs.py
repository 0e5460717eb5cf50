"""What a run needs of its worker: the code of the tools in its own version, wherever its agent stands by then."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Agent, Holdfast
from holdfast.agents.definition import AgentSpec, ToolSpec
from holdfast.agents.runs.create import MOST_NAMED, needs_of
from holdfast.app import core_of
from holdfast.errors import NoWorker
from holdfast.kernel.routes import route_for
from holdfast.models.script import Script, call, say
from holdfast.models.spool import MemoryShelf
from holdfast.workers.role import Role
from tests.agents.test_batches_between_programs import _has_ended, _play_at_once
from tests.conftest import Place
from tests.support.agents import in_run_state, scripted
from tests.support.apps import MakeApp, eventually, working
from tests.support.past_kernel import query

BIG = 50


def refunding(app: Holdfast, **options: Any) -> Any:
    """A tool of which a person approves only what is much."""

    @app.tool(approve=lambda call: call.input["amount"] > BIG, **options)
    def refund(amount: int) -> str:
        """Refund."""
        return f"refunded {amount}"

    return refund


def digging(app: Holdfast, **options: Any) -> Any:
    @app.tool(**options)
    def dig() -> str:
        """Dig."""
        return "dug"

    return dig


def share_scripts(*apps: Holdfast) -> None:
    for app in apps[1:]:
        core_of(app).book.scripts |= core_of(apps[0]).book.scripts


async def untouched(app: Holdfast, id: str) -> bool:
    """Whether nobody has claimed this run, though whoever looks has looked."""
    return (await app.runs.get(id)).state == "pending" and not await app.jobs.attempts(id)


async def test_a_worker_whose_agent_lacks_a_tool_of_the_newer_version_leaves_its_runs(make_app: MakeApp) -> None:
    """Both declare the agent. The old one has no tool: it would ask a person for an approval nobody wants."""
    old, new = make_app(embedded=False), make_app(embedded=False)
    model = scripted(new, call("refund", amount=5), say("refunded"))
    share_scripts(new, old)
    before = old.agent("desk", model=model)
    after = new.agent("desk", model=model, tools=[refunding(new)])
    async with working(old):
        run = await after.enqueue("Refund 5")
        marker = await before.enqueue("Hello", model=scripted(old, say("hello")))
        assert await marker.text() == "hello"
        assert await untouched(new, run.id)
        assert "no worker has tool:refund" in str(await new.why(run.id))
        with pytest.raises(NoWorker):
            await after.enqueue("Refund 6", require_worker=True)
        async with working(new):
            assert await run.text() == "refunded"
    assert await new.inquiries.list(state=None) == []


async def test_one_name_may_stand_for_agents_with_different_tools(make_app: MakeApp) -> None:
    """Each tenant's agent goes to who has its tools, whatever the name has been adopted for."""
    able, unable = make_app(embedded=False), make_app(embedded=False)
    for app in (able, unable):
        digging(app)
    refunding(able)
    dig, refund = scripted(able, call("dig"), say("dug")), scripted(able, call("refund", amount=5), say("refunded"))
    share_scripts(able, unable)
    for app in (able, unable):
        app.tenant("a").allow(tools=["dig"], models=[dig])
        app.tenant("b").allow(tools=["refund"], models=[refund])
    digger = await able.tenant("a").agents.create("desk", model=dig, tools=["dig"])
    cashier = await able.tenant("b").agents.create("desk", model=refund, tools=["refund"])
    async with working(unable):
        paid = await able.tenant("b").agents[cashier.id].enqueue("Refund")
        assert await (await able.tenant("a").agents[digger.id].enqueue("Dig")).text() == "dug"
        assert await untouched(able, paid.id)
        async with working(able):
            assert await paid.text() == "refunded"
    assert await able.inquiries.list(state=None) == []


async def test_each_run_keeps_the_needs_of_its_version(make_app: MakeApp) -> None:
    """The agent is updated while runs wait: a worker that lacks the new tool plays the old runs and leaves the new."""
    able, unable = make_app(embedded=False), make_app(embedded=False)
    for app in (able, unable):
        digging(app)
    refunding(able)
    dig, refund = scripted(able, call("dig"), say("dug")), scripted(able, call("refund", amount=5), say("refunded"))
    share_scripts(able, unable)
    row = await able.agents.create("desk", model=dig, tools=["dig"])
    first = await able.agents[row.id].enqueue("Dig")
    await able.agents.update(row.id, model=refund, tools=["refund"])
    second = await able.agents[row.id].enqueue("Refund")
    async with working(unable):
        assert await first.text() == "dug"
        assert await untouched(able, second.id)
    async with working(able):
        assert await second.text() == "refunded"


async def test_a_child_run_needs_what_the_present_version_of_its_agent_needs(make_app: MakeApp) -> None:
    able, unable = make_app(embedded=False), make_app(embedded=False)
    inner = scripted(able, call("refund", amount=5), say("refunded"))
    outer = scripted(able, call("cashier", task="Refund 5"), say("done"))
    share_scripts(able, unable)
    cashier = able.agent("cashier", model=inner, tools=[refunding(able)])
    desk = await able.agents.create("desk", model=outer, agents=[cashier])
    run = await able.agents[desk.id].enqueue("Go")
    async with working(unable):  # it can play the desk
        (child,) = await eventually(lambda: able.runs.list(parent=run.id))
        assert "no worker has agent:cashier, tool:refund" in str(await able.why(child.id))
    async with working(able):
        assert await run.text() == "done"
    assert await able.inquiries.list(state=None) == []


async def test_a_tool_with_a_pool_of_its_own_is_called_there(make_app: MakeApp) -> None:
    """Who plays the run needs neither to serve its queue nor to have its code."""
    author, pit, anyone = make_app(embedded=False), make_app(embedded=False), make_app(embedded=False)
    dig, _ = [digging(app, queue="pit") for app in (author, pit)]
    model = scripted(author, call("dig"), say("dug"))
    share_scripts(author, anyone)
    declared = author.agent("digger", model=model, tools=[dig])
    row = await author.agents.create("stored", model=model, tools=["dig"])
    async with working(pit, Role(queues=("pit",), only={"agent": ()})):
        async with working(author, Role(queues=("default",))):
            assert await (await declared.enqueue("Dig")).text() == "dug"
        async with working(anyone):
            assert await (await author.agents[row.id].enqueue("Dig")).text() == "dug"


async def test_what_a_person_approves_is_said_where_the_tool_is(make_app: MakeApp) -> None:
    """A tool of another pool whose approve= is code: who declares it plays, who lacks it leaves the run."""
    author, anyone = make_app(embedded=False), make_app(embedded=False)
    refunding(author, queue="till")
    model = scripted(author, call("refund", amount=5), say("refunded"))
    share_scripts(author, anyone)
    row = await author.agents.create("desk", model=model, tools=["refund"])
    marker = await author.agents.create("marker", model=scripted(author, say("marked")))
    share_scripts(author, anyone)
    async with working(anyone):
        run = await author.agents[row.id].enqueue("Refund")
        assert await (await author.agents[marker.id].enqueue("Mark")).text() == "marked"
        assert await untouched(author, run.id)
        async with working(author, Role(queues=("default",))), working(author, Role(queues=("till",))):
            assert await run.text() == "refunded"
    assert await author.inquiries.list(state=None) == []


async def test_a_run_with_the_route_of_the_release_before_is_put_off_by_who_lacks_its_tool(
    make_app: MakeApp, place: Place
) -> None:
    """Its route names no tool. A worker that lacks one says so before it asks the model; one that has it plays it."""
    old, new = make_app(embedded=False), make_app(embedded=False)
    model = scripted(new, call("refund", amount=5), say("refunded"))
    share_scripts(new, old)
    old.agent("desk", model=model)
    run = await new.agent("desk", model=model, tools=[refunding(new)]).enqueue("Refund")
    base = route_for("default", "agent:desk")
    query(
        place,
        f"insert into holdfast.route (id, queue, capabilities, used_at) values ({base.id}, 'default', "
        f"'{base.capabilities}', (select max(created_at) from holdfast.job))",
    )
    for table in ("job", "ready"):
        query(place, f"update holdfast.{table} set route = {base.id}")
    async with working(old):
        (attempt,) = await eventually(lambda: new.jobs.attempts(run.id))
        assert attempt.outcome == "snoozed"
        assert "lacks tool refund, whose approve= says what a person approves" in str(await new.why(run.id))
        assert (await run.turns(), await new.inquiries.list(state=None)) == ([], [])
    query(place, "update holdfast.later set due_at = 1")
    async with working(new):
        assert await run.text() == "refunded"
    assert await new.inquiries.list(state=None) == []


def test_the_needs_of_a_version_are_the_tools_that_code_runs() -> None:
    def tool(name: str, **more: Any) -> ToolSpec:
        return ToolSpec(name=name, description="", schema={}, **more)

    mine = [tool("b"), tool("a"), tool("asks", person=True, approve=True), tool("far", queue="pit")]
    mine += [tool("gpu", requires=("tag:gpu",)), tool("guarded", queue="pit", approve=True)]
    server = ({"type": "web_search", "name": "web_search"},)
    spec = AgentSpec(name="x", model="scripted:x", tools=tuple(mine), server_tools=server)
    assert needs_of(spec) == ["tool:a", "tool:b", "tool:guarded"]
    many = [tool(f"n{number:03}") for number in range(300)] + [tool("z", approve=True)]
    named = needs_of(AgentSpec(name="x", model="scripted:x", tools=tuple(many)))
    assert (len(named), named[0], named[-1]) == (MOST_NAMED, "tool:n000", "tool:z")


def test_a_run_takes_a_slot_of_runs_whatever_its_route_names(hf: Holdfast) -> None:
    digging(hf)
    hf.agent("a", model="scripted:x")
    assert core_of(hf).registry.slots_of(["agent:a", "tool:dig"]) == "runs"
    assert core_of(hf).registry.slots_of(["agent:a", "system:batch", "tool:dig"]) == "batched"
    assert core_of(hf).registry.slots_of(["tool:dig"]) == "tools"
    assert core_of(hf).registry.slots_of(["job:unknown", "tool:unknown"]) == "jobs"


async def test_an_answer_of_a_batch_is_decided_where_the_tool_is(make_app: MakeApp) -> None:
    """A worker that serves an agent of that name, without the tool, collects the batch: it keeps the answer."""
    shelf = MemoryShelf()
    script = Script(call("refund", amount=5), say("done"))

    def desk(wait: str) -> tuple[Holdfast, Agent[str]]:
        hf = make_app(embedded=False, batch_wait=wait)
        core_of(hf).book.shelf = shelf
        hf.script("d", script)
        return hf, hf.agent("desk", model="scripted:d", tools=[refunding(hf)])

    hf, agent = desk("1h")
    run = await agent.enqueue("Go", mode="batch")
    async with working(hf):
        (batch,) = await eventually(hf.batches.list)
        await in_run_state(run, "batch_submitting")
    other = make_app(embedded=False)
    core_of(other).book.shelf = shelf
    other.script("d", script)
    other.agent("desk", model="scripted:d")
    await _play_at_once(other, batch.id)
    async with working(other):
        await eventually(lambda: _has_ended(other, batch.id))
        assert (await run.refresh()).state == "pending"
        assert await hf.inquiries.list(state=None) == []
    again, _ = desk("10ms")
    async with working(again):
        await in_run_state(run, "completed")
    assert await hf.inquiries.list(state=None) == []
