"""Agents through the gateway: a run is started, awaited and read by a client that knows nothing of Python."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.models.script import Script
from holdfast.models.steps import call, calls, say
from tests.resp.conftest import Client, Connect
from tests.resp.test_workers import registered


@pytest.mark.both
async def test_a_run_is_started_awaited_and_read(hf: Holdfast, connect: Connect) -> None:
    @hf.tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"sunny in {city}"

    hf.script("guide", Script(call("weather", city="Oslo"), say("It is sunny.")))
    hf.agent("guide", model="scripted:guide", tools=[weather])
    client = await connect("submitter")
    run = await client.text("RUN.START", "guide", "Oslo?", "KEY", "once")
    assert await client.text("RUN.START", "guide", "Oslo?", "KEY", "once") == run
    assert await client("RUN.RESULT", run) is None
    await hf.ensure_worker()
    result = json.loads(await client.text("RUN.RESULT", run, "BLOCK", "60000"))
    assert (result["outcome"], result["text"]) == ("answered", "It is sunny.")
    seen: list[tuple[int, str]] = []
    while True:
        part = await client("RUN.EVENTS", run, str(seen[-1][0] if seen else 0), "COUNT", "3")
        assert isinstance(part, list)
        if not part:
            break
        seen += [(each[0], bytes(each[1]).decode()) for each in part]  # type: ignore[index, arg-type, misc]
    assert [number for number, _ in seen] == list(range(1, len(seen) + 1))
    assert (seen[0][1], seen[-1][1]) == ("run_created", "run_ended")
    assert "there is no agent nobody" in await client.text("RUN.START", "nobody", "x")
    assert (await client.text("RUN.RESULT", "0")).startswith("-ERR")
    assert await client.text("RUN.EVENTS", run, "0", "WHAT", "1") == "-ERR syntax error"


async def served(client: Client) -> tuple[dict[str, Any], str]:
    """The next call of a tool that this worker was given, and its token."""
    claimed = await client("JOB.CLAIM", "outside", "BLOCK", "60000")
    assert isinstance(claimed, list)
    ((text, token, _lease),) = claimed  # type: ignore[misc, str-unpack]
    assert isinstance(text, bytes)
    assert isinstance(token, bytes)
    return json.loads(text), token.decode()


@pytest.mark.both
async def test_a_tool_is_served_by_a_redis_client(hf: Holdfast, connect: Connect) -> None:
    @hf.tool(queue="outside", requires=["tag:by=redis"])
    def weather(city: str) -> dict[str, int]:
        """The weather in a city."""
        raise AssertionError("its code is somewhere else")

    hf.script(
        "guide",
        Script(
            calls(call("weather", city="Oslo"), call("weather", city="Rome"), call("weather", city="Nowhere")),
            say("It is 7 degrees in Oslo."),
        ),
    )
    agent = hf.agent("guide", model="scripted:guide", tools=[weather])
    worker = await registered(connect, "w1", "weather", tags={"by": "redis"}, max_concurrent_jobs=3)
    await hf.ensure_worker()
    run = await agent.enqueue("How warm is it?")
    for _ in range(3):
        job, token = await served(worker)
        assert job["kind"] == "tool:weather"
        answer: tuple[str, ...]
        match job["payload"]["city"]:
            case "Oslo":
                answer = ("JOB.COMPLETE", job["job_id"], token, '{"degrees": 7}')
            case "Rome":
                answer = ("JOB.COMPLETE", job["job_id"], token, '"warm"')
            case _:
                answer = ("JOB.FAIL", job["job_id"], token, "no such city", "NEVER")
        assert await worker(*answer) == "OK"
    result = await run.result()
    assert result.text == "It is 7 degrees in Oslo."
    sent = (await hf.sessions[run.session_id or ""].messages())[2]
    assert [(each["content"], each.get("is_error", False)) for each in sent.blocks] == [
        ('{"degrees":7}', False),
        ("warm", False),
        ("no such city", True),
    ]
