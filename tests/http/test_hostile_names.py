"""Every page about one thing, linked or not, in a store whose names are payloads; and payloads in machines of YAML."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.errors import HoldfastError
from holdfast.http import web
from holdfast.http.pages.serving import ROUTES
from tests.http.browsing import HTML
from tests.http.client import Client
from tests.http.full_store import FullStore
from tests.http.renaming import rename
from tests.http.test_hostile_attachments import odd_in
from tests.http.test_payloads import PAYLOADS, texts
from tests.shape.tree import listed
from tests.support.apps import settings_with

ELSEWHERE = {"/assets/{version}/{name}", "/failures/{id}"}  # about no row of a list


def reader(hf: Holdfast, **headers: str) -> Client:
    """Another principal for each request, so that none asks too often."""
    names = iter(range(1_000_000))
    return Client(web(hf, who=lambda _: Principal(f"ann {next(names)}", "admin")), headers=headers)


def problem_of(path: str, status: int, body: bytes) -> list[str]:
    odd = odd_in(body)
    return [f"{path} is answered with {status} and has {odd}"] if odd or status != 200 else []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("payloads", [PAYLOADS[::25], pytest.param(PAYLOADS, marks=pytest.mark.long)], ids=["8", "200"])
async def test_each_page_about_one_thing_is_seen_with_payloads_for_names(tmp_path: Path, payloads: list[str]) -> None:
    file, told = tmp_path / "store.db", texts(payloads)
    async with Holdfast(f"sqlite:///{file}", settings=settings_with(drain_grace="5s"), embedded=False) as hf:
        await FullStore(hf, tmp_path, told, rows=len(told)).fill()
    rename(file, payloads)
    async with Holdfast(f"sqlite:///{file}", embedded=False) as hf:
        for number in range(len(told)):
            hf.machine(tmp_path / f"article_{number}.yml")
        api, browser = reader(hf), reader(hf, **HTML)
        problems, seen = [], set[str]()
        for route in (each for each in ROUTES if each.method == "GET" and "{" in each.path):
            noun = route.path.split("/")[1]
            if route.path in ELSEWHERE:
                continue
            ended = {"all": "true"} if noun in ("pools", "workers") else {}
            listing = await api.get(f"/api/v1/{noun}", limit=100, **ended)
            found = listing.json if isinstance(listing.json, list) else listing.json["items"]
            for each in found[:40]:
                id = next(str(each[name]) for name in ("id", "name", "plan_id", "action_id") if name in each)
                path = re.sub(r"{\w+(:\w+)?}", lambda _, id=id: id, route.path)  # type: ignore[misc]
                answer = await browser.get(path)
                problems += problem_of(path, answer.status, answer.body)
                seen.add(route.path)
        assert not problems, listed(problems)
        paths = {each.path for each in ROUTES if each.method == "GET" and "{" in each.path}
        assert paths - seen <= ELSEWHERE, paths - seen


async def test_no_name_in_a_machine_is_more_than_text(hf: Holdfast, tmp_path: Path) -> None:
    """A name of a machine or a state is a plain word; what else stands in the file is shown as text."""
    taken, refused, browser = [], 0, reader(hf, **HTML)
    texts_of_a_line = [each for each in PAYLOADS if each.isprintable()]
    for number, text in enumerate(texts_of_a_line):
        for place in ("machine", "state", "words"):
            file = tmp_path / f"{place}_{number}.yml"
            file.write_text(yaml.safe_dump(machine(place, text, f"m_{number}"), allow_unicode=True))
            try:
                hf.machine(file)
            except HoldfastError:
                refused += place != "words"
                continue
            taken.append(f"m_{number}")
    assert refused == 2 * len(texts_of_a_line)
    assert len(taken) > 100
    pages = ["/machines", *(f"/machines/{each}" for each in taken)]
    found = [problem_of(path, answer.status, answer.body) for path in pages for answer in [await browser.get(path)]]
    assert not any(found), listed([each for some in found for each in some])


def machine(place: str, text: str, name: str) -> object:
    state = text if place == "state" else "begin"
    words = text if place == "words" else "x"
    states = {
        state: {"type": "initial", "transitions": [{"to": "waits"}]},
        "waits": {
            "wait_for": words,
            "transitions": [{"condition": f"context.a == {words!r}", "to": "done"}, {"to": "waits"}],
        },
        "done": {"type": "final", "output": {words: words}},
    }
    data = {"name": text if place == "machine" else name, "context": {"a": words}, "states": states}
    return {"spec": "flatmachine", "spec_version": "0.8.3", "data": data}
