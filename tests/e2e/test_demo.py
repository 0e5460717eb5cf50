"""`holdfast demo`: what a newcomer sees first."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener, urlopen

import pytest

from holdfast.cli.demo import Demo, close_books
from holdfast.cli.demo_agents import hf, writer
from holdfast.testing import lab
from tests.support.apps import eventually
from tests.support.commands import Said, holdfast

pytestmark = pytest.mark.chaos


def figures(said: Said) -> dict[str, str]:
    """What the demo says, by its first word."""
    lines = [line.split(maxsplit=1) for line in said.lines if line.startswith("   ") and " " in line.strip()]
    return {word: text for word, text in lines if word.isalpha()}


def test_the_demo_kills_two_workers_and_buys_nothing_again(tmp_path: Path) -> None:
    said = holdfast("demo", cwd=tmp_path)
    assert (said.code, said.err) == (0, "")
    assert said.out.count("   kill -9    worker ") == 2
    assert said.out.count("   resumed    ") == 2
    told = figures(said)
    assert told["completed"].startswith("6 runs, ")
    assert told["recorded"] == "30 turns, each stored once"
    assert told["rebought"] == "0 recorded answers were bought again"
    assert told["tools"].startswith("18 of 18 calls completed once")
    assert "its worker was killed after" in said.out
    assert "\r" not in said.out, "no progress bar where nobody watches"
    assert list(tmp_path.iterdir()) == [], "it cleans up"


@pytest.mark.long
def test_the_demo_runs_on_postgres_and_speaks_json(postgres_url: str, tmp_path: Path) -> None:
    told = holdfast("demo", "--url", postgres_url, "--json", cwd=tmp_path).json
    assert told["ok"]
    assert (told["runs"], told["completed"], told["recorded"], told["rebought"]) == (6, 6, 30, 0)
    assert told["recorded"] <= told["bought"] <= told["recorded"] + told["unknown"]
    first, second = told["kills"]
    assert first["during"].startswith("turn ")
    assert second["during"].startswith("tool ")
    assert all(kill["by"] != kill["pid"] for kill in told["kills"])
    assert any("its worker was killed" in line["text"] for line in told["timeline"])


async def test_a_call_that_nothing_explains_is_noticed(tmp_path: Path) -> None:
    witness, journal = tmp_path / "witness.jsonl", tmp_path / "tools.jsonl"
    async with lab(hf) as opened:
        hf.settings = replace(hf.settings, script_witness=str(witness))
        run = await writer.enqueue("Write a note about Delft.", variables={"journal": str(journal)})
        await opened.drain()
        books = await close_books(hf, {"Delft": run}, witness, journal)
        assert (books.recorded, books.bought, books.calls, books.problems) == (5, 5, 3, ())
        with witness.open("a") as file:
            file.write(f'{{"event":"sent","call":"{run.id}/2/9.9"}}\n')
        books = await close_books(hf, {"Delft": run, "Ghent": run}, witness, journal)
    assert books.rebought == 2
    assert any(problem.startswith("the run about Ghent is completed") for problem in books.problems)
    assert "2 calls to the model without an explanation" in books.problems


def test_what_comes_with_the_end_of_the_last_run_is_seen(tmp_path: Path) -> None:
    """Every run has ended, since there is none; what is looked for comes between the look and that."""
    looks = iter([None, "found"])

    async def look() -> str | None:
        return next(looks)

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as worker:
        demo = Demo(tmp_path, {worker.pid: worker}, quiet=True)
        assert asyncio.run(demo._until(look)) == "found"
        worker.communicate(b"\n")


@pytest.mark.long
def test_a_button_kills_a_worker_of_the_demo_and_the_work_goes_on(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "demo", "--web"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert demo.stdout is not None
    try:
        link = next(line.strip() for line in demo.stdout if line.startswith("http://127.0.0.1:"))
        place = Place(link.partition("/login")[0], logged_in(link))
        assert listed_by_a_stranger(place) == 401
        first = next(each for each in listed(place) if each["status"] == "active")
        assert posted(place, f"/workers/{first['id']}/kill", origin="http://evil.example") == 403
        assert posted(place, f"/workers/{first['id']}/kill", origin=place.url) == 200, "the list, after a redirect"
        assert waited_for(place, lambda all: [each for each in all if each["id"] == first["id"] and is_lost(each)])
        assert waited_for(place, lambda all: len([each for each in all if each["status"] == "active"]) >= 2)
        assert posted(place, f"/workers/{first['id']}/kill", origin=place.url) == 404, "it is dead already"
    finally:
        demo.send_signal(signal.SIGINT)
        assert demo.wait(60) == 0
        demo.stdout.close()
    assert list(tmp_path.iterdir()) == []


def is_lost(worker: dict[str, Any]) -> bool:
    return bool(worker["status"] == "lost")


class Place(NamedTuple):
    """Where the demo is, and the cookie of who logged in there."""

    url: str
    cookie: str


def logged_in(link: str) -> str:
    """The cookie that the link is traded for, once."""

    class Staying(HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    with pytest.raises(HTTPError) as sent, build_opener(Staying).open(link, timeout=60):
        pass
    with sent.value as answer:
        return str(answer.headers["set-cookie"]).partition(";")[0]


def listed_by_a_stranger(place: Place) -> int:
    with pytest.raises(HTTPError) as refused, urlopen(f"{place.url}/api/v1/workers", timeout=60):
        pass
    with refused.value:
        return refused.value.code


def listed(place: Place) -> list[dict[str, Any]]:
    with urlopen(
        Request(f"{place.url}/api/v1/workers?all=true", headers={"cookie": place.cookie}), timeout=60
    ) as answer:
        found: list[dict[str, Any]] = json.load(answer)["items"]
        return found


def posted(place: Place, path: str, *, origin: str) -> int:
    headers = {"origin": origin, "accept": "text/html", "cookie": place.cookie}
    try:
        with urlopen(Request(f"{place.url}{path}", b"", headers), timeout=60) as answer:
            return int(answer.status)
    except HTTPError as refused:
        with refused:
            return refused.code


def waited_for(place: Place, wanted: Callable[[list[dict[str, Any]]], Any]) -> Any:
    """Once the list of workers is as it should be. Every heartbeat in it is progress."""
    seen: list[dict[str, Any]] = []

    async def look() -> Any:
        seen[:] = await asyncio.to_thread(listed, place)
        return wanted(seen)

    return asyncio.run(eventually(look, lambda: [(each["id"], each["heartbeat_at"]) for each in seen]))
