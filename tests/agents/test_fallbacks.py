"""Fallback models: when a model is given up, what the next one is asked, and what is never changed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.api.run import Run
from holdfast.agents.definition import AgentSpec
from holdfast.app import core_of
from holdfast.errors import BadSetting, UsageError
from holdfast.events import Event, ModelChanged, TurnFailed
from holdfast.models import ModelFailure
from holdfast.models.protocol import Request, ResponseHead, Wire
from holdfast.models.script import Script, Step, call, ends, refuse, say, think
from holdfast.models.scripted import ScriptedModel
from holdfast.models.simulator import simulator
from holdfast.testing import Labs
from tests.agents.test_races import intercept
from tests.support.agents import ByModel, Noting, audit, scripted, settle
from tests.support.apps import MakeApp, working

pytestmark = pytest.mark.asyncio

FIRST, SECOND, THIRD = "claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5"


def changes(events: Sequence[Event]) -> list[tuple[str, str]]:
    return [(event.from_model, event.to_model) for event in events if isinstance(event, ModelChanged)]


async def models(run: Run[Any]) -> list[tuple[str, str, str | None]]:
    """Which model each turn was asked of, and how it ended."""
    return [(turn.model, turn.state, turn.stop_reason) for turn in await run.turns()]


def rule(model: str, **do: Any) -> dict[str, Any]:
    return {"match": {"model": model}, "do": do}


async def test_a_model_that_is_not_there_is_given_up(hf: Holdfast, provided: Labs) -> None:
    rules = [rule(FIRST, status=404), rule(SECOND, status=404)]
    async with simulator(script=Script(say("here")), rules=rules) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url})
        agent = hf.agent("a", model=FIRST, fallbacks=[SECOND, THIRD])
        lab = await provided.use(hf)
        run = await agent.enqueue("Go")
        (row,) = await settle(lab, run)
        assert (row.state, await run.text()) == ("completed", "here")
        assert await models(run) == [(THIRD, "completed", "end_turn")]
        events = await run.events()
        assert changes(events) == [(FIRST, SECOND), (SECOND, THIRD)]
        told = [event.reason for event in events if isinstance(event, ModelChanged)]
        assert all("refused by rule with status 404" in reason for reason in told)
        await audit(hf, provider)


async def test_a_model_has_all_its_attempts_before_it_is_given_up(hf: Holdfast, provided: Labs) -> None:
    rules = [rule(FIRST, status=500), rule(SECOND, status=500)]
    async with simulator(script=Script(say("never")), rules=rules) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url})
        agent = hf.agent("a", model=FIRST, fallbacks=[SECOND], fallback_after=None, attempts=3)
        lab = await provided.use(hf)
        run = await agent.enqueue("Go")
        (row,) = await settle(lab, run)
        assert row.state == "failed", "the last model's failure is final"
        asked = [line["model"] for line in provider.lines if line["event"] == "sent"]
        assert asked == [FIRST] * 3 + [SECOND] * 3
        events = await run.events()
        assert changes(events) == [(FIRST, SECOND)]
        assert sum(isinstance(event, TurnFailed) for event in events) == 6


async def test_an_outage_is_waited_for_as_long_as_patience_lasts(hf: Holdfast, provided: Labs) -> None:
    async with simulator(script=Script(say("up")), rules=[rule(FIRST, overloaded=True)]) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url, "provider_patience": "10m"})
        agent = hf.agent("a", model=FIRST, fallbacks=[SECOND], fallback_after=None)
        lab = await provided.use(hf)
        run = await agent.enqueue("Go")
        await lab.drain()
        assert changes(await run.events()) == []
        (row,) = await settle(lab, run)
        assert row.state == "completed"
        assert changes(await run.events()) == [(FIRST, SECOND)]


async def test_nobody_waits_for_a_person_who_has_another_model(hf: Holdfast, provided: Labs) -> None:
    async with simulator(script=Script(say("paid")), rules=[rule(FIRST, status=402)]) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url})
        agent = hf.agent("a", model=FIRST, fallbacks=[SECOND])
        lab = await provided.use(hf)
        one = await agent.enqueue("Go")
        await lab.drain()
        two = await agent.enqueue("Go")
        await lab.drain()
        for run in (one, two):
            assert (await run.refresh()).state == "completed"
            assert changes(await run.events()) == [(FIRST, SECOND)]
        asked = [line["model"] for line in provider.lines if line["event"] == "sent"]
        assert asked == [FIRST, SECOND, SECOND], "the second run knows that the lane is closed"
        await audit(hf, provider)


async def test_without_another_model_it_waits_for_the_person(hf: Holdfast, provided: Labs) -> None:
    rules = [rule(FIRST, status=402), rule(SECOND, status=402)]
    async with simulator(rules=rules) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url})
        agent = hf.agent("a", model=FIRST, fallbacks=[SECOND])
        lab = await provided.use(hf)
        run = await agent.enqueue("Go")
        await lab.drain()
        assert (await run.refresh()).state == "pending"
        assert f"/{SECOND}" in str(await run.why())


async def test_a_rate_limit_is_waited_for(hf: Holdfast, provided: Labs) -> None:
    rules = [{"match": {"model": FIRST, "nth": 1}, "do": {"status": 429, "retry_after": 5}}]
    async with simulator(script=Script(say("later")), rules=rules) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url})
        agent = hf.agent("a", model=FIRST, fallbacks=[SECOND])
        lab = await provided.use(hf)
        run = await agent.enqueue("Go")
        await settle(lab, run)
        assert await models(run) == [(FIRST, "completed", "end_turn")]


async def test_what_is_wrong_with_a_request_is_wrong_everywhere(hf: Holdfast, provided: Labs) -> None:
    async with simulator(rules=[rule(FIRST, status=400)]) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url})
        agent = hf.agent("a", model=FIRST, fallbacks=[SECOND])
        lab = await provided.use(hf)
        run = await agent.enqueue("Go")
        (row,) = await settle(lab, run)
        assert row.state == "failed"
        assert changes(await run.events()) == []


async def test_the_next_model_is_asked_what_one_declined(hf: Holdfast) -> None:
    second = Noting(say("gladly"))
    hf.script("second", second)
    agent = hf.agent("a", model=scripted(hf, ends("refusal", say("I would"))), fallbacks=["scripted:second"])
    run = await agent.enqueue("Go", session="s")
    await hf.ensure_worker()
    result = await run.result()
    assert (result.outcome, result.text, result.turns) == ("answered", "gladly", 2)
    (body,) = second.bodies
    assert [(each["role"], each["content"][0]["text"]) for each in body["messages"]] == [("user", "Go")]
    turns = await models(run)
    assert [(state, reason) for _, state, reason in turns] == [("completed", "refusal"), ("completed", "end_turn")]
    assert turns[1][0] == "scripted:second"
    assert [event.reason for event in await run.events() if isinstance(event, ModelChanged)] == ["refused"]
    await agent.run("Again?", session="s")
    assert [each["role"] for each in second.bodies[-1]["messages"]] == ["user", "assistant", "user"]


async def test_the_last_refusal_is_the_outcome(hf: Holdfast) -> None:
    agent = hf.agent("a", model=scripted(hf, refuse("a")), fallbacks=[scripted(hf, refuse("b"))])
    result = await agent.run("Go")
    assert result.outcome == "refused"
    assert result.refusal is not None
    assert result.refusal.category == "b"


def _looking(hf: Holdfast) -> Any:
    @hf.tool
    def look() -> str:
        """Look."""
        return "seen"

    return look


async def test_a_loop_of_tools_goes_on_with_another_model(hf: Holdfast, provided: Labs) -> None:
    first, second = Script(call("look"), refuse()), Noting(say("nothing"), say("it was seen"))
    script = ByModel({FIRST: first, SECOND: second})
    async with simulator(script=script) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url})
        agent = hf.agent("a", model=FIRST, fallbacks=[SECOND], tools=[_looking(hf)])
        lab = await provided.use(hf)
        run = await agent.enqueue("Go")
        await settle(lab, run)
        assert await run.text() == "it was seen"
        (body,) = second.bodies
        kinds = [[block["type"] for block in each["content"]] for each in body["messages"]]
        assert kinds == [["text"], ["tool_use"], ["tool_result"]]
        await audit(hf, provider)


@pytest.mark.parametrize("how", ["refusal", "failure", "lane", "outage"])
async def test_inside_a_loop_the_next_model_goes_on_without_what_was_thought(
    hf: Holdfast, provided: Labs, how: str
) -> None:
    last: Step = refuse() if how == "refusal" else say("never")
    second = Noting(say("no"), say("it was seen"))
    script = ByModel({FIRST: Script(think("Hm."), call("look"), last), SECOND: second})
    ways: dict[str, Any] = {"failure": {"status": 404}, "lane": {"status": 402}, "outage": {"overloaded": True}}
    later = range(60, 1, -1) if how in ways else ()  # every call but the first
    rules = [{"match": {"model": FIRST, "nth": nth}, "do": ways[how]} for nth in later]
    async with simulator(script=script, rules=rules) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url})
        agent = hf.agent("a", model=FIRST, fallbacks=[SECOND], tools=[_looking(hf)])
        lab = await provided.use(hf)
        run = await agent.enqueue("Go")
        (row,) = await settle(lab, run)
        assert (row.state, row.outcome, await run.text()) == ("completed", "answered", "it was seen")
        assert changes(await run.events()) == [(FIRST, SECOND)]
        kinds = [[block["type"] for block in each["content"]] for each in second.bodies[-1]["messages"]]
        assert kinds == [["text"], ["tool_use"], ["tool_result"]]
        await audit(hf, provider)


OUTAGES: dict[str, dict[str, Any]] = {
    "overloaded": {"overloaded": True},
    "rate limit": {"status": 429, "retry_after": 8},
    "rate limit of unknown length": {"status": 429},
    "server": {"status": 500},
    "timeout": {"status": 504},
    "cut": {"cut": {"events": 1}},
}


@pytest.mark.parametrize("how", OUTAGES)
async def test_a_model_that_has_failed_for_long_is_given_up_however_it_fails(
    hf: Holdfast, provided: Labs, how: str
) -> None:
    async with simulator(script=Script(say("up")), rules=[rule(FIRST, **OUTAGES[how])]) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url})
        agent = hf.agent("a", model=FIRST, fallbacks=[SECOND], attempts=1_000)
        lab = await provided.use(hf)
        begun = lab.clock.wall_us()
        run = await agent.enqueue("Go")
        await lab.pass_time(run)
        took = (lab.clock.wall_us() - begun) / 1e6
        assert (await run.refresh()).state == "completed"
        assert 20 <= took <= 31, took
        events = await run.events()
        assert changes(events) == [(FIRST, SECOND)]
        assert all(event.reason for event in events if isinstance(event, ModelChanged))
        await audit(hf, provider)


async def test_how_long_a_model_may_fail_is_the_agent_s(hf: Holdfast, provided: Labs) -> None:
    async with simulator(script=Script(say("up")), rules=[rule(FIRST, overloaded=True)]) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url})
        agent = hf.agent("a", model=FIRST, fallbacks=[SECOND], fallback_after="5m")
        lab = await provided.use(hf)
        begun = lab.clock.wall_us()
        run = await agent.enqueue("Go")
        await lab.drain()
        assert f"after 5m of failures it switches to {SECOND}" in str(await run.why())
        await lab.pass_time(run)
        assert (await run.refresh()).state == "completed"
        assert 300 <= (lab.clock.wall_us() - begun) / 1e6 <= 301


async def test_one_failure_after_a_long_wait_gives_nothing_up(hf: Holdfast, labs: Labs) -> None:
    """What counts is how long a model fails, not how long it was asked."""

    class Slow(ScriptedModel):
        calls = 0

        async def stream(
            self, request: Request, answered: Callable[[ResponseHead], None]
        ) -> AsyncGenerator[Wire, None]:
            self.calls += 1
            if self.calls == 1:
                for _ in range(30):
                    await lab.clock.advance("2s")
                raise ModelFailure("cut", "the connection ended before the answer did")
            async for event in super().stream(request, answered):
                yield event

    agent = hf.agent("a", model=FIRST, fallbacks=[SECOND])
    lab = await labs.use(hf)
    core_of(hf).book.substitute = Slow(Script(say("up")))
    run = await agent.enqueue("Go")
    await lab.pass_time(run)
    assert [model for model, *_ in await models(run)] == [FIRST]
    assert changes(await run.events()) == []


async def test_nobody_waits_behind_a_lane_that_is_closed_for_too_long(hf: Holdfast, provided: Labs) -> None:
    rules = [rule(FIRST, status=429, retry_after=300)]
    async with simulator(script=Script(say("up")), rules=rules) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url})
        agent = hf.agent("a", model=FIRST, fallbacks=[SECOND])
        alone = hf.agent("alone", model=FIRST)
        lab = await provided.use(hf)
        runs = [await agent.enqueue("Go")]
        await lab.drain()
        runs += [await agent.enqueue("Go"), await agent.enqueue("Go")]
        waits = await alone.enqueue("Go")
        await lab.drain()
        assert {(await run.refresh()).state for run in runs} == {"completed"}
        assert [changes(await run.events()) for run in runs] == [[(FIRST, SECOND)]] * 3
        assert (await waits.refresh()).state == "pending"
        asked = [line["model"] for line in provider.lines if line["event"] == "sent"]
        assert asked.count(FIRST) == 1


@pytest.mark.long
async def test_who_waits_behind_a_lane_that_is_closed_again_and_again_asks_another_model(
    hf: Holdfast, provided: Labs
) -> None:
    rules = [rule(FIRST, status=429, retry_after=9)]
    async with simulator(script=Script(say("up")), rules=rules) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url})
        agent = hf.agent("a", model=FIRST, fallbacks=[SECOND])
        lab = await provided.use(hf)
        runs = [await agent.enqueue("Go") for _ in range(15)]
        begun = lab.clock.wall_us()
        await lab.pass_time(*runs)
        assert {(await run.refresh()).state for run in runs} == {"completed"}
        assert (lab.clock.wall_us() - begun) / 1e6 <= 33


async def test_the_option_is_stored_with_the_definition(hf: Holdfast) -> None:
    for chosen in ("2m", None, "30s"):
        spec = hf.agent(f"b {chosen}", model=FIRST, fallbacks=[SECOND], fallback_after=chosen).spec
        assert AgentSpec.parse(spec.text()) == spec
        assert "fallback_after" in spec.text()
    plain = hf.agent("a", model=FIRST, fallbacks=[SECOND]).spec
    assert (
        plain.fallback_after
        == hf.agent("a 30s", model=FIRST, fallbacks=[SECOND], fallback_after="30s").spec.fallback_after
    )
    with pytest.raises(BadSetting):
        hf.agent("c", model=FIRST, fallback_after="soon").spec  # noqa: B018


async def test_thinking_of_an_earlier_run_binds_nobody(hf: Holdfast, provided: Labs) -> None:
    script = Script(think("Hm."), say("well"))
    rules = [{"match": {"model": FIRST, "nth": 2}, "do": {"status": 404}}]
    async with simulator(script=script, rules=rules) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url})
        agent = hf.agent("a", model=FIRST, fallbacks=[SECOND])
        lab = await provided.use(hf)
        runs = [await agent.enqueue("Go", session="s") for _ in range(3)]
        assert [row.state for row in await settle(lab, *runs)] == ["completed"] * 3
        assert [(await models(run))[0][0] for run in runs] == [FIRST, SECOND, FIRST], "each run begins with the first"
        await audit(hf, provider)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("operation", "do"), [("fail_call", {"status": 404}), ("commit_refused", {}), ("pass_closed_lane", {})]
)
async def test_a_crash_around_the_change_loses_and_doubles_nothing(
    hf: Holdfast, provided: Labs, operation: str, when: str, do: dict[str, Any]
) -> None:
    script = ByModel({FIRST: Script(refuse()), SECOND: Script(say("done"), say("done"))})
    async with simulator(script=script, rules=[rule(FIRST, **do)] if do else []) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url})
        agent = hf.agent("a", model=FIRST, fallbacks=[SECOND])
        lab = await provided.use(hf)
        if operation == "pass_closed_lane":
            provider.state.rules[:] = []
            await _close(hf, FIRST)
        run = await agent.enqueue("Go")
        if when == "before":
            lab.crash(before=operation)
        else:
            lab.crash(after=operation)
        (row,) = await settle(lab, run)
        assert (row.state, await run.text()) == ("completed", "done")
        assert changes(await run.events()) == [(FIRST, SECOND)]
        assert len(lab.crashes) == 1
        await audit(hf, provider)


@pytest.mark.parametrize(
    ("operation", "do"), [("fail_call", {"status": 404}), ("commit_refused", {}), ("pass_closed_lane", {})]
)
async def test_done_again_after_a_lost_answer_it_changes_nothing(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, operation: str, do: dict[str, Any]
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-simulated")
    script = ByModel({FIRST: Script(refuse()), SECOND: Script(say("done"), say("done")), THIRD: Script()})
    async with simulator(script=script, rules=[rule(FIRST, **do)] if do else []) as provider:
        hf = make_app(embedded=False, provider_url=provider.url)
        agent = hf.agent("a", model=FIRST, fallbacks=[SECOND, THIRD])
        run = await agent.enqueue("Go")
        if operation == "pass_closed_lane":
            await _close(hf, FIRST)
        again: list[str] = []

        async def twice(go: Callable[[], Awaitable[Any]], _args: tuple[Any, ...]) -> Any:
            await go()
            again.append(operation)
            return await go()

        intercept(hf, **{operation: twice})
        async with working(hf):
            assert await run.text(timeout="60s") == "done"
        assert again == [operation]
        assert changes(await run.events()) == [(FIRST, SECOND)]
        await audit(hf, provider)


async def _close(hf: Holdfast, model: str) -> None:
    from holdfast.agents.lanes import close_lane, lane_of

    lane = lane_of(core_of(hf).book.credential(model), model)
    await core_of(hf).runtime().transact(close_lane, lane, None, person=True, reason="no money")


async def test_fallbacks_are_checked_like_models(hf: Holdfast) -> None:
    with pytest.raises(UsageError, match="claude-mythos-preview was retired"):
        hf.agent("a", model=FIRST, fallbacks=["claude-mythos-preview"])
    with pytest.raises(UsageError, match="does not take temperature"):
        hf.agent("b", model="claude-haiku-4-5", options={"temperature": 0.5}, fallbacks=[FIRST])
    with pytest.raises(UsageError, match="named twice"):
        hf.agent("c", model=FIRST, fallbacks=[SECOND, FIRST])
    with pytest.raises(UsageError, match="a list of models"):
        hf.agent("d", model=FIRST, fallbacks=SECOND)
    with pytest.raises(UsageError, match="claude-mythos-preview was retired"):
        await hf.agents.create("e", model=FIRST, fallbacks=["claude-mythos-preview"])
    row = await hf.agents.create("f", model="scripted:", fallbacks=[FIRST])
    assert (await hf.agents[row.id].load()).spec.fallbacks == (FIRST,)


async def test_a_run_s_own_model_comes_first(hf: Holdfast) -> None:
    hf.script("own", Script(refuse()))
    one, two = scripted(hf, say("one")), scripted(hf, say("two"))
    agent = hf.agent("a", model=one, fallbacks=[two, "scripted:own"])
    result = await agent.run("Go", model="scripted:own")
    assert result.text == "two"
