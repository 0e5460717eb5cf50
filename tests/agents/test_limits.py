"""Limits: a run that reaches one ends with outcome "limited", and says which it was."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from holdfast import Holdfast, RunFailed
from holdfast.agents.definition import Limits
from holdfast.errors import BadSetting
from holdfast.models.script import Script, call, say
from holdfast.testing import Labs
from tests.support.agents import results, scripted, settle


def endless(app: Holdfast) -> str:
    return scripted(app, *[call("look")] * 60, say("never"))


@pytest.mark.parametrize(
    ("limits", "turns", "words"),
    [
        (Limits(turns=3), 3, "3 turns of 3"),
        (Limits(tokens=1), 1, "tokens of 1"),
        (Limits(cost="0.000001"), 1, "USD of 0.000001"),
    ],
    ids=["turns", "tokens", "cost"],
)
async def test_a_run_stops_at_its_limit(hf: Holdfast, limits: Limits, turns: int, words: str) -> None:
    @hf.tool
    def look() -> str:
        """Look."""
        return "seen"

    hf.script("priced", Script(*[call("look")] * 60, say("never")))
    agent = hf.agent("a", model="scripted:priced", tools=[look])
    await hf.agent("before", model=scripted(hf, say("of another run")), tools=[look]).run("Hello", session="s")
    result = await agent.run("Go", limits=limits, session="s")
    assert (result.outcome, result.turns, result.text) == ("limited", turns, "")
    assert words in (result.limit or "")
    assert (await hf.runs.get(result.run_id)).state == "completed"
    after = await hf.agent("b", model=scripted(hf, say("on we go")), tools=[look]).run("And?", session="s")
    assert after.text == "on we go"


async def test_a_run_stops_when_its_time_is_over(labs: Labs) -> None:
    from holdfast import Snooze

    hf = Holdfast("sqlite:////nowhere/at-all.db")
    waited: list[int] = []

    @hf.tool
    def wait() -> str:
        """Wait."""
        waited.append(1)
        if len(waited) == 1:
            raise Snooze("2h")
        return "waited"

    model = scripted(hf, *[call("wait")] * 60, say("never"))
    agent = hf.agent("a", model=model, tools=[wait], limits=Limits(time="1h"))
    lab = await labs.use(hf)
    run = await agent.enqueue("Go")
    await lab.drain()
    await lab.clock.advance("2h")
    (row,) = await settle(lab, run)
    assert (row.outcome, row.turns) == ("limited", 1)
    assert "1h" in (row.limited or "")


@pytest.mark.parametrize("whose", ["the run's", "the agent's"])
async def test_what_agents_below_use_counts_too(hf: Holdfast, whose: str) -> None:
    limits = Limits(tokens=300)
    long = scripted(hf, *[say("word " * 400)])
    below = hf.agent("below", model=long)
    lazy = scripted(hf, call("below", task="x"), call("below", task="y"), say("never"))
    above = hf.agent("above", model=lazy, agents=[below], limits=limits if whose == "the agent's" else None)
    result = await above.run("Go", limits=limits if whose == "the run's" else None)
    assert (result.outcome, result.turns) == ("limited", 1)
    assert result.usage == await hf.runs[result.run_id].usage()
    own = await hf.runs.get(result.run_id)
    assert result.usage.runs == 2
    assert own.input_tokens + own.output_tokens < 300 < result.usage.output_tokens


async def test_agents_call_agents_only_so_deep(hf: Holdfast) -> None:
    last = hf.agent("last", model=scripted(hf, say("too deep")))
    middle = hf.agent("middle", model=scripted(hf, call("last", task="x"), say("middle")), agents=[last])
    first = hf.agent("first", model=scripted(hf, call("middle", task="x"), say("first")), agents=[middle])
    assert (await first.run("Go", limits=Limits(depth=2))).text == "first"
    runs = {row.agent_name: row for row in await hf.runs.list()}
    assert set(runs) == {"first", "middle"}
    (refused,) = await hf.runs[runs["middle"].id].calls()
    assert (refused.state, refused.is_error) == ("failed", 1)
    assert "2 levels deep" in str(refused.output)


def test_limits_make_sense() -> None:
    for wrong in ({"turns": 0}, {"depth": 0}, {"cost": 0.5}, {"cost": "much"}, {"tokens": -1}):
        with pytest.raises(BadSetting):
            Limits(**wrong)


async def test_versions_stay_with_their_runs(hf: Holdfast) -> None:
    held, go = asyncio.Event(), asyncio.Event()

    @hf.tool
    async def hold() -> str:
        """Hold."""
        held.set()
        async with asyncio.timeout(60):
            await go.wait()
        return "held"

    old = scripted(hf, call("hold"), say("by the old version"))
    row = await hf.agents.create("a", model=old, tools=["hold"], instructions="old")
    await hf.ensure_worker()
    run = await hf.agents[row.id].enqueue("Go")
    async with asyncio.timeout(60):
        await held.wait()
    new = await hf.agents.update(row.id, model=scripted(hf, say("by the new version")), instructions="new")
    assert (new.id, new.version) == (row.id, 2)
    go.set()
    assert await run.text() == "by the old version"
    assert (await run.refresh()).version == 1
    later = await hf.agents[row.id].enqueue("Go")
    assert (await later.text(), (await later.refresh()).version) == ("by the new version", 2)
    assert [version.version for version in await hf.agents.versions(row.id)] == [2, 1]
    back = await hf.agents.update(row.id, model=old, instructions="old")
    assert back.version == 1, "what a version says never changes, and saying it again is that version"
    with pytest.raises(Exception, match="has runs"):
        await hf.agents.delete(row.id)


async def test_an_agent_that_others_call_is_not_deleted(hf: Holdfast) -> None:
    helper = hf.agent("helper", model=scripted(hf, say("helped")))
    boss = hf.agent("boss", model=scripted(hf, call("helper", task="x"), say("done")), agents=[helper])
    await hf.agents.put(boss)
    stored = await hf.agents.get("helper")
    with pytest.raises(Exception, match="boss"):
        await hf.agents.delete(stored.id)
    assert (await boss.run("Go")).text == "done"
    unused = await hf.agents.create("unused", model="scripted:")
    await hf.agents.delete(unused.id)
    assert [row.name for row in await hf.agents.list()] == ["boss", "helper"]


@dataclass
class City:
    name: str
    people: int


async def test_structured_output_is_the_type_that_was_asked_for(hf: Holdfast) -> None:
    agent = hf.agent("a", model=scripted(hf, say('{"name": "Ulm", "people": 126329}')), output=City)
    result = await agent.run("Which?")
    assert result.output == City("Ulm", 126_329)
    schema = agent.spec.output
    assert schema is not None
    assert schema["additionalProperties"] is False
    broken = await hf.agent("b", model=scripted(hf, say("I would rather not")), output=City).run("Which?")
    assert broken.text == "I would rather not"
    with pytest.raises(RunFailed, match="JSON"):
        _ = broken.output


async def test_a_class_can_be_a_tool(hf: Holdfast) -> None:
    @hf.tool
    class Weather:
        """Tells the weather."""

        name = "weather"

        def run(self, place: str, days: int = 1) -> str:
            return f"{place}: rain for {days} days"

    agent = hf.agent("a", model=scripted(hf, call("weather", place="Ulm", days=3), say("Rain.")), tools=[Weather])  # type: ignore[list-item]
    result = await agent.run("Weather?")
    (told,) = await results(hf, result.session_id)
    assert told["content"] == "Ulm: rain for 3 days"
    assert Weather.spec.description == "Tells the weather."  # type: ignore[attr-defined]
    assert set(Weather.spec.schema["properties"]) == {"place", "days"}  # type: ignore[attr-defined]
