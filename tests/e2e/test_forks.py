"""`holdfast runs fork`, `export`, `compare` and `replay`, and `holdfast sessions fork`."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.models.script import Script, call, say
from tests.conftest import Place
from tests.support.commands import holdfast


@pytest.fixture
async def played(place: Place) -> tuple[str, str]:
    """Where a run is that has called a tool, and which."""
    hf = Holdfast(place.url)

    @hf.tool
    def price(of: str) -> str:
        """A price."""
        return "10"

    hf.script("clerk", Script(call("price", of="tea"), say("It costs 10.")))
    clerk = hf.agent("clerk", model="scripted:clerk", tools=[price])
    async with hf:
        result = await clerk.run("Use sk-abcdefghijkl, what is tea?", session="shop")
    return place.url, result.run_id


@pytest.mark.long
def test_a_run_is_forked_and_the_two_are_compared(played: tuple[str, str]) -> None:
    url, id = played
    fork = holdfast("runs", "fork", id, "--result", "price=12", "--url", url, "--json").json
    assert fork["forked_from"] == id
    shown = holdfast("runs", "show", fork["id"], "--url", url, "--json").json
    assert (shown["state"], shown["forked_from"], shown["forked_at"]) == ("pending", id, 2)
    assert f"{id}, at turn 2" in holdfast("runs", "show", fork["id"], "--url", url).out
    assert "continues from run" in holdfast("runs", "fork", id, "--at", "2", "--tools", "ask", "--url", url).out
    compared = holdfast("runs", "compare", id, fork["id"], "--url", url, "--json").json
    assert (compared["b"]["forked_at"], compared["tools"][0]["mark"]) == (2, "~")
    told = holdfast("runs", "compare", id, id, "--url", url).out
    assert "the answers are the same" in told
    assert '= 1: price({"of":"tea"})' in told
    assert holdfast("runs", "fork", id, "--result", "price", "--url", url).code == 2
    assert holdfast("runs", "fork", id, "--at", "9", "--url", url).code == 2


@pytest.mark.long
def test_a_session_is_forked_by_its_key(played: tuple[str, str]) -> None:
    url, _ = played
    made = holdfast("sessions", "fork", "shop", "--at", "1", "--key", "other", "--url", url, "--json").json
    assert made["key"] == "other"
    assert len(holdfast("sessions", "show", "other", "--url", url, "--json").json["messages"]) == 1
    assert holdfast("sessions", "fork", "shop", "--url", url).out.startswith("session ")


@pytest.mark.long
def test_a_run_is_exported_opened_and_replayed_elsewhere(played: tuple[str, str], tmp_path: Path) -> None:
    url, id = played
    assert holdfast("runs", "replay", id, "--url", url).lines == ["the same: 2 turns, 2 of them asked byte for byte"]
    file = tmp_path / "capsules" / "run.db"
    assert holdfast("runs", "export", id, "-o", str(file), "--url", url).code == 2
    file.parent.mkdir()
    told = holdfast("runs", "export", id, "-o", str(file), "--redact", "te[a]", "--url", url, "--json").json
    assert (told["run"], told["runs"], told["redactions"] > 4) == (id, 1, True)
    assert list(file.parent.iterdir()) == [file]
    where = ("--url", f"sqlite:///{file}")
    assert holdfast("runs", "show", id, *where, "--json").json["calls"][0]["input"] == {"of": "[redacted]"}
    assert "[redacted]" in holdfast("sessions", "show", "shop", *where).out
    assert "It costs 10." in holdfast("runs", "tail", id, *where).out
    assert holdfast("runs", "replay", id, *where).lines == ["the same: 2 turns"]
    assert holdfast("runs", "replay", id, *where, "--json").json["same"] is True
