"""Hostile input does not hold the event loop: no callback that answers it costs 50 ms of CPU."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.http import web
from holdfast.kernel import codec
from holdfast.models.script import Script, say
from tests.http.attachments import attachments
from tests.http.client import Client
from tests.http.test_api import API
from tests.http.test_long_input import WIDE, ann
from tests.http.test_payloads import PAYLOADS
from tests.support.held_loop import PATIENCE, loop_watched

PAGES = ("/", "/runs", "/jobs", "/sessions", "/agents")


async def attack(hf: Holdfast) -> list[str]:
    """What held the loop meanwhile. It is done twice, because what comes first imports and compiles."""
    client = ann(hf)
    hf.script("x", Script(say("fine")))
    await hf.agents.create("clerk", model="scripted:x")
    requests: list[tuple[str, Any, bytes | None]] = [
        (f"{API}/sessions", None, text().encode()) for text in WIDE.values()
    ]
    requests += [(f"{API}/runs", {"agent": "clerk", "prompt": [each.block]}, None) for each in attachments()]
    requests += [(f"{API}/runs", {"agent": "clerk", "prompt": each}, None) for each in PAYLOADS[::20]]
    requests += [(f"{API}/sessions", {f"k{number}": 1 for number in range(20_000)}, None)]
    found: list[str] = []
    for _ in range(2):
        with loop_watched() as held:
            for path, body, raw in requests:
                await asyncio.sleep(0)
                await client.call("POST", path, body, raw=raw)
            for path in PAGES:
                await client.get(path)
        found = held.found
    return found


@pytest.mark.long
async def test_hostile_input_does_not_hold_the_loop(hf: Holdfast) -> None:
    found = await attack(hf)
    if found:  # once more: collecting garbage of other tests may have been in it
        found = await attack(hf)
    assert found == []


async def test_a_body_that_is_parsed_whole_is_noticed(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "is_wide", lambda _: False)
    client = ann(hf)
    body = WIDE["keys"]().encode()
    await client.get(f"{API}/sessions")
    with loop_watched() as held:
        await client.call("POST", f"{API}/sessions", raw=body)
    assert held.found or held.unseen  # all of it may have been one call of C


async def test_who_holds_the_loop_is_named(hf: Holdfast) -> None:
    def spin() -> None:
        begun = time.thread_time()
        while time.thread_time() - begun < 2 * PATIENCE:
            pass

    def who(_: Any) -> Principal:
        spin()
        return Principal("ann")

    with loop_watched() as held:
        await asyncio.to_thread(spin)
        asyncio.get_running_loop().call_soon(spin)
        await asyncio.sleep(0)
        assert held.found == [], "another thread, and what a test does itself"
        await Client(web(hf, who=who)).get(f"{API}/runs")
    (found,) = [each for each in held.found if "spin" in each]
    assert "gate.py" in found
    assert " who" in found
