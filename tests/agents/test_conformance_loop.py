"""AgentPG's statements on the loop of a run, AP-11 to AP-24: what is asked, stored, and given to whom."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

from holdfast import Holdfast, Retry, Snooze
from holdfast.agents.adoption import run_definition
from holdfast.agents.runs import turn
from holdfast.agents.runs.decision import Decision
from holdfast.agents.runs.turn import Answer, CommitResult, Play
from holdfast.agents.statements import CallsSql, RunsSql
from holdfast.agents.tools import ToolContext
from holdfast.app import core_of
from holdfast.errors import StoreUnavailable
from holdfast.kernel.database import Transaction
from holdfast.kernel.waiting import park
from holdfast.models.script import call, calls, ends, say, truncate
from holdfast.testing import Labs
from holdfast.values import moment
from tests.support.agents import Gated, Noting, results, scripted, settle
from tests.support.apps import MakeApp, eventually, outcomes, working

NEVER: dict[str, Any] = {"poll_interval": "10m", "sweep_interval": "10m"}
SOON = "50s"  # far below ten minutes, far above what it takes


def noting(app: Holdfast, *steps: Any) -> tuple[str, Noting]:
    name = f"n{len(core_of(app).book.scripts)}"
    script = Noting(*steps)
    app.script(name, script)
    return f"scripted:{name}", script


async def test_ap_11_the_prompt_is_stored_once_before_the_call_whatever_is_repeated(labs: Labs) -> None:
    """AP-11: also when the worker dies after storing it, and after the answer."""
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    model, asked = noting(hf, say("Hello."))
    agent = hf.agent("a", model=model)
    lab = await labs.use(hf)
    run = await agent.enqueue("Good day")
    lab.crash(after="begin")
    await settle(lab, run)
    other = await agent.enqueue("Good night")
    lab.crash(before="commit")
    await settle(lab, other)
    for each, prompt in ((run, "Good day"), (other, "Good night")):
        row = await each.refresh()
        messages = await hf.sessions[row.session].messages()
        assert [(m.kind, m.text) for m in messages] == [("prompt", prompt), ("answer", "Hello.")]
        assert row.state == "completed"
    assert all(len(body["messages"]) == 1 for body in asked.bodies)


async def test_ap_12_an_answer_completes_the_run(hf: Holdfast) -> None:
    """AP-12: with its text, its stop reason, its end, and one assistant message."""
    result = await hf.agent("a", model=scripted(hf, say("Good day."))).run("Hello")
    row = await hf.runs.get(result.run_id)
    assert (result.text, row.state, row.outcome, row.stop_reason) == ("Good day.", "completed", "answered", "end_turn")
    assert row.finalized_at is not None
    messages = await hf.sessions[result.session_id].messages()
    assert [m.role for m in messages] == ["user", "assistant"]


async def test_ap_13_calls_and_their_state_come_together(make_app: MakeApp) -> None:
    """AP-13: whoever sees pending_tools sees every call of the turn."""
    hf, hands = make_app(embedded=False), make_app(embedded=False)

    @hands.tool(queue="hands")  # a pool of its own, so the run is played without it
    def dig(n: int) -> int:
        """Dig."""
        return n

    asked = [call("dig", n=1), call("dig", n=2), call("dig", n=3)]
    model = scripted(hf, calls(*asked), say("done"))
    stored = await hands.agents.create("a", model=model, tools=["dig"])
    core_of(hf).registry.add(run_definition("a", core_of(hf).play, queue="default", requires=(), priority=100))
    run = await hf.agents[stored.id].enqueue("Go")
    seen: set[tuple[str, int]] = set()
    async with working(hf):

        async def parked() -> bool:
            row, made = await run.refresh(), await run.calls()
            seen.add((row.state, len(made)))
            return row.state == "pending_tools"

        await eventually(parked)
        assert [made.state for made in await run.calls()] == ["pending"] * 3
        core_of(hands).registry.adopts = False
        async with working(hands):
            assert await run.text() == "done"
    assert not [pair for pair in seen if pair[0] == "pending_tools" and pair[1] != 3]


async def test_ap_13_a_commit_that_breaks_off_leaves_no_call_behind(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AP-13: the store fails when the calls are written and the run is not parked; the answer is not bought again."""
    hf = make_app(embedded=False)
    core_of(hf).book.substitute = model = Gated(calls(*(call("dig", n=n) for n in range(3))), say("done"), waits=0)
    commit = turn.commit
    found: list[tuple[str, int, int]] = []
    broken: list[str] = []

    async def watched(tx: Transaction, play: Play, answer: Answer, decision: Decision) -> CommitResult:
        run = await tx.one(RunsSql.find_run, id=play.run.id)
        assert run is not None
        children = await tx.many(CallsSql.calls_of, run=run.id, turn=None)
        found.append((run.state, run.turns, len(children)))
        return await commit(tx, play, answer, decision)

    async def breaking(tx: Transaction, *given: Any, **options: Any) -> None:
        if not broken:
            broken.append("off")
            raise StoreUnavailable("cut in the middle of the commit")
        await park(tx, *given, **options)

    monkeypatch.setattr(turn, "commit", watched)
    monkeypatch.setattr(turn, "park", breaking)

    @hf.tool
    def dig(n: int) -> int:
        """Dig."""
        return n

    run = await hf.agent("a", model="scripted:", tools=[dig]).enqueue("Go")
    async with working(hf):
        assert await run.text() == "done"
    assert found == [("streaming", 0, 0), ("streaming", 0, 0), ("streaming", 1, 3)]
    assert (model.calls, len(await run.calls())) == (2, 3)
    assert [(turn.attempts, turn.unknown) for turn in await run.turns()] == [(1, 0), (1, 0)]


async def test_ap_14_ap_15_ap_16_tools_that_end_together_wake_the_run_once(make_app: MakeApp) -> None:
    """AP-14, AP-15, AP-16: one message with every result in order, and no sweep or poll is waited for."""
    hf = make_app(embedded=False, **NEVER)
    together = asyncio.Barrier(8)

    @hf.tool
    async def meet(n: int) -> int:
        """Meet."""
        async with asyncio.timeout(60):
            await together.wait()
        return n

    model = scripted(hf, calls(*(call("meet", n=n) for n in range(8))), say("met"))
    agent = hf.agent("a", model=model, tools=[meet])
    async with working(hf), working(hf):
        for _ in range(3):
            run = await agent.enqueue("Go")
            assert await run.text(timeout=SOON) == "met"
            row = await run.refresh()
            messages = await hf.sessions[row.session].messages()
            assert [m.kind for m in messages] == ["prompt", "answer", "results", "answer"]
            uses = [block["id"] for block in messages[1].blocks]
            assert [block["tool_use_id"] for block in messages[2].blocks] == uses
            assert [block["content"] for block in messages[2].blocks] == [str(n) for n in range(8)]
            assert len(await hf.jobs.attempts(run.id)) == 2


async def test_ap_17_an_answer_that_was_cut_off_is_not_a_normal_completion(hf: Holdfast) -> None:
    """AP-17: its outcome says so, and the session goes on with the next message."""
    agent = hf.agent("a", model=scripted(hf, truncate("Once upon a")))
    result = await agent.run("A story", session="s")
    assert (result.outcome, result.text, result.limit) == ("truncated", "Once upon a", "max_tokens")
    on = await hf.agent("b", model=scripted(hf, say("time."))).run("Go on", session="s")
    assert (on.outcome, on.text) == ("answered", "time.")


async def test_ap_18_totals_are_the_sum_of_the_turns(labs: Labs) -> None:
    """AP-18: also when turns were played again after a crash."""
    hf = Holdfast("sqlite:////nowhere/at-all.db")

    @hf.tool
    def look() -> str:
        """Look."""
        return "seen"

    agent = hf.agent("a", model=scripted(hf, call("look"), call("look"), say("done")), tools=[look])
    lab = await labs.use(hf)
    run = await agent.enqueue("Go")
    lab.crash(before="commit", nth=2)
    await settle(lab, run)
    row, turns = await run.refresh(), await run.turns()
    assert (row.turns, [turn.attempts for turn in turns]) == (3, [1, 2, 1])
    for counter in ("input_tokens", "output_tokens", "cache_write_tokens", "cache_read_tokens", "cost_nano"):
        assert getattr(row, counter) == sum(getattr(turn.usage, counter) for turn in turns), counter
    assert sum(turn.usage.output_tokens for turn in turns) > 0


async def test_ap_19_variables_reach_every_tool_below_and_never_the_model(hf: Holdfast) -> None:
    """AP-19: those of runs below too."""
    seen: list[Any] = []

    @hf.tool
    def look(ctx: ToolContext) -> str:
        """Look."""
        seen.append((ctx.depth, ctx.variable("secret", str), ctx.variable("n", int), ctx.variable("none", int, 7)))
        return "seen"

    lower, below = noting(hf, call("look"), say("ok"))
    upper, above = noting(hf, calls(call("look"), call("inner", task="look")), say("ok"))
    inner = hf.agent("inner", model=lower, tools=[look])
    await hf.agent("outer", model=upper, tools=[look], agents=[inner]).run(
        "Go", variables={"secret": "hunter2", "n": 3}
    )
    assert sorted(seen) == [(0, "hunter2", 3, 7), (1, "hunter2", 3, 7)]
    assert "hunter2" not in json.dumps([above.bodies, below.bodies])


async def test_ap_20_ap_22_a_nested_run_has_a_context_of_its_own(hf: Holdfast) -> None:
    """AP-20, AP-22: it sees its task alone, its parent sees its answer alone; one session, one mode, depth + 1."""
    lower, below = noting(hf, say("inner words"))
    upper, above = noting(hf, call("inner", task="the task"), say("outer words"))
    inner = hf.agent("inner", model=lower)
    result = await hf.agent("outer", model=upper, agents=[inner]).run("the prompt")
    (child,) = await hf.runs[result.run_id].children()
    parent = await hf.runs.get(result.run_id)
    assert (child.depth, child.session, child.mode, child.parent) == (1, parent.session, parent.mode, parent.id)
    (asked,) = below.bodies
    assert [m["content"][0]["text"] for m in asked["messages"]] == ["the task"]
    told = above.bodies[1]["messages"]
    assert [m["role"] for m in told] == ["user", "assistant", "user"]
    assert told[2]["content"][0]["content"] == "inner words"
    assert len(await hf.sessions[parent.session].messages()) == 4


async def test_ap_21_a_child_ends_and_its_parent_has_the_answer(hf: Holdfast) -> None:
    """AP-21: its text, or an error result where it failed or was cancelled; the parent goes on."""
    well = hf.agent("well", model=scripted(hf, say("all good")))
    failing = hf.agent("failing", model=scripted(hf, ends("mystery", say("?"))))
    stuck = asyncio.Event()

    @hf.tool
    async def wait() -> str:
        """Wait."""
        stuck.set()
        await asyncio.Event().wait()
        return ""

    lost = hf.agent("lost", model=scripted(hf, call("wait"), say("never")), tools=[wait])
    asked = calls(call("well", task="a"), call("failing", task="b"), call("lost", task="c"))
    await hf.ensure_worker()
    run = await hf.agent("boss", model=scripted(hf, asked, say("I see")), agents=[well, failing, lost]).enqueue("Go")
    async with asyncio.timeout(60):
        await stuck.wait()
    (child,) = [row for row in await run.children() if row.agent_name == "lost"]
    await hf.runs[child.id].cancel("not needed")
    assert (await run.result()).text == "I see"
    good, bad, gone = await results(hf, run.session_id)
    assert (good["content"], "is_error" in good) == ("all good", False)
    assert bad["is_error"]
    assert "mystery" in bad["content"]
    assert gone["is_error"]
    states = {row.agent_name: row.state for row in await run.children()}
    assert states == {"well": "completed", "failing": "failed", "lost": "cancelled"}
    assert [made.state for made in await run.calls()] == ["completed", "failed", "failed"]


async def test_ap_23_the_model_is_offered_its_tools_and_delegates_and_nothing_else(hf: Holdfast) -> None:
    """AP-23: in the order in which they were given."""

    @hf.tool
    def mine(n: int) -> int:
        """Mine."""
        return n

    @hf.tool
    def other() -> str:
        """Of another agent."""
        return ""

    model, script = noting(hf, say("ok"))
    helper = hf.agent("helper", model=model, tools=[other], description="Helps.")
    await hf.agent("a", model=model, tools=[mine], agents=[helper]).run("Go")
    offered = script.bodies[0]["tools"]
    assert [(tool["name"], tool["description"]) for tool in offered] == [("mine", "Mine."), ("helper", "Helps.")]
    assert offered[1]["input_schema"]["required"] == ["task"]


async def test_ap_24_neighbours_of_one_role_are_sent_as_one_message(hf: Holdfast) -> None:
    """AP-24: after a run that ended without an answer the provider still sees alternating roles."""
    await hf.agent("a", model=scripted(hf, ends("end_turn"))).run("One", session="s")
    model, script = noting(hf, say("Both."))
    await hf.agent("b", model=model).run("Two", session="s")
    (sent,) = script.bodies[0]["messages"]
    assert (sent["role"], [block["text"] for block in sent["content"]]) == ("user", ["One", "Two"])
    stored = await hf.sessions[(await hf.sessions.list())[0].id].messages()
    assert [m.text for m in stored if m.role == "user"] == ["One", "Two"]


async def test_ap_26_a_failed_tool_does_not_fail_its_run(hf: Holdfast) -> None:
    """AP-26: after its last attempt the model is told the text of the error, and the run goes on."""
    tried: list[int] = []

    @hf.tool(retry=Retry(attempts=3, backoff="constant", base="0s"))
    def broken(ctx: ToolContext) -> str:
        """Broken."""
        tried.append(ctx.attempt)
        raise ValueError("the valve is stuck")

    result = await hf.agent("a", model=scripted(hf, call("broken"), say("never mind")), tools=[broken]).run("Go")
    (told,) = await results(hf, result.session_id)
    assert (tried, result.text, told["is_error"]) == ([1, 2, 3], "never mind", True)
    assert "the valve is stuck" in told["content"]
    (made,) = await hf.runs[result.run_id].calls()
    assert (made.state, made.attempts) == ("failed", 3)


def test_ap_25_a_quartic_pause_is_spread_and_never_less_than_its_base() -> None:
    """AP-25: attempt^4 seconds, give or take the jitter, at least one."""
    policy, chance = Retry(backoff="quartic", base="1s", jitter=0.1), random.Random(1)
    for attempt in range(1, 6):
        waits = [policy.delay_us(attempt, chance) / 1e6 for _ in range(200)]
        assert max(1.0, 0.9 * attempt**4) <= min(waits) < max(waits) <= 1.1 * attempt**4
        assert attempt == 1 or min(waits) < attempt**4


async def test_ap_25_a_tool_that_failed_comes_back_when_its_policy_says(labs: Labs) -> None:
    """AP-25: at once by default; attempt^4 seconds with a quartic policy; its last error is there meanwhile."""
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    tried: list[tuple[str, int]] = []

    @hf.tool(retry=Retry(attempts=3, backoff="quartic", base="1s", jitter=0))
    def late(ctx: ToolContext) -> str:
        """Late."""
        tried.append(("late", ctx.attempt))
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return "late"

    @hf.tool
    def soon(ctx: ToolContext) -> str:
        """Soon."""
        tried.append(("soon", ctx.attempt))
        if ctx.attempt < 2:
            raise ValueError("not yet")
        return "soon"

    agent = hf.agent("a", model=scripted(hf, calls(call("late"), call("soon")), say("ok")), tools=[late, soon])
    lab = await labs.use(hf)
    run = await agent.enqueue("Go")
    await lab.drain()
    assert sorted(tried) == [("late", 1), ("soon", 1), ("soon", 2)]
    pending, done = await run.calls()
    assert (pending.state, done.state) == ("pending", "completed")
    job = await hf.jobs.get(pending.id)
    assert job.due_at is not None
    assert job.due_at == moment(lab.clock.wall_us() + 1_000_000)
    assert "not yet" in str((await hf.jobs.attempts(pending.id))[-1].error)
    await lab.clock.advance("1s")
    await lab.drain()
    assert ("late", 2) in tried
    await lab.clock.advance("15s")
    await lab.drain()
    assert ("late", 3) not in tried
    await lab.clock.advance("1s")
    await lab.drain()
    assert (await run.result()).text == "ok"


async def test_ap_28_ap_29_a_call_that_waits_is_not_taken_early_and_its_run_is_not_stuck(labs: Labs) -> None:
    """AP-28, AP-29: an hour passes, nothing is rescued, and no attempt is counted."""
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    tried: list[int] = []

    @hf.tool
    def sleepy(ctx: ToolContext) -> str:
        """Sleepy."""
        tried.append(ctx.attempt)
        if len(tried) < 3:
            raise Snooze("1h", "come back later")
        return "awake"

    agent = hf.agent("a", model=scripted(hf, call("sleepy"), say("ok")), tools=[sleepy])
    lab = await labs.use(hf)
    run = await agent.enqueue("Go")
    for count in (1, 2):
        await lab.drain()
        (slept,) = await run.calls()
        job = await hf.jobs.get(slept.id)
        assert (job.attempts, job.due_at) == (0, moment(lab.clock.wall_us() + 3_600_000_000))
        assert await outcomes(hf, slept.id) == ["snoozed"] * count
        await lab.clock.advance("59m")
        await lab.drain()
        assert tried == [1] * count
        await lab.clock.advance("1m")
    await lab.drain()
    assert ((await run.result()).text, tried) == ("ok", [1, 1, 1])
    assert (await hf.jobs.get(run.id)).rescues == 0
    (slept,) = await run.calls()
    assert await outcomes(hf, slept.id) == ["snoozed", "snoozed", "succeeded"]
    assert (await hf.jobs.get(slept.id)).attempts == 1
