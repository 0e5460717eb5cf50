"""`holdfast sessions compact`, `stats`, `restore` and `retire`."""

from __future__ import annotations

import pytest

from holdfast import Compaction, Holdfast
from tests.conftest import Place
from tests.support.commands import holdfast

SMALL = Compaction(window=10_000, target_tokens=100, preserve_last=2, protected_tokens=50)


@pytest.fixture
async def url(place: Place) -> str:
    """A session of three questions, each with a long output of a tool."""
    hf = Holdfast(place.url)

    @hf.tool
    def look_up(what: str) -> str:
        """Look something up."""
        return f"{what}: " + "rain and wind, " * 200

    guide = hf.agent("guide", model="scripted:", tools=[look_up], max_tokens=500, compaction=SMALL)
    async with hf:
        for number in range(3):
            await guide.run(f"Question {number}?", session="trip")
    return place.url


@pytest.mark.long
def test_a_session_is_looked_at_compacted_and_restored(url: str) -> None:
    where = ("trip", "--url", url)
    stats = holdfast("sessions", "stats", *where, "--json").json
    assert (stats["window"], stats["messages"], stats["compactions"]) == (10_000, 12, [])
    assert stats["compactable_messages"] == 8
    assert any(line.split()[:2] == ["usage", "percent"] for line in holdfast("sessions", "stats", *where).lines)
    assert holdfast("sessions", "compact", *where, "--if-needed").lines == ["no need"]
    assert holdfast("sessions", "compact", *where, "--if-needed", "--json").json is None

    pruned = holdfast("sessions", "compact", *where, "--target", "9000").out
    assert pruned.startswith("2 outputs of tools removed: ")
    summarized = holdfast("sessions", "compact", *where, "--strategy", "summarize", "--json").json
    assert (summarized["removed"], summarized["model"], summarized["state"]) == (8, "scripted:", "done")
    assert summarized["config"]["window"] == 10_000, "what is not said stays as the agent has it"
    assert len(holdfast("sessions", "stats", *where).lines) > len(stats)
    assert len(holdfast("sessions", "show", *where, "--json").json["messages"]) == 5

    assert holdfast("sessions", "restore", *where).out.endswith("is undone\n")
    assert holdfast("sessions", "restore", *where, "--json").json["state"] == "restored"
    assert len(holdfast("sessions", "show", *where, "--json").json["messages"]) == 12
    refused = holdfast("sessions", "restore", *where)
    assert (refused.code != 0, "no compaction to undo" in refused.err) == (True, True)


def test_nothing_to_compact_is_said_plainly(url: str) -> None:
    assert holdfast("sessions", "compact", "trip", "--url", url, "--strategy", "summarize").code == 0
    said = holdfast("sessions", "compact", "trip", "--url", url)
    assert said.code != 0
    assert "can be compacted" in said.err


def test_a_message_is_taken_out_by_its_number_or_its_id(url: str) -> None:
    where = ("--url", url)
    assert holdfast("sessions", "retire", "trip", "2", *where).lines == ["message 2 is no longer sent to models"]
    shown = holdfast("sessions", "show", "trip", *where, "--json").json["messages"]
    assert [message["retired"] for message in shown] == [True] * 4 + [False] * 8
    assert holdfast("sessions", "show", "trip", *where).lines[0] == "user (retired): Question 0?"
    assert holdfast("sessions", "retire", "trip", shown[-1]["id"], *where).code == 0
    shown = holdfast("sessions", "show", "trip", *where, "--json").json["messages"]
    assert [message["retired"] for message in shown] == [True] * 4 + [False] * 4 + [True] * 4
    refused = holdfast("sessions", "retire", "trip", "99", *where)
    assert (refused.code != 0, "has no message 99" in refused.err) == (True, True)
