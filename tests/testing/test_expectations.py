"""Scripts that check what models are asked, in the words of a test, and fail it where they are asked something else."""

from __future__ import annotations

import re
from typing import Any

import pytest

from holdfast import Agent, Holdfast
from holdfast.errors import RunFailed, UsageError
from holdfast.testing import Labs, Script, call, calls, expect, say


@pytest.fixture
def guide(hf: Holdfast) -> Agent[str]:
    @hf.tool(effect="read")
    def weather(city: str) -> str:
        """Look outside."""
        if city == "Atlantis":
            raise LookupError("no such city")
        return f"sunny in {city}"

    @hf.tool
    def book(name: str) -> str:
        """Book a table."""
        return f"booked for {name}"

    return hf.agent("guide", model="claude-sonnet-5-5", instructions="Be kind.", tools=[weather, book])


def fits(body: dict[str, Any]) -> bool:
    return bool(body["max_tokens"] > 1)


async def test_a_script_that_is_asked_what_it_expects_answers(hf: Holdfast, labs: Labs, guide: Agent[str]) -> None:
    script = Script(
        expect(text="Oslo", system="kind", model="sonnet", tools={"weather", "book"}, messages=1).call(
            "weather", city="Oslo"
        ),
        expect(fits, result=re.compile(r"^sunny in \w+$"), tool="weather", is_error=False, tools="book").then(
            calls(say("Both."), call("weather", city="Atlantis"), call("book", name="Ann"))
        ),
        expect(tool="weather", is_error=True).then(lambda messages: say(f"{len(messages)} messages")),
    )
    lab = await labs.use(hf, script)
    run = await guide.enqueue("Oslo?")
    await lab.drain()
    assert await run.text() == "5 messages"
    assert lab.calls("book") == [{"name": "Ann"}]
    assert lab.rebought == []


@pytest.mark.parametrize(
    ("expected", "lines"),
    [
        (expect(text="Rome"), ["- expected text with 'Rome' in it", "+ asked    text 'Oslo?'"]),
        (expect(text=re.compile("^R")), ["- expected text that matches '^R'"]),
        (expect(system="cruel"), ["- expected system with 'cruel' in it", "+ asked    system 'Be kind.'"]),
        (expect(tools=["weather"]), ["- expected the tools weather", "+ asked    the tools book, weather"]),
        (expect(tools="fly"), ["- expected fly among the tools"]),
        (expect(messages=2), ["- expected 2 messages", "+ asked    1 message"]),
        (
            expect(result="rain", tool="weather"),
            ["- expected a result of weather with 'rain'", "+ asked    no results"],
        ),
        (expect(model="opus"), ["- expected model with 'opus'"]),
        (expect(lambda body: "stream" in body), ["+ asked    something that it says no to"]),
        (expect(text="Rome", messages=3), ["- expected text with 'Rome'", "- expected 3 messages"]),
    ],
)
async def test_what_does_not_fit_is_told_with_what_was_asked(expected: Any, lines: list[str]) -> None:
    tools = [{"name": "weather"}, {"name": "book"}]
    system = [{"type": "text", "text": "Be kind."}]
    messages = [{"role": "user", "content": "Oslo?"}]
    body = {"model": "claude-sonnet-5-5", "messages": messages, "tools": tools, "system": system}
    with pytest.raises(UsageError) as caught:
        Script(expected.say("x")).turn(body)
    for line in [*lines, "at step 1 of 1", "  user: Oslo?"]:
        assert line in str(caught.value)


async def test_a_request_that_does_not_fit_fails_the_test_not_just_the_run(
    hf: Holdfast, labs: Labs, guide: Agent[str]
) -> None:
    script = Script(call("weather", city="Oslo"), expect(result="rain", tool="weather").say("Take a coat."))
    lab = await labs.use(hf, script)
    run = await guide.enqueue("Oslo?")
    with pytest.raises(AssertionError) as caught:
        await lab.drain()
    told = str(caught.value)
    assert f"the model of agent guide (run {run.id}, turn 2) was asked something that its script does not" in told
    assert "- expected a result of weather with 'rain' in it\n+ asked    weather returned 'sunny in Oslo'" in told
    assert '  assistant: calls weather({"city": "Oslo"})' in told
    await lab.drain()  # it is told once
    with pytest.raises(RunFailed, match="expected a result of weather"):
        await run.result()
    assert lab.rebought == []
    with pytest.raises(AssertionError, match="expected a result of weather"):
        await guide.run("And now?")  # whoever waits is told, too
    for _ in range(3):
        await guide.enqueue("Oslo?")
    with pytest.raises(AssertionError, match=r"2 more did not fit\."):
        await lab.drain()


async def test_what_a_step_asserts_fails_the_test(hf: Holdfast, labs: Labs, guide: Agent[str]) -> None:
    def answer(messages: list[dict[str, Any]]) -> Any:
        assert len(messages) == 7, "seven were wanted"
        return say("x")

    lab = await labs.use(hf, Script(answer))
    await guide.enqueue("Oslo?")
    with pytest.raises(AssertionError, match="which asserts: seven were wanted"):
        await lab.drain()
    await lab.close()
    lab = await labs.use(hf, Script(expect(lambda body: answer(body["messages"])).say("x")), inline=True)
    with pytest.raises(AssertionError, match="seven were wanted"):
        await guide.enqueue("Oslo?")


async def test_a_script_that_expects_expects_no_more_than_it_says(hf: Holdfast, labs: Labs, guide: Agent[str]) -> None:
    lab = await labs.use(hf, Script(expect(text="Oslo").call("weather", city="Oslo")))
    await guide.enqueue("Oslo?")
    with pytest.raises(AssertionError, match="has 1 step and is asked for step 2"):
        await lab.drain()


async def test_expectations_hold_in_batches_too(hf: Holdfast, labs: Labs, guide: Agent[str]) -> None:
    script = Script(expect(text="Oslo").call("weather", city="Oslo"), expect(result="rain").say("Take a coat."))
    lab = await labs.use(hf, script)
    run = await guide.enqueue("Oslo?", mode="batch")
    with pytest.raises(AssertionError, match=r"agent guide .* turn 2"):
        await lab.pass_time(run)


def test_an_expectation_expects_something() -> None:
    with pytest.raises(UsageError, match="has nothing to check"):
        expect()


async def test_every_agent_and_every_model_may_have_a_script_of_its_own(hf: Holdfast, labs: Labs) -> None:
    inner = hf.agent("inner", model="claude-haiku-4-5")
    outer = hf.agent("outer", model="claude-sonnet-5-5", agents=[inner])
    talk = Script(expect(text="Go").call("inner", task="Look"), expect(tool="inner", result="seen").say("done"))
    scripts = {"outer": talk, "inner": Script(expect(text="Look").say("seen"))}
    models = {"claude-sonnet-5-5": talk, "claude-haiku-4-5": scripts["inner"]}
    for script in (
        Script.by_agent(scripts),
        Script.by_agent({"outer": talk}, otherwise=scripts["inner"]),
        Script.by_model(models),
        Script.by_model({"claude-sonnet-5-5": Script.by_agent(scripts)}, otherwise=scripts["inner"]),
    ):
        lab = await labs.use(hf, script)
        for mode in ("streaming", "batch"):
            run = await outer.enqueue("Go", mode=mode)
            await lab.pass_time(run)
            assert await run.text() == "done"
        assert {heard.agent for heard in lab.asked} == {"outer", "inner"}
        await lab.close()
    lab = await labs.use(hf, Script.by_agent({"outer": talk}))
    await outer.enqueue("Go")
    with pytest.raises(AssertionError, match="there is no script for agent 'inner'; there are outer"):
        await lab.drain()


async def test_what_models_were_asked_is_there_in_order(hf: Holdfast, labs: Labs, guide: Agent[str]) -> None:
    lab = await labs.use(hf, Script(call("weather", city="Oslo"), say("Nice.")))
    run = await guide.enqueue("Oslo?")
    await lab.drain()
    first, second = lab.asked
    assert (first.text, first.results, first.system, first.tools) == ("Oslo?", [], "Be kind.", ["weather", "book"])
    assert (first.run, first.turn, first.agent, first.model) == (run.id, 1, "guide", "claude-sonnet-5-5")
    assert (second.turn, second.text) == (2, "Oslo?")
    assert [(each.tool, each.text, each.is_error) for each in second.results] == [("weather", "sunny in Oslo", False)]
    assert len(second.body["messages"]) == 3
    await lab.close()
    lab = await labs.use(hf)
    with pytest.raises(UsageError, match="open the lab with a script"):
        _ = lab.asked
