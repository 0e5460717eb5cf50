"""Tools of MCP servers: real servers, in processes of their own, over both transports."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.definition import Effect
from holdfast.agents.tools import Tool
from holdfast.app import core_of
from holdfast.errors import BadSetting, MissingExtra, Unavailable, UsageError
from holdfast.kernel.retry import RetryPolicy
from holdfast.models.script import call, calls, say
from holdfast.testing import Lab
from holdfast.testing.databases import SqliteFiles
from tests.support.agents import results, scripted
from tests.support.apps import MakeApp, eventually
from tests.support.notes import Listening, Notes

pytestmark = pytest.mark.asyncio

Tools = dict[str, Tool[Any, Any]]


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path)


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Listening]:
    server = Listening(tmp_path)
    yield server
    server.stop()


@pytest.fixture
async def tools(hf: Holdfast, notes: Notes) -> Tools:
    once: dict[str, Effect] = {"die": "once"}
    made = await hf.mcp("notes", command=notes.command(), env={"NOTES_OWNER": "me"}, effects=once, unknown="report")
    return {tool.name: tool for tool in made}


async def told(hf: Holdfast, tools: Tools, *steps: Any) -> list[dict[str, Any]]:
    """What a model that calls these is told."""
    agent = hf.agent(
        f"a{len(core_of(hf).defined)}", model=scripted(hf, *steps, say("done")), tools=list(tools.values())
    )
    result = await agent.run("Go")
    assert result.text == "done"
    return await results(hf, result.session_id)


async def test_a_server_s_tools_are_tools_of_the_app(hf: Holdfast, tools: Tools) -> None:
    assert set(tools) == {
        *("notes_read", "notes_write", "notes_refuse", "notes_mixed", "notes_long", "notes_die", "notes_hang")
    }
    spec = tools["notes_read"].spec
    assert (spec.description, spec.effect, spec.attempts) == ("Read a note.", "read", 2)
    assert spec.schema["properties"]["path"]["type"] == "string"
    assert spec.schema["title"] == "readArguments", "the schema is the server's own"
    assert (tools["notes_write"].effect, tools["notes_die"].effect) == ("idempotent", "once")
    assert tools["notes_die"].spec.attempts == 1
    assert await tools["notes_read"](path="a") == "note a of me"


async def test_calls_are_jobs_whose_key_the_server_sees(hf: Holdfast, tools: Tools, notes: Notes) -> None:
    (one, two) = await told(hf, tools, calls(call("notes_read", path="a"), call("notes_write", path="b", text="four")))
    assert (one["content"], two["content"]) == ("note a of me", "wrote 4 characters")
    (run,) = await hf.runs.list()
    made = {row.name: row for row in await hf.runs[run.id].calls()}
    assert notes.calls == [f"write b {made['notes_write'].id}"]
    assert notes.starts == 1, "one connection serves every call"


@pytest.mark.long
async def test_contents_become_blocks(hf: Holdfast, tools: Tools) -> None:
    (result,) = await told(hf, tools, call("notes_mixed"))
    text, image, note, archive = result["content"]
    assert text == {"type": "text", "text": "look"}
    assert (image["type"], image["source"]["media_type"]) == ("image", "image/png")
    assert note["text"] == "note://a\nremember"
    assert archive["text"] == "[note://b that cannot be shown: application/zip, 3 bytes]"


@pytest.mark.long
async def test_what_a_server_calls_an_error_is_told_and_not_tried_again(
    hf: Holdfast, tools: Tools, notes: Notes
) -> None:
    refused, misfit, nothing = await told(
        hf, tools, calls(call("notes_refuse", reason="locked"), call("notes_read", pth="a"), call("notes_read"))
    )
    assert (refused["is_error"], refused["content"]) == (True, "Error executing tool refuse: locked")
    assert misfit["is_error"]
    assert "path" in misfit["content"]
    assert nothing["is_error"]
    assert notes.calls == ["refuse"]


@pytest.mark.long
async def test_long_answers_are_cut(make_app: MakeApp, notes: Notes) -> None:
    hf = make_app(tool_output_cap=100)
    tools = await hf.mcp("n", command=notes.command(), only=["long"])
    (result,) = await told(hf, {tool.name: tool for tool in tools}, call("n_long", size=250))
    assert result["content"].startswith("x" * 100 + "\n[… 150 more")


@pytest.mark.long
async def test_a_server_that_was_killed_is_started_again(hf: Holdfast, tools: Tools, notes: Notes) -> None:
    assert [block["content"] for block in await told(hf, tools, call("notes_read", path="a"))] == ["note a of me"]
    notes.kill()
    assert [block["content"] for block in await told(hf, tools, call("notes_read", path="b"))] == ["note b of me"]
    assert notes.starts == 2


@pytest.mark.long
async def test_a_server_that_died_while_nobody_called_costs_no_call(hf: Holdfast, notes: Notes) -> None:
    tools = await hf.mcp("notes", command=notes.command(), only=["write"], effect="once")
    (connection,) = hf._mcp._connections._mine().connections.values()
    notes.kill()

    async def noticed() -> bool:
        return connection.broken

    await eventually(noticed)
    (result,) = await told(hf, {tool.name: tool for tool in tools}, call("notes_write", path="a", text="b"))
    assert result["content"] == "wrote 1 characters"


@pytest.mark.long
async def test_who_leaves_closes_only_what_was_opened_there(hf: Holdfast, tools: Tools, notes: Notes) -> None:
    """Another event loop, or a lab on the same one."""
    core = core_of(hf)
    database = await core.opened()
    journal = core.loop.journal(database)

    async def elsewhere() -> None:
        assert await tools["notes_read"](path="b") == "note b of me"
        await hf.close()

    await asyncio.to_thread(asyncio.run, elsewhere())
    assert notes.starts == 2, "each event loop has a connection of its own"
    lab = await Lab.open(hf, SqliteFiles())
    await lab.close()
    assert await tools["notes_read"](path="a") == "note a of me"
    assert notes.starts == 2
    assert core.loop.journal(database) is journal


@pytest.mark.long
async def test_a_call_that_loses_its_connection_is_an_ordinary_failure(
    hf: Holdfast, tools: Tools, notes: Notes
) -> None:
    lost, fine = await told(hf, tools, call("notes_die"), call("notes_read", path="a"))
    assert lost["is_error"]
    assert "the connection to MCP server 'notes' was lost" in lost["content"]
    assert notes.calls == ["die"], "its effect is once: it is not started again"
    assert fine["content"] == "note a of me"


@pytest.mark.long
async def test_a_once_call_that_loses_its_connection_waits_for_a_person(hf: Holdfast, notes: Notes) -> None:
    tools = await hf.mcp("n", command=notes.command(), only=["die"], effect="once")
    agent = hf.agent("note taker", model=scripted(hf, call("n_die"), say("done")), tools=tools)
    await hf.ensure_worker()
    run = await agent.enqueue("Go")

    async def waits() -> bool:
        return bool(await run.inquiries())

    await eventually(waits)
    (inquiry,) = await run.inquiries()
    assert (inquiry.kind, notes.calls) == ("review", ["die"])
    await hf.answer(run.id, "it is gone")
    assert (await run.result()).text == "done"


@pytest.mark.long
async def test_a_call_that_ends_its_server_fails_alone(hf: Holdfast, notes: Notes) -> None:
    """Its neighbours are asked again, without using up their attempts; what may happen once is not."""
    options: dict[str, Any] = {"command": notes.command("crowd"), "prefix": ""}
    twice = RetryPolicy(attempts=2, backoff="constant", base="0s", jitter=0.0)
    made = [
        *await hf.mcp("n", **options, only=["read", "linger"], effects={"read": "read"}, retry=RetryPolicy.none()),
        *await hf.mcp("n", **options, only=["die_with"], retry=twice),
        *await hf.mcp("n", **{**options, "prefix": "o"}, only=["linger"], effect="once", unknown="report"),
    ]
    tools = {tool.name: tool for tool in made}
    together = calls(
        *(call("linger", name=name) for name in "ab"),
        call("o_linger", name="once"),
        call("die_with", count=3),
    )
    *neighbours, once, killer, after = await told(hf, tools, together, call("read", path="a"))
    assert [block["content"] for block in neighbours] == ["lingered a", "lingered b"]
    assert once["is_error"]
    assert "the connection to MCP server 'n' was lost" in once["content"]
    assert "other calls were active" in once["content"]
    assert killer["is_error"]
    assert "the connection to MCP server 'n' was lost" in killer["content"]
    assert "no other call was active, so this one may have ended it" in killer["content"]
    assert after["content"] == "note a of nobody"
    (run,) = await hf.runs.list()
    made_calls = await hf.runs[run.id].calls()
    assert [row.attempts for row in made_calls] == [1, 1, 1, 2, 1]
    asked = Counter(notes.calls)
    assert asked == {"linger a": 2, "linger b": 2, "linger once": 1, "die_with": 3}


@pytest.mark.long
async def test_it_is_retried_by_its_policy(hf: Holdfast, notes: Notes) -> None:
    three = RetryPolicy(attempts=3, backoff="constant", base="0s", jitter=0.0)
    tools = await hf.mcp("n", command=notes.command(), only=["die", "read"], prefix="", retry=three)
    (lost,) = await told(hf, {tool.name: tool for tool in tools}, call("die"))
    assert lost["is_error"]
    assert notes.calls == ["die"] * 3


@pytest.mark.long
async def test_a_timeout_ends_the_call_and_not_the_connection(hf: Holdfast, notes: Notes) -> None:
    slow = await hf.mcp("n", command=notes.command(), only=["hang"], timeout="1s", retry=RetryPolicy.none())
    fine = await hf.mcp("n", command=notes.command(), only=["read"])
    late, read = await told(hf, {tool.name: tool for tool in [*slow, *fine]}, call("n_hang"), call("n_read", path="a"))
    assert late["is_error"]
    assert "timed out" in late["content"]
    assert read["content"] == "note a of nobody"
    assert notes.starts == 1


@pytest.mark.long
async def test_the_server_is_stopped_with_the_app(hf: Holdfast, tools: Tools, notes: Notes) -> None:
    pid = notes.pid
    assert await tools["notes_read"](path="a")
    await hf.close()

    async def gone() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    await eventually(gone)


@pytest.mark.long
async def test_streamable_http(hf: Holdfast, listening: Listening) -> None:
    await listening.start()
    made = await hf.mcp("web", url=listening.url, headers={"authorization": "Bearer secret"}, only=["read", "die"])
    tools = {tool.name: tool for tool in made}
    (read,) = await told(hf, tools, call("web_read", path="a"))
    assert read["content"] == "note a of nobody"
    listening.stop()
    (lost,) = await told(hf, tools, call("web_read", path="b"))
    assert lost["is_error"]
    assert "MCP server 'web'" in lost["content"]
    await listening.start()
    (again,) = await told(hf, tools, call("web_read", path="c"))
    assert again["content"] == "note c of nobody"


@pytest.mark.long
async def test_selecting_renaming_and_declaring_again(hf: Holdfast, notes: Notes) -> None:
    (bare,) = await hf.mcp("notes", command=notes.command(), only=["read"], prefix="")
    assert (bare.name, bare.effect) == ("read", "read"), "what the server calls read-only is"
    (other,) = await hf.mcp("notes", command=notes.command(), only=["write"], prefix="n", effect="once")
    assert (other.name, other.effect) == ("n_write", "once")
    (again,) = await hf.mcp("notes", command=notes.command(), only=["read"], prefix="")
    assert again.name == "read"
    with pytest.raises(UsageError, match="already has an MCP server 'notes'"):
        await hf.mcp("notes", command=notes.command(), only=["write"], env={"NOTES_OWNER": "else"})
    with pytest.raises(UsageError, match="two functions are declared"):
        await hf.mcp("others", command=notes.command(), only=["write"], prefix="n")


@pytest.mark.long
async def test_what_the_program_says_of_an_effect_wins_over_the_server_s_hint(hf: Holdfast, notes: Notes) -> None:
    for prefix, said in (("a", "once"), ("b", "idempotent")):
        effect: Any = said
        (read,) = await hf.mcp("notes", command=notes.command(), only=["read"], prefix=prefix, effect=effect)
        assert (read.effect, read.spec.effect, read.spec.review) == (said, said, said == "once")
    both = await hf.mcp(
        "notes", command=notes.command(), only=["read", "write"], prefix="c", effect="once", effects={"read": "read"}
    )
    assert {tool.name: tool.effect for tool in both} == {"c_read": "read", "c_write": "once"}


@pytest.mark.long
async def test_a_server_that_was_not_declared_leaves_its_name_to_another(hf: Holdfast, notes: Notes) -> None:
    with pytest.raises(UsageError, match="names no model accepts"):
        await hf.mcp("notes", command=notes.command("dotted"))
    (read,) = await hf.mcp("notes", command=notes.command(), env={"NOTES_OWNER": "me"}, only=["read"])
    assert await read(path="a") == "note a of me"


@pytest.mark.long
async def test_names_that_no_model_takes_are_refused(hf: Holdfast, notes: Notes) -> None:
    with pytest.raises(UsageError, match=r"names no model accepts: 'a\.b'"):
        await hf.mcp("notes", command=notes.command("dotted"))
    assert len(await hf.mcp("notes", command=notes.command("dotted"), only=["read"])) == 1
    with pytest.raises(UsageError, match="names no model accepts: 'read'"):
        await hf.mcp("notes", command=notes.command("dotted"), only=["read"], prefix="my files")
    with pytest.raises(UsageError, match=r"no tool 'raed'; it has .*read"):
        await hf.mcp("notes", command=notes.command("dotted"), only=["raed"])
    with pytest.raises(UsageError, match="no tool 'wirte'"):
        await hf.mcp("notes", command=notes.command("dotted"), effects={"wirte": "once"})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "either a command"),
        ({"command": ["x"], "url": "http://x"}, "either a command"),
        ({"command": "python -m x"}, "a list of words"),
        ({"url": "http://x", "env": {"A": "b"}}, "env and cwd"),
        ({"command": ["x"], "headers": {"a": "b"}}, "headers are for"),
    ],
)
async def test_a_server_has_one_place(hf: Holdfast, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        await hf.mcp("notes", **options)


async def test_bad_options_are_refused_before_anything_is_started(hf: Holdfast, notes: Notes) -> None:
    wrong: Any = "twice"
    with pytest.raises(BadSetting, match="effect must be"):
        await hf.mcp("notes", command=notes.command(), effect=wrong)
    with pytest.raises(BadSetting, match="effect must be"):
        await hf.mcp("notes", command=notes.command(), effects={"read": wrong})
    assert not notes.started


async def test_a_server_that_cannot_be_reached_says_so(hf: Holdfast) -> None:
    with pytest.raises(Unavailable, match=r"'notes' \(/no/such/program\) cannot be reached: FileNotFoundError"):
        await hf.mcp("notes", command=["/no/such/program"])
    with pytest.raises(Unavailable, match="cannot be reached"):
        await hf.mcp("notes", command=[sys.executable, "-c", "print('no protocol')"])


async def test_without_the_sdk(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.client.client", None)
    with pytest.raises(MissingExtra, match=r"holdfast-agents\[mcp\]"):
        await hf.mcp("notes", command=["anything"])


@pytest.mark.long
async def test_listing_without_an_event_loop_leaves_nothing_open(hf: Holdfast, notes: Notes) -> None:
    (read,) = await asyncio.to_thread(hf.sync.mcp, "notes", command=notes.command(), only=["read"])
    assert notes.starts == 1
    (result,) = await told(hf, {read.name: read}, call("notes_read", path="a"))
    assert result["content"] == "note a of nobody"
    assert notes.starts == 2, "the worker's loop has a connection of its own"


@pytest.mark.long
async def test_secrets_of_a_server_are_not_stored(hf: Holdfast, tools: Tools) -> None:
    agent = hf.agent("secretive", model="scripted:", tools=list(tools.values()))
    assert "NOTES_OWNER" not in agent.spec.text()
