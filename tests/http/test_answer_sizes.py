"""However large what is stored is, an answer has a bound: pages end early, and long values say where all of them is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.http.api import runs
from holdfast.http.api.answers import ANSWER, encoded, fitted
from holdfast.http.api.routes import Endpoint
from holdfast.models.script import Script, call, say
from tests.http.client import Answer, Client
from tests.http.full_store import FullStore
from tests.http.test_api import API, guide
from tests.http.test_bad_input import READS, many
from tests.http.test_security import as_principal
from tests.support.apps import MakeApp, working

MEGABYTE = "x" * 1_000_000


@pytest.fixture
def ann(hf: Holdfast) -> Client:
    return as_principal(hf, Principal("ann", "admin"))


async def pages(client: Client, path: str, **query: Any) -> AsyncIterator[Answer]:
    after = None
    while True:
        answer = await client.get(path, **query, after=after)
        assert answer.status == 200, answer.body
        yield answer
        after = answer.json["next"]
        if after is None:
            return


@pytest.mark.long
async def test_a_page_ends_where_it_is_full(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    made = [(await hf.enqueue("paint", {"text": MEGABYTE if n != 4 else ""})).id for n in range(6)]
    found, sizes = [], []
    async for page in pages(as_principal(hf, Principal("ann", "admin")), f"{API}/jobs", limit=6, count="1"):
        assert len(page.body) <= ANSWER + 1_000
        assert page.json["total"] == 6
        assert page.json["looked"] == len(page.json["items"])
        found += [each["id"] for each in page.json["items"]]
        sizes.append(len(page.json["items"]))
        assert all(len(each["payload"]["text"]) in (0, len(MEGABYTE)) for each in page.json["items"])
    assert found == made[::-1]
    assert sizes == [5, 1]


async def test_a_page_that_becomes_full_later_keeps_its_total(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    made = [(await hf.enqueue("paint", {"text": MEGABYTE if n < 6 else ""})).id for n in range(18)]
    ann = as_principal(hf, Principal("ann", "admin"))
    found = [page.json async for page in pages(ann, f"{API}/jobs", limit=18, count="1")]
    assert [each["id"] for page in found for each in page["items"]] == made[::-1]
    assert [(len(page["items"]), page["total"]) for page in found] == [(16, 18), (2, 18)]


async def test_a_page_of_small_items_is_as_long_as_asked(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    made = [(await hf.enqueue("paint", {"n": n})).id for n in range(75)]
    found = [page.json async for page in pages(as_principal(hf, Principal("ann", "admin")), f"{API}/jobs", limit=60)]
    assert [(len(page["items"]), page["looked"]) for page in found] == [(60, 60), (15, 15)]
    assert [each["id"] for page in found for each in page["items"]] == made[::-1]


@pytest.mark.long
async def test_what_is_too_long_is_cut_and_says_where_all_of_it_is(make_app: MakeApp) -> None:
    hf = make_app(embedded=False, payload_cap=16_000_000)
    texts = {"first": "é" * 3_000_000, "more": ["y" * 100] * 20_000, "last": "z"}
    job = await hf.enqueue("paint", texts)
    ann = as_principal(hf, Principal("ann", "admin"))
    for path, inside in ((f"{API}/jobs/{job.id}", False), (f"{API}/jobs", True)):
        short, whole = await ann.get(path), await ann.get(path, whole="true")
        assert len(short.body) <= ANSWER
        assert short.headers["holdfast-cut"] == "true"
        told = short.json["items"][0] if inside else short.json
        assert "add whole=true to the request" in told["payload"]["first"]
        assert told["id"] == job.id
        assert "holdfast-cut" not in whole.headers
        assert (whole.json["items"][0] if inside else whole.json)["payload"] == texts
    seen = (await as_principal(hf, Principal("vic", "viewer")).get(f"{API}/jobs/{job.id}")).body
    assert len(seen) <= ANSWER


@pytest.mark.long
async def test_no_answer_is_longer_than_the_bound(make_app: MakeApp, tmp_path: Path) -> None:
    """Every route that reads, of everything that there is, where every text has a million characters."""
    hf = make_app(embedded=False)
    await FullStore(hf, tmp_path, [MEGABYTE] * 5, rows=5).fill()
    client = many(hf)
    ids = {each.noun: await named(client, each) for each in READS if each.path == f"/{each.noun}"}
    tried = 0
    for endpoint in (each for each in READS if not each.path.endswith("/export")):  # a file, with a bound of its own
        for id in ids.get(endpoint.noun, [])[:1] if "{" in endpoint.path else [""]:
            answer = await read(client, endpoint, id, ids["runs"])
            early = {202} if endpoint.path.endswith("/result") else set()  # a run in a batch has not ended
            assert answer.status in {200, 404, 422} | early, (endpoint.name, answer.body[:1000])
            assert len(answer.body) <= ANSWER + 1_000, (endpoint.name, id, len(answer.body))
            tried += answer.status == 200
    assert tried > 60


async def named(client: Client, endpoint: Endpoint) -> list[str]:
    """The ids or names of what a route lists."""
    answer = await client.get(endpoint.place)
    told = answer.json if answer.status == 200 else []
    items = told["items"] if isinstance(told, dict) and "items" in told else told
    return [str(each.get("id") or each.get("name")) for each in items if isinstance(each, dict)]


async def read(client: Client, endpoint: Endpoint, id: str, ids: list[str]) -> Answer:
    path = endpoint.place
    for name in ("{id}", "{name}", "{queue}"):
        path = path.replace(name, id)
    asked = {"/runs/compare": {"a": ids[0], "b": ids[1]}, "/sessions/values": {"key": "k"}}.get(endpoint.path, {})
    limit = {"limit": 1_000} if "page" in endpoint.function.__annotations__ else {}
    return await client.get(path, **asked, **limit)


@pytest.mark.long
@pytest.mark.both
async def test_a_tree_and_a_waterfall_read_no_long_values(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    below = guide(hf)
    hf.script("lead", Script(call("guide", task=MEGABYTE), say("It says: a cat.")))
    lead = hf.agent("lead", model="scripted:lead", agents=[below])
    async with working(hf):
        run = await lead.enqueue(MEGABYTE)
        await run.result(timeout="100s")
    ann = as_principal(hf, Principal("ann", "admin"))
    tree = await ann.get(f"{API}/runs/{run.id}/tree")
    assert [each["agent_name"] for each in tree.json] == ["lead", "guide"]
    assert "whole=true" in tree.json[0]["input"]["cut"]
    assert tree.json[0]["output"]["text"] == "It says: a cat."
    assert len(tree.body) < 20_000
    spans = await ann.get(f"{API}/runs/{run.id}/waterfall")
    assert {each["kind"] for each in spans.json} >= {"run", "turn", "call"}
    assert len(spans.body) < 20_000


async def test_a_run_that_is_too_large_is_not_exported_over_http(
    hf: Holdfast, ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = guide(hf)
    async with working(hf):
        run = await agent.enqueue("Hello " * 1_000)
        await run.result()
    assert (await ann.get(f"{API}/runs/{run.id}/export")).status == 200
    monkeypatch.setattr(runs, "LARGEST_EXPORT", 5_000)
    refused = await ann.get(f"{API}/runs/{run.id}/export")
    assert (refused.status, refused.json["error"]) == (413, "TooLarge")
    assert "holdfast runs export" in refused.json["remedy"]


TOLD: dict[str, Callable[[], Any]] = {
    "escapes": lambda: {"id": "a", "text": "\x00" * ANSWER},
    "numbers": lambda: {"id": "a", "numbers": list(range(2_000_000))},
    "names": lambda: {"id": "a", "names": {str(n): n for n in range(500_000)}},
    "deep": lambda: {"id": "a", "deep": {"a": [{"b": {str(n): "x" * 100 for n in range(50_000)}}]}},
    "halves": lambda: {"id": "a", "odd": "\ud800" * ANSWER},
    "long records": lambda: [{"id": str(n), "text": "x" * 1_000_000} for n in range(20)],
    "many records": lambda: [{"id": str(n), "text": "x" * 100} for n in range(100_000)],
}


@pytest.mark.long
@pytest.mark.parametrize("kind", TOLD)
def test_whatever_is_told_fits(kind: str) -> None:
    told = TOLD[kind]()
    short = fitted(told, lambda record: "see elsewhere")
    assert len(encoded(short)) <= ANSWER
    assert type(short) is type(told)
    first, kept = (told[0], short[0]) if isinstance(told, list) else (told, short)
    assert list(kept) == list(first)
    assert kept["id"] == first["id"]
