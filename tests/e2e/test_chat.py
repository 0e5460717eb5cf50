"""`holdfast chat`: an agent in the terminal, and the person who is asked there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.conftest import Place
from tests.support.apps import working
from tests.support.commands import Said, environment, holdfast

DESK = '''
import os
from holdfast import Holdfast
from holdfast.models.script import Script, call, calls, say

hf = Holdfast(os.environ["DESK_URL"])

@hf.tool(approve=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"

told = lambda messages: say(" / ".join(str(block["content"]) for block in messages[-1]["content"]))
hf.script("till", Script(calls(call("pay", amount=1), call("ask_person", question="Which?")), told))
hf.script("pays", Script(call("pay", amount=1), told))
hf.script("lead", Script(call("pays", task="go"), told))
hf.agent("echo", model="scripted:")
hf.agent("till", model="scripted:till", tools=[pay, hf.inquiries.question()])
hf.agent("lead", model="scripted:lead", agents=[hf.agent("pays", model="scripted:pays", tools=[pay])])
hf.agent("broken", model="scripted:nobody")
'''


class Terminal:
    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url

    def chat(self, *words: str, typed: str, **variables: str) -> Said:
        env = environment(DESK_URL=self._url, **variables)
        return holdfast("chat", *words, "--url", self._url, cwd=self._folder, env=env, typed=typed)


@pytest.fixture
def terminal(place: Place, tmp_path: Path) -> Terminal:
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "desk.py").write_text(DESK)
    return Terminal(folder, place.url)


def test_what_is_asked_of_a_person_is_decided_at_the_prompt(terminal: Terminal) -> None:
    said = terminal.chat("desk:hf", "till", typed="go\ny\nthe left one\n")
    assert (said.code, said.err) == (0, "")
    assert '(approval: pay {"amount":1})' in said.out
    assert "(question: Which?)" in said.out
    assert said.out.endswith("paid 1 / the left one\n")
    assert "holdfast runs approve" not in said.out
    denied = terminal.chat("desk:hf", "till", typed="go\nthat is too much\nnone\n").out
    assert "A person denied this call: that is too much" in denied


@pytest.mark.long
def test_what_an_agent_below_asks_is_asked_too(terminal: Terminal) -> None:
    said = terminal.chat("desk:hf", "lead", typed="go\ny\n")
    assert (said.code, said.out.endswith("paid 1\n")) == (0, True), said


@pytest.mark.long
def test_what_nobody_decides_stays_open(terminal: Terminal) -> None:
    said = terminal.chat("desk:hf", "till", typed="go\n")
    assert said.code == 1
    assert "stays open" in said.err


@pytest.mark.long
def test_a_run_that_failed_is_told_by_the_exit_code(terminal: Terminal) -> None:
    said = terminal.chat("desk:hf", "broken", typed="hello\n")
    assert (said.code, "failed" in said.out) == (3, True), said


@pytest.mark.long
def test_a_program_reads_the_events(terminal: Terminal) -> None:
    said = terminal.chat("desk:hf", "till", "--session", "ann", "--json", typed="go\ny\nleft\n")
    events = [json.loads(line) for line in said.out.splitlines()]
    kinds = [event["type"] for event in events]
    assert (said.code, kinds[0], kinds[-1]) == (0, "run_created", "run_ended")
    asked = next(event for event in events if event["type"] == "approval_requested")
    assert asked["call"]["input"] == {"amount": 1}
    again = terminal.chat("desk:hf", "echo", "--session", "ann", "--json", typed="more\n").out.splitlines()
    assert json.loads(again[0]) == {"type": "message", "role": "user", "text": "go"}


@pytest.mark.long
async def test_an_agent_of_the_store_is_talked_with_by_its_name(terminal: Terminal, place: Place) -> None:
    hf = Holdfast(place.url, embedded=False)
    echo = hf.agent("echo", model="scripted:")
    async with hf:
        await hf.agents.put(echo)
        alone = await asyncio.to_thread(terminal.chat, "echo", typed="Good day\n")
        assert "no live worker serves agent" in alone.refused(4)
        here = await asyncio.to_thread(terminal.chat, "echo", typed="Good day\n", HOLDFAST_APP="desk:hf")
        assert (here.code, here.out) == (0, "Good day\n"), "a worker in this process serves what the app declares"
        async with working(hf):
            said = await asyncio.to_thread(terminal.chat, "echo", typed="Good day\n")
    assert (said.code, said.out) == (0, "Good day\n"), said
    assert "there is no agent nobody" in (await asyncio.to_thread(terminal.chat, "nobody", typed="")).refused(2)
    unknown = await asyncio.to_thread(terminal.chat, "till2", typed="", HOLDFAST_APP="desk:hf")
    assert "the app defines no agent 'till2'; it has broken, echo, lead, pays, till." in unknown.refused(2)
    assert "name the agent" in (await asyncio.to_thread(terminal.chat, "desk:hf", typed="")).refused(2)
