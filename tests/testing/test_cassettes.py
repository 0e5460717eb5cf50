"""Cassettes: runs against a provider, recorded from the store and answered again without one."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Compaction, Holdfast
from holdfast.app import core_of
from holdfast.errors import NotFound, UsageError
from holdfast.models.script import redacted
from holdfast.models.simulator import SimulatedProvider, simulator
from holdfast.testing import Lab, Labs, Script, block, call, calls, ends, refuse, say, think
from tests.support.commands import holdfast

MODEL = "claude-sonnet-5-5"
KEY = "sk-ant-api03-abcdefghijkl"
TALK = Script(
    think("First the order."),
    call("find_order", number="A1"),
    think("Now the money."),
    calls(say("One moment."), call("refund", number="A1", amount="80"), call("find_order", number="A2")),
    say("Done: 80 euros."),
)


@pytest.fixture
def support(hf: Holdfast) -> Agent[str]:
    @hf.tool(effect="read")
    def find_order(number: str) -> dict[str, str]:
        """Look up an order."""
        if number == "A2":
            raise LookupError("there is no A2")
        return {"number": number, "key": KEY}

    @hf.tool
    def refund(number: str, amount: str) -> str:
        """Refund an order."""
        return f"{amount} for {number}, with Bearer abc.def.ghi"

    return hf.agent("support", model=MODEL, tools=[find_order, refund])


@asynccontextmanager
async def provided(labs: Labs, hf: Holdfast, script: Script) -> AsyncIterator[tuple[Lab, SimulatedProvider]]:
    """A lab whose app asks a simulated provider over HTTP."""
    lab = await labs.use(hf)
    async with simulator(script=script, ports=core_of(hf).runtime().ports, batch_seconds=5) as provider:
        hf.settings = replace(hf.settings, provider_url=provider.url)
        yield lab, provider
        await lab.close()


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-simulated")


async def seen(run: Any) -> tuple[Any, ...]:
    """What a run said, called and used."""
    result = await run.result()
    asked = [(row.name, row.input) for row in await run.calls()]
    return result.text, result.outcome, asked, result.usage


@pytest.mark.long
@pytest.mark.parametrize("mode", ["streaming", "batch"])
async def test_a_run_is_recorded_and_answered_again_offline(
    hf: Holdfast, labs: Labs, support: Agent[str], tmp_path: Path, mode: Any
) -> None:
    file = tmp_path / "refund.json"
    async with provided(labs, hf, TALK) as (lab, _):
        run = await support.enqueue(f"My order A1 never came. My key is {KEY}.", mode=mode)
        await lab.pass_time(run)
        before = await seen(run)
        await run.cassette(file)
    assert before[0] == "Done: 80 euros."
    assert [name for name, _ in before[2]] == ["find_order", "refund", "find_order"]
    for strict in (False, True):
        lab = await labs.use(hf, Script.cassette(file, strict=strict))
        run = await support.enqueue(f"My order A1 never came. My key is {KEY}.", mode=mode)
        await lab.pass_time(run)
        assert await seen(run) == before
        assert lab.rebought == []
        thoughts = [part["thinking"] for message in lab.asked[-1].messages for part in _thinking(message)]
        assert thoughts == ["First the order.", "Now the money."]
        await lab.close()


def _thinking(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [part for part in content if isinstance(part, dict) and part.get("type") == "thinking"]


async def test_no_secret_and_no_signature_is_in_the_file(
    hf: Holdfast, labs: Labs, support: Agent[str], tmp_path: Path
) -> None:
    file = tmp_path / "refund.json"
    said = Script(think("See."), call("find_order", number=KEY), call("refund", number="A1", amount="1"), say(KEY))
    lab = await labs.use(hf, said)
    await (await support.enqueue(f"My key is {KEY}.")).result()
    await lab.record(file)
    text = file.read_text()
    assert KEY not in text
    assert "abc.def" not in text
    assert "signature" not in text
    assert "My key is [redacted]." in text
    assert "with [redacted]" in text
    (run,) = json.loads(text)["runs"]
    assert (run["agent"], run["model"], [turn["stop"] for turn in run["turns"]]) == (
        "support",
        MODEL,
        ["tool_use", "tool_use", "end_turn"],
    )
    assert run["turns"][1]["asked"]["results"][0]["tool"] == "find_order"
    assert run["turns"][0]["parts"][0] == {"think": "See."}
    assert run["turns"][2]["parts"] == [{"say": "[redacted]"}]
    assert run["turns"][0]["parts"][1] == {"call": ["find_order", {"number": "[redacted]"}]}


async def test_what_was_used_is_used_again(hf: Holdfast, labs: Labs, support: Agent[str], tmp_path: Path) -> None:
    file = tmp_path / "refund.json"
    lab = await labs.use(hf, Script(say("Hello.")))
    run = await support.enqueue("Hi")
    await run.result()
    await run.cassette(file)
    await lab.close()
    written = json.loads(file.read_text())
    written["runs"][0]["turns"][0]["usage"] |= {"input_tokens": 12_345, "cache_read_input_tokens": 678}
    file.write_text(json.dumps(written))
    await labs.use(hf, Script.cassette(file))
    usage = (await support.run("Hi")).usage
    assert (usage.input_tokens, usage.cache_read_tokens) == (12_345, 678)


@pytest.mark.parametrize(
    ("secret", "left"),
    [
        ("x sk-proj-0123456789 y", "x [redacted] y"),
        ("Authorization: Bearer eyJhbGciOi.J9.x-y", "Authorization: [redacted]"),
        ("authorization: bearer 0123456789", "authorization: [redacted]"),
        ("ghp_0123456789abcdef0123", "[redacted]"),
        ("AKIAIOSFODNN7EXAMPLE", "[redacted]"),
        ("postgresql://ann:hunter2@db/shop", "postgresql://[redacted]@db/shop"),
        (
            "a task-list and a bearer of news, at http://a.b/c:d@e",
            "a task-list and a bearer of news, at http://a.b/c:d@e",
        ),
    ],
)
def test_what_looks_like_a_secret_is_taken_out_wherever_it_stands(secret: str, left: str) -> None:
    assert redacted({"a": [secret, 1, None]}) == {"a": [left, 1, None]}
    assert redacted(left) == left


async def test_strict_notices_another_prompt_and_another_result(
    hf: Holdfast, labs: Labs, support: Agent[str], tmp_path: Path
) -> None:
    file = tmp_path / "refund.json"
    lab = await labs.use(hf, TALK)
    run = await support.enqueue("My order A1 never came.")
    await run.result()
    await run.cassette(file)
    await lab.close()
    lab = await labs.use(hf, Script.cassette(file))
    assert (await support.run("Something else.")).text == "Done: 80 euros."
    await lab.close()
    lab = await labs.use(hf, Script.cassette(file, strict=True))
    await support.enqueue("My order A1 came late.")
    with pytest.raises(
        AssertionError, match=r"(?s)turn 1 of the recorded run of support.*- My order A1 never came\.\n"
    ):
        await lab.drain()
    await lab.close()
    changed = file.read_text().replace("there is no A2", "there was an A2")
    file.write_text(changed)
    lab = await labs.use(hf, Script.cassette(file, strict=True))
    await support.enqueue("My order A1 never came.")
    with pytest.raises(AssertionError, match=r"(?s)turn 3 .*- .*there was an A2.*\+ .*there is no A2"):
        await lab.drain()


async def test_a_run_that_asks_for_more_than_was_recorded_is_told_of(
    hf: Holdfast, labs: Labs, support: Agent[str], tmp_path: Path
) -> None:
    file = tmp_path / "refund.json"
    lab = await labs.use(hf, TALK)
    run = await support.enqueue("Go")
    await run.result()
    await run.cassette(file)
    await lab.close()
    written = json.loads(file.read_text())
    del written["runs"][0]["turns"][1:]
    file.write_text(json.dumps(written))
    lab = await labs.use(hf, Script.cassette(file))
    cut = await support.enqueue("Go")
    await lab.drain()
    assert "was not asked this: it has 1 turn" in ((await cut.refresh()).error or "")
    await lab.close()
    lab = await labs.use(hf, Script.cassette(file, strict=True))
    await support.enqueue("Go")
    with pytest.raises(AssertionError, match="it has 1 turn"):
        await lab.drain()


async def test_agents_below_are_recorded_with_it(hf: Holdfast, labs: Labs, tmp_path: Path) -> None:
    file = tmp_path / "news.json"
    inner = hf.agent("inner", model="scripted:")
    outer = hf.agent("outer", model="scripted:", agents=[inner])
    one = calls(call("inner", task="one"), call("inner", task="two"))
    told = Script(lambda messages: say(f"seen {messages[0]['content'][0]['text']}"))
    lab = await labs.use(hf, Script.by_agent({"outer": Script(one, say("both")), "inner": told}))
    run = await outer.enqueue("Go")
    await lab.drain()
    await run.cassette(file)
    await lab.close()
    assert [each["agent"] for each in json.loads(file.read_text())["runs"]] == ["outer", "inner", "inner"]
    lab = await labs.use(hf, Script.cassette(file, strict=True))
    run = await outer.enqueue("Go")
    await lab.drain()
    assert await run.text() == "both"
    results = [each.text for heard in lab.asked for each in heard.results]
    assert results == ["seen one", "seen two"]


async def test_what_a_user_says_meanwhile_is_part_of_it(
    hf: Holdfast, labs: Labs, support: Agent[str], tmp_path: Path
) -> None:
    file = tmp_path / "steered.json"

    @hf.tool(approve=True)
    def pay(amount: str) -> str:
        """Pay."""
        return f"paid {amount}"

    payer = hf.agent("payer", model=MODEL, tools=[pay])

    def answer(messages: list[dict[str, Any]]) -> Any:
        steered = "less" in json.dumps(messages)
        return say("paid less") if steered else call("pay", amount="80")

    async def play(lab: Lab) -> str:
        run = await payer.enqueue("Pay")
        await lab.drain()
        await run.steer("Pay less next time.")
        await lab.approve(run)
        await lab.drain()
        await run.cassette(file)
        return await run.text()

    lab = await labs.use(hf, Script(answer))
    assert await play(lab) == "paid less"
    await lab.close()
    lab = await labs.use(hf, Script.cassette(file, strict=True))
    assert await play(lab) == "paid less"
    assert len(lab.asked) == 2


async def test_what_was_compacted_or_declined_since_is_recorded_as_it_was(
    hf: Holdfast, labs: Labs, tmp_path: Path
) -> None:
    file = tmp_path / "long.json"

    @hf.tool(effect="read")
    def look_up(what: str) -> str:
        """Look something up."""
        return f"{what}: " + "rain and wind, " * 200

    agent = hf.agent("talker", model=MODEL, fallbacks=["claude-haiku-4-5"], tools=[look_up])
    script = Script(call("look_up", what="weather"), say("It will rain."))
    lab = await labs.use(hf, Script.by_model({MODEL: Script(refuse("bio"))}, otherwise=script))
    session = await hf.session("s")
    runs = [await agent.enqueue(f"Question {number}?", session=session) for number in range(3)]
    await lab.drain()
    await session.compact(Compaction(preserve_last=2, protected_tokens=50, target_tokens=2_000, window=10_000))
    assert any(not message.live for message in await session.messages(archived=True))
    await runs[0].cassette(file)
    await lab.close()
    (run,) = json.loads(file.read_text())["runs"]
    assert [turn["stop"] for turn in run["turns"]] == ["tool_use", "end_turn"]
    assert run["turns"][1]["asked"]["results"][0]["text"].startswith("weather: rain and wind, rain")
    lab = await labs.use(hf, Script.cassette(file, strict=True))
    assert (await agent.run("Question 0?")).text == "It will rain."


async def test_a_fork_is_recorded_with_what_it_took_over(
    hf: Holdfast, labs: Labs, support: Agent[str], tmp_path: Path
) -> None:
    lab = await labs.use(hf, TALK)
    run = await support.enqueue("Go")
    await lab.drain()
    first, whole = await run.fork(2), await run.fork(3)
    await lab.drain()
    fork = await first.fork(3)
    await lab.drain()
    await whole.cassette(tmp_path / "whole.json")
    await hf.sessions[str(run.session_id)].delete()
    await whole.cassette(tmp_path / "alone.json")
    await fork.cassette(tmp_path / "fork.json")
    await lab.close()
    (recorded,) = json.loads((tmp_path / "whole.json").read_text())["runs"]
    assert [(turn["stop"], "usage" in turn) for turn in recorded["turns"]] == [
        ("tool_use", True),
        ("tool_use", True),
        ("end_turn", True),
    ]
    (alone,) = json.loads((tmp_path / "alone.json").read_text())["runs"]
    assert [(turn["stop"], "usage" in turn) for turn in alone["turns"]] == [
        ("tool_use", False),  # what the original knew is gone with it
        ("tool_use", False),
        ("end_turn", True),
    ]
    for file in ("whole.json", "alone.json", "fork.json"):
        lab = await labs.use(hf, Script.cassette(tmp_path / file, strict=True))
        assert (await support.run("Go")).text == "Done: 80 euros."
        await lab.close()


async def test_other_blocks_and_other_ends_are_kept(hf: Holdfast, labs: Labs, tmp_path: Path) -> None:
    file = tmp_path / "others.json"
    agent = hf.agent("searcher", model=MODEL)
    search = block("server_tool_use", id="srvtoolu_1", name="web_search", input={"query": "x"})
    found = block("web_search_tool_result", tool_use_id="srvtoolu_1", content=[])

    def again(messages: list[dict[str, Any]]) -> Any:
        """It pauses twice; what it has said is one message by then."""
        first = len(messages[-1]["content"]) == 2
        return ends("pause_turn", found, say("Again."), search) if first else ends("end_turn", found, say("Found."))

    for script in (
        Script(ends("pause_turn", say("Let me look."), search), again),
        Script(ends("pause_turn", say("Let me look."), search), ends("end_turn", found, say("Found."))),
        Script(refuse("bio")),
        Script(ends("max_tokens", say("Once upon a"))),
    ):
        lab = await labs.use(hf, script)
        run = await agent.enqueue("Go")
        await lab.drain()
        before, turns = await run.result(), len(await run.turns())
        await run.cassette(file)
        await lab.close()
        lab = await labs.use(hf, Script.cassette(file, strict=True))
        run = await agent.enqueue("Go")
        await lab.drain()
        after = await run.result()
        assert len(await run.turns()) == turns
        assert (after.text, after.outcome, after.refusal) == (before.text, before.outcome, before.refusal)
        await lab.close()


async def test_there_must_be_something_to_record(hf: Holdfast, labs: Labs, support: Agent[str], tmp_path: Path) -> None:
    lab = await labs.use(hf, TALK)
    with pytest.raises(UsageError, match="no run to record"):
        await lab.record(tmp_path / "x.json")
    run = await support.enqueue("Go", delay="1h")
    with pytest.raises(UsageError, match=re.escape(f"run {run.id} has no answer of a model yet")):
        await run.cassette(tmp_path / "x.json")
    with pytest.raises(NotFound):
        await hf.runs["nothing"].cassette(tmp_path / "x.json")
    assert not (tmp_path / "x.json").exists()


def test_files_that_are_no_cassettes_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    for text, problem in (
        ('{"cassette": 9}', "not a cassette of version 1, but 9"),
        ('{"cassette": 1, "runs": []}', "does not begin with what a user said"),
        ('{"cassette": 1, "runs": [{"agent": "a"}]}', "'model'"),
    ):
        file.write_text(text)
        with pytest.raises(UsageError, match=problem):
            Script.cassette(file)
    file.write_text('[{"say": "x"}]')
    with pytest.raises(UsageError, match=r"written by hand.*Record one"):
        Script.cassette(file, strict=True)


async def test_the_command_writes_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'own.db'}"
    async with Holdfast(url) as hf:
        agent = hf.agent("echo", model="scripted:")
        await agent.run("Hello")
        run_id = (await agent.run("Hello again")).run_id
    said = holdfast("runs", "cassette", run_id, "-o", "echo.json", "--url", url, cwd=tmp_path)
    assert (said.code, said.err) == (0, "")
    assert f"echo.json has run {run_id}" in said.out
    turn = Script.cassette(tmp_path / "echo.json").turn({"messages": [{"role": "user", "content": "Hello again"}]})
    assert turn.parts == (say("Hello again"),)
