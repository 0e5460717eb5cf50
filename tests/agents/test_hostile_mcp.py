"""MCP servers that mean harm: a run ends with a clear error, other jobs continue, and memory has a bound."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.mcp import sessions
from holdfast.agents.mcp.sessions import Lines, MessageRefused, check_message
from holdfast.agents.tools import Tool
from holdfast.app import core_of
from holdfast.errors import Unavailable, UsageError
from holdfast.kernel.retry import RetryPolicy
from holdfast.models.script import call, say
from tests.support.agents import results, scripted

SCRIPT = Path(__file__).parents[1] / "support" / "hostile_mcp.py"


async def declared(hf: Holdfast, kind: str, **options: Any) -> Sequence[Tool[Any, Any]]:
    command = [sys.executable, str(SCRIPT), kind]
    return await hf.mcp("bad", command=command, retry=RetryPolicy.none(), **options)


async def told(hf: Holdfast, kind: str, **options: Any) -> dict[str, Any]:
    """What the model is told of a call, while another job of the same worker is done."""
    tools = await declared(hf, kind, **options)
    agent = hf.agent("victim", model=scripted(hf, call("bad_go", text="x"), say("done")), tools=list(tools))

    @hf.job
    async def bystander() -> str:
        return "served"

    running = asyncio.create_task(agent.run("Go"))
    assert await (await bystander.enqueue()).result() == "served"
    result = await running
    assert result.text == "done"
    assert await (await bystander.enqueue()).result() == "served"
    (answer,) = await results(hf, result.session_id)
    return answer


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("names", "names no model accepts"),
        pytest.param("twice", "several tools of one name: 'go'", marks=pytest.mark.long),
    ],
)
async def test_tools_that_cannot_be_told_apart_or_named_are_refused(hf: Holdfast, kind: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as refused:
        await declared(hf, kind)
    assert "\x1b" not in str(refused.value)
    assert "\u202e" not in str(refused.value)
    assert len(str(refused.value)) < 2_000


@pytest.mark.long
async def test_a_list_of_tools_that_is_none_is_refused(hf: Holdfast) -> None:
    with pytest.raises(Unavailable, match="its list of tools is not one"):
        await declared(hf, "no object")


@pytest.mark.long
async def test_a_server_does_not_take_the_place_of_a_tool_of_ours(hf: Holdfast) -> None:
    @hf.tool
    async def pay() -> str:
        """Pay."""
        return "paid by us"

    with pytest.raises(UsageError, match="two functions are declared"):
        await declared(hf, "ours", prefix="")
    assert await pay() == "paid by us"


@pytest.mark.long
async def test_a_list_of_tools_that_does_not_end_is_refused(hf: Holdfast) -> None:
    with pytest.raises(Unavailable, match=r"its list of tools does not end after 1,0\d\d of them"):
        await declared(hf, "endless list")


@pytest.mark.long
async def test_a_list_of_tools_that_does_not_come_is_not_waited_for(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_OPENING", 3.0)
    with pytest.raises(Unavailable, match="did not list its tools within 3s"):
        await declared(hf, "no list")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["loop", "deep", "words"])
async def test_a_schema_or_a_description_of_any_kind_breaks_nothing(hf: Holdfast, kind: str) -> None:
    assert (await told(hf, kind))["content"] == "went"


async def test_a_pattern_of_a_server_does_not_hold_the_event_loop(hf: Holdfast) -> None:
    """Its schema of results would be compared on the loop, and such a comparison takes for ever."""
    assert (await told(hf, "slow pattern"))["content"] == "done"


async def test_a_server_that_never_ends_a_message_is_left(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MESSAGE", 4 << 20)
    answer = await told(hf, "endless line")
    assert answer["is_error"]
    assert "it sent a message of more than 4,194,304 bytes" in answer["content"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("wide", "with more than 50,000 values"),
        ("questions", "it asked 1,000 questions and read no answer"),
        ("flood", "it sent more than 1,000 notifications and no answer"),
        ("deep answer", "it sent a message that cannot be read"),
        ("half a character", "it sent a message that cannot be read"),
    ],
)
async def test_a_server_that_sends_what_costs_too_much_is_left(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, kind: str, problem: str
) -> None:
    monkeypatch.setattr(sessions, "NOTICES", 1_000)
    answer = await told(hf, kind)
    assert answer["is_error"]
    assert problem in answer["content"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "content"),
    [("flood", "after the flood"), ("wrong ids", "right"), ("greeting", "went"), ("huge", "x" * 1_000)],
)
async def test_what_else_a_server_says_changes_nothing(hf: Holdfast, kind: str, content: str) -> None:
    answer = await told(hf, kind)
    assert not answer.get("is_error")
    assert str(answer["content"]).startswith(content)
    assert len(str(answer["content"])) <= core_of(hf).settings.tool_output_cap + 200


@pytest.mark.long
async def test_contents_of_odd_kinds_are_described(hf: Holdfast) -> None:
    shown = str((await told(hf, "odd"))["content"])
    assert "that is not base64" in shown
    assert "\0" not in shown


@pytest.mark.long
async def test_an_answer_that_never_comes_ends_with_the_timeout(hf: Holdfast) -> None:
    answer = await told(hf, "silent", timeout="1s")
    assert answer["is_error"]
    assert "timed out" in answer["content"]


def test_lines_are_cut_once_and_have_a_length() -> None:
    lines = Lines(10)
    assert lines.feed(b"ab") == []
    assert lines.feed(b"c\nd\n\ne") == [b"abc", b"d", b""]
    assert lines.feed(b"f" * 9 + b"\n") == [b"e" + b"f" * 9]
    with pytest.raises(MessageRefused, match="more than 10 bytes"):
        lines.feed(b"g" * 11)


def test_a_long_message_has_so_many_values() -> None:
    check_message(b"[" + b"{}," * 100_000 + b"{}]")
    check_message(b'"' + b"x" * (2 << 20) + b'"')
    with pytest.raises(MessageRefused, match="more than 50,000 values"):
        check_message(b"[" + b"{}," * 500_000 + b"{}]")


@pytest.mark.parametrize(("body", "problem"), [("long", "more than 4,096 bytes"), ("packed", "packed answer")])
async def test_an_answer_over_http_has_a_length(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, body: str, problem: str
) -> None:
    monkeypatch.setattr(sessions, "MESSAGE", 4_096)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        packed = b"content-encoding: gzip\r\n" if body == "packed" else b""
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + packed + b"connection: close\r\n\r\n")
        writer.write(b"x" * 5_000)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        with pytest.raises(Unavailable, match=problem):
            await hf.mcp("web", url=f"http://127.0.0.1:{port}/mcp")
    finally:
        server.close()
