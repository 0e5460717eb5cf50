"""The tools' bad days: whatever one does, the model is told, the others are not disturbed, and the run goes on."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import Cancel, Discard, Holdfast, Retry, Snooze
from holdfast.agents.content import Document, Image, readable
from holdfast.agents.tools import ToolContext
from holdfast.models.script import call, calls, say
from tests.agents import isolated_tools
from tests.support.agents import results, scripted
from tests.support.apps import MakeApp, eventually

ONCE = Retry.none()


async def outcome_of(hf: Holdfast, *tools: Any) -> dict[str, dict[str, Any]]:
    """What the model is told when it calls each of these at once."""
    model = scripted(hf, calls(*(call(tool.name) for tool in tools)), say("on we go"))
    result = await hf.agent("brave", model=model, tools=tools).run("Go")
    assert result.text == "on we go"
    told = await results(hf, result.session_id)
    return {tool.name: block for tool, block in zip(tools, told, strict=True)}


async def test_ap_30_ap_31_tools_that_hang_die_or_raise_are_errors_to_the_model(hf: Holdfast) -> None:
    """AP-30, AP-31: also one that ignores its cancellation, and one that takes its process down."""
    release = asyncio.Event()
    freed = threading.Event()

    @hf.tool(timeout="500ms", retry=ONCE)
    async def hangs() -> str:
        """Hangs."""
        await asyncio.Event().wait()
        return ""

    @hf.tool(timeout="500ms", retry=ONCE)
    async def ignores() -> str:
        """Ignores that it is cancelled."""
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    @hf.tool(timeout="500ms", retry=ONCE)
    def blocks() -> str:
        """Blocks its thread."""
        freed.wait(60)
        return "too late"

    @hf.tool(retry=ONCE)
    async def raises() -> str:
        """Raises."""
        raise LookupError("no such thing\x00\ud800")

    @hf.tool(retry=ONCE)
    async def exits() -> str:
        """Leaves."""
        raise SystemExit(3)

    @hf.tool
    async def well() -> str:
        """Is well."""
        return "well"

    dies = hf.tool(isolate="process", retry=ONCE)(isolated_tools.dies)
    spins = hf.tool(isolate="process", retry=ONCE, timeout="2s")(isolated_tools.spins)
    try:
        told = await outcome_of(hf, hangs, ignores, blocks, raises, exits, dies, spins, well)
    finally:
        release.set()
        freed.set()
    assert {name for name, block in told.items() if not block.get("is_error")} == {"well"}
    assert {told[name]["content"] for name in ("hangs", "ignores", "blocks")} == {"timed out after 500ms"}
    assert told["spins"]["content"] == "timed out after 2s"
    assert "no such thing" in told["raises"]["content"]
    assert told["dies"]["content"]
    assert told["exits"]["content"]
    assert told["well"]["content"] == "well"


async def test_what_tools_return_is_made_fit_for_the_model(make_app: MakeApp) -> None:
    hf = make_app(tool_output_cap=1_000)

    @hf.tool
    def huge() -> str:
        """50 MB."""
        return "x" * 50_000_000

    @hf.tool
    def huge_object() -> dict[str, Any]:
        """50 MB of JSON."""
        return {"rows": ["y" * 1_000_000] * 50}

    @hf.tool(retry=ONCE)
    def unserialisable() -> object:
        """Not JSON."""
        return {"lock": threading.Lock()}

    @hf.tool
    def nul() -> str:
        """NUL."""
        return "a\x00b"

    @hf.tool
    def surrogate() -> dict[str, str]:
        """A lone surrogate."""
        return {"a": "b\ud800"}

    @hf.tool
    def nothing() -> None:
        """Nothing."""

    @hf.tool
    def nan() -> float:
        """Not a number."""
        return float("nan")

    @hf.tool
    def picture() -> Image:
        """A picture."""
        return Image(b"\x89PNG" + b"\x00" * 2_000_000)

    @hf.tool
    def papers() -> list[Any]:
        """Papers."""
        return ["Two of them:", Document.from_text("one", "One"), Image.from_url("https://example.org/two.png")]

    told = await outcome_of(hf, huge, huge_object, unserialisable, nul, surrogate, nothing, nan, picture, papers)
    assert told["huge"]["content"].startswith("x" * 1_000 + "\n[… 49,999,000 more")
    assert told["huge_object"]["content"].startswith('{"rows":["yyy')
    assert "more characters" in told["huge_object"]["content"]
    assert told["unserialisable"]["is_error"]
    assert "not JSON" in told["unserialisable"]["content"]
    assert told["nul"]["content"] == "a\ufffdb"
    assert told["surrogate"]["is_error"]
    assert "not JSON" in told["surrogate"]["content"]
    assert "content" not in told["nothing"]
    assert "is_error" not in told["nothing"]
    assert told["nan"]["content"] in ("null", "NaN")
    (shown,) = told["picture"]["content"]
    assert (shown["type"], shown["source"]["media_type"]) == ("image", "image/png")
    assert [part["type"] for part in told["papers"]["content"]] == ["text", "document", "image"]
    assert told["papers"]["content"][1]["title"] == "One"


async def test_ap_23_ap_32_a_call_for_a_tool_that_was_not_offered_is_refused(hf: Holdfast) -> None:
    """AP-23, AP-32: with an error result, also where another agent has that tool."""
    ran: list[str] = []

    @hf.tool
    def mine() -> str:
        """Mine."""
        return "mine"

    @hf.tool
    def theirs() -> str:
        """Theirs."""
        ran.append("theirs")
        return "theirs"

    hf.agent("other", model=scripted(hf, say("x")), tools=[theirs])
    model = scripted(hf, calls(call("theirs"), call("mine")), say("ok"))
    result = await hf.agent("one", model=model, tools=[mine]).run("Go")
    refused, answered = await results(hf, result.session_id)
    assert (refused["is_error"], answered["content"], ran) == (True, "mine", [])
    assert "There is no tool 'theirs'. There are: mine." in refused["content"]


async def test_ap_27_cancel_and_discard_end_a_call_whatever_is_left(hf: Holdfast) -> None:
    """AP-27: no further attempt happens."""
    attempts: list[str] = []

    @hf.tool(retry=Retry(attempts=5, base="0s"))
    def cancels() -> str:
        """Cancels."""
        attempts.append("cancels")
        raise Cancel("not today")

    @hf.tool(retry=Retry(attempts=5, base="0s"))
    def discards() -> str:
        """Discards."""
        attempts.append("discards")
        raise Discard("pointless")

    told = await outcome_of(hf, cancels, discards)
    assert sorted(attempts) == ["cancels", "discards"]
    assert told["cancels"]["is_error"]
    assert "not today" in told["cancels"]["content"]
    assert told["discards"]["is_error"]
    assert "pointless" in told["discards"]["content"]


async def test_a_tool_that_may_be_started_once_is_never_started_twice(hf: Holdfast, tmp_path: Path) -> None:
    marks, attempts = tmp_path / "marks", []

    @hf.tool(effect="once")
    def pays(ctx: ToolContext) -> str:
        """Pays."""
        attempts.append(ctx.attempt)
        raise ValueError("was it paid?")

    dying = hf.tool(effect="once", unknown="report", isolate="process", name="dying")(isolated_tools.counted)
    model = scripted(hf, calls(call("pays"), call("dying", file=str(marks))), say("asked a person"))
    result = await hf.agent("payer", model=model, tools=[pays, dying]).run("Pay")
    paid, died = await results(hf, result.session_id)
    assert (attempts, marks.read_text()) == ([1], "x")
    assert paid["is_error"]
    assert died["is_error"]
    assert "was it paid?" in paid["content"]


async def test_ap_28_a_snooze_hands_the_attempt_back(hf: Holdfast) -> None:
    """AP-28: not before its time, no attempt counted, as often as it likes."""
    seen: list[int] = []

    @hf.tool(retry=ONCE)
    def sleepy(ctx: ToolContext) -> str:
        """Sleepy."""
        seen.append(ctx.attempt)
        if len(seen) < 4:
            raise Snooze("20ms", "not yet")
        return "awake"

    told = await outcome_of(hf, sleepy)
    assert (told["sleepy"]["content"], seen) == ("awake", [1, 1, 1, 1])


def test_text_that_is_no_text_becomes_readable() -> None:
    assert readable({"a\x00": ["\ud83d\ude00", "\ud800x", 1, None, "plain"]}) == {
        "a\ufffd": ["\N{GRINNING FACE}", "\ufffdx", 1, None, "plain"]
    }


def threads() -> int:
    return sum(thread.name == "holdfast-call" for thread in threading.enumerate())


async def test_sync_tools_that_hang_use_up_their_own_threads_and_no_more(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """A hung thread cannot be stopped: it keeps its place, and calls beyond are refused by name."""
    hf, freed, before = make_app(max_concurrent_tools=3, heartbeat="200ms"), threading.Event(), threads()

    @hf.tool(timeout="50ms", retry=Retry(attempts=2, base="0s"))
    def blocks() -> str:
        """Blocks its thread."""
        freed.wait(60)
        return "done"

    @hf.tool
    def well() -> str:
        """Is well."""
        return "well"

    many = calls(*[call("blocks")] * 20, *[call("well")] * 5)
    agent = hf.agent("brave", model=scripted(hf, many, call("blocks"), say("on we go")), tools=[blocks, well])
    await hf.ensure_worker()
    try:
        run = await agent.enqueue("Go")
        while len(await results(hf, run.session_id)) < 25:
            assert threads() - before <= 8
            await asyncio.sleep(0)
        told = [block["content"] for block in await results(hf, run.session_id)]
        assert told[20:25] == ["well"] * 5, "no other tool is disturbed"
        refused = [text for text in told[:20] if text != "timed out after 50ms"]
        assert len(refused) >= 16
        assert re.search(r"tool:blocks was not started: [234] \([234] in tool:blocks\) of this worker's 8", refused[-1])
        assert 'isolate="process"' in refused[0]
        assert (await run.result()).text == "on we go"
        assert 2 <= threads() - before <= 4

        async def warned() -> bool:
            return "a call of tool:blocks was abandoned and has not returned: " in caplog.text

        async def shown() -> bool:
            (row,) = await hf.workers.list()
            hanging = row.lines.get("hanging")
            return hanging is not None and hanging.slots == 8 and hanging.active >= 2

        await eventually(warned)
        await eventually(shown)
    finally:
        freed.set()

    async def returned() -> bool:
        return threads() == before

    await eventually(returned)
    again = hf.agent("again", model=scripted(hf, call("blocks"), say("ok")), tools=[blocks])
    result = await again.run("Go")
    assert [block["content"] for block in await results(hf, result.session_id)] == ["done"]


async def test_wrong_arguments_are_answered_in_words_about_the_tool(hf: Holdfast) -> None:
    """A model knows its tools, and nothing of stored jobs and their kinds."""

    @hf.tool
    async def weather(city: str) -> str:
        """The weather in a city."""
        return city

    model = scripted(hf, calls(call("weather", place="Oslo")), say("on we go"))
    result = await hf.agent("brave", model=model, tools=[weather]).run("Go")
    (block,) = await results(hf, result.session_id)
    said = str(block["content"])
    assert block["is_error"]
    assert "the arguments of tool 'weather' do not fit: city" in said
    assert "job" not in said
    assert "stored" not in said
