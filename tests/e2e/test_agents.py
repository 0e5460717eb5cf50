"""`holdfast runs`, `agents`, `sessions`, `lanes` and `chat`: what a person asks about agents in the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast import Holdfast, Limits
from holdfast.agents.lanes import close_lane
from holdfast.app import core_of
from tests.conftest import Place
from tests.support.commands import holdfast


class Told(NamedTuple):
    url: str
    run: str
    waiting: str
    session: str


@pytest.fixture
async def told(place: Place) -> Told:
    """One run that has ended, one that nobody serves, and a lane that waits for a person."""
    hf = Holdfast(place.url)

    @hf.tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"sunny in {city}"

    guide = hf.agent("guide", model="scripted:", tools=[weather], instructions="Be brief.", limits=Limits(turns=5))
    async with hf:
        result = await guide.run("Oslo", session="trip")
    later = Holdfast(place.url, embedded=False)
    async with later:
        waiting = await later.agent("nobody", model="scripted:").enqueue("Hello?", session="trip")
        await core_of(later).runtime().transact(close_lane, "acme/claude", None, person=True, reason="no credit")
    return Told(place.url, result.run_id, waiting.id, result.session_id)


def test_runs_are_listed_and_shown(told: Told) -> None:
    heading, *lines = holdfast("runs", "ls", "--url", told.url).lines
    assert heading.split() == ["ID", "AGENT", "STATE", "OUTCOME", "TURNS", "TOKENS", "COST", "CREATED"]
    assert [line.split()[:4] for line in lines] == [
        [told.waiting, "nobody", "pending", "-"],
        [told.run, "guide", "completed", "answered"],
    ]
    assert [row["id"] for row in holdfast("runs", "ls", "--state", "completed", "--url", told.url, "--json").json] == [
        told.run
    ]
    shown = holdfast("runs", "show", told.run, "--url", told.url).out
    assert 'weather({"city":"Oslo"}): completed' in shown
    assert "turn 2: completed, end_turn" in shown
    whole = holdfast("runs", "show", told.run, "--url", told.url, "--json").json
    assert (whole["output"]["text"], len(whole["turn_list"]), whole["calls"][0]["name"]) == (
        "sunny in Oslo",
        2,
        "weather",
    )


def test_a_run_is_followed_to_its_end(told: Told) -> None:
    assert holdfast("runs", "tail", told.run, "--url", told.url).lines == ['[weather {"city":"Oslo"}]', "sunny in Oslo"]
    events = [json.loads(line) for line in holdfast("runs", "tail", told.run, "--url", told.url, "--json").lines]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert (events[0]["type"], events[-1]["type"], events[-1]["result"]["text"]) == (
        "run_created",
        "run_ended",
        "sunny in Oslo",
    )


def test_a_run_says_what_it_waits_for_and_is_cancelled(told: Told) -> None:
    said = holdfast("runs", "why", told.waiting, "--url", told.url).out
    assert "agent:nobody" in said
    assert holdfast("runs", "cancel", told.waiting, "--url", told.url).lines == [f"run {told.waiting} is cancelled"]
    row = holdfast("runs", "show", told.waiting, "--url", told.url, "--json").json
    assert (row["state"], row["error"]) == ("cancelled", "cancelled by hand")


def test_a_run_that_is_not_there_is_an_error(told: Told) -> None:
    said = holdfast("runs", "show", told.session, "--url", told.url)
    assert said.code != 0
    assert f"there is no run {told.session}" in said.err


def test_agents_are_listed_and_shown(told: Told) -> None:
    assert [line.split()[0] for line in holdfast("agents", "ls", "--url", told.url).lines] == [
        "NAME",
        "guide",
        "nobody",
    ]
    shown = holdfast("agents", "show", "guide", "--url", told.url)
    assert shown.lines[-1] == "Be brief."
    definition = holdfast("agents", "show", "guide", "--url", told.url, "--json").json["versions"][0]["definition"]
    assert (definition["limits"]["turns"], definition["tools"][0]["name"]) == (5, "weather")


def test_sessions_are_listed_and_read(told: Told) -> None:
    assert [row["key"] for row in holdfast("sessions", "ls", "--url", told.url, "--json").json] == ["trip"]
    assert holdfast("sessions", "show", "trip", "--url", told.url).lines == [
        "user: Oslo",
        "assistant: [calls weather {'city': 'Oslo'}]",
        "user: [result: sunny in Oslo]",
        "assistant: sunny in Oslo",
    ]
    assert holdfast("sessions", "ls", "--metadata", "a=b", "--url", told.url).lines == ["no sessions"]


def test_a_lane_is_opened_by_a_person(told: Told) -> None:
    assert "when a person opens it" in holdfast("lanes", "ls", "--url", told.url).out
    assert "`holdfast lanes open acme/claude`" in holdfast("doctor", "--url", told.url).out
    assert "acme/claude" in holdfast("top", "--once", "--url", told.url).out
    assert holdfast("lanes", "open", "acme/claude", "--url", told.url).lines == [
        "lane acme/claude is open; 0 waiting runs continue"
    ]
    assert holdfast("lanes", "ls", "--url", told.url).lines == ["no lane is closed"]
    assert holdfast("lanes", "open", "acme/claude", "--url", told.url).code != 0


@pytest.mark.long
def test_a_chat_goes_on_where_it_was_left(tmp_path: Path) -> None:
    (tmp_path / "desk.py").write_text(
        'from holdfast import Holdfast\nhf = Holdfast("sqlite:///desk.db")\nhf.agent("echo", model="scripted:")\n'
    )

    def chat(text: str) -> str:
        said = holdfast("chat", "desk:hf", "echo", "--session", "me", cwd=tmp_path, typed=text)
        assert said.code == 0, said
        return said.out

    assert chat("Good day\n\n") == "Good day\n"
    assert chat("And now?\n") == "user: Good day\nassistant: Good day\nAnd now?\n"
    assert holdfast("chat", "desk:hf", "other", cwd=tmp_path).code != 0
