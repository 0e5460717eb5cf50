"""Agents through the gateway: a run is started, awaited and read by a client that knows nothing of Python."""

from __future__ import annotations

import json

import pytest

from holdfast import Holdfast
from holdfast.models.script import Script
from holdfast.models.steps import call, say
from tests.resp.conftest import Connect


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
