"""Input that is as long as may be: it is judged by its length before anybody reads what it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.errors import BadPayload
from holdfast.http import web
from holdfast.http.pages.forms import Form
from holdfast.kernel import codec
from tests.http.client import Client
from tests.http.test_api import API
from tests.http.test_hooks import SECRET, Sender
from tests.support.commands import python
from tests.support.held_loop import loop_watched

MANY = 400_000
# Made when they are asked for: each process collects this module.
WIDE: dict[str, Callable[[], str]] = {
    "keys": lambda: json.dumps({"metadata": {f"k{number}": 1 for number in range(MANY)}}),
    "fields": lambda: json.dumps({f"k{number}": 1 for number in range(MANY)}),
    "items": lambda: '{"metadata": {"a": [' + "1," * MANY + "1]}}",
    "lists": lambda: '{"metadata": {"a": [' + "[]," * MANY + "1]}}",
    "texts": lambda: '{"metadata": {"a": [' + '"\\ud800",' * MANY + "1]}}",
    "brackets": lambda: "[" * MANY,
}
FORM = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}


def ann(hf: Holdfast) -> Client:
    return Client(web(hf, who=lambda _: Principal("ann", "admin")))


@pytest.mark.parametrize("kind", WIDE)
async def test_a_body_of_many_values_is_refused_before_it_is_parsed(
    hf: Holdfast, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ann(hf)
    await client.get(f"{API}/sessions")
    read: list[int] = []
    loads = json.loads

    def counted(text: Any, **options: Any) -> Any:
        read.append(len(text))
        return loads(text, **options)

    monkeypatch.setattr(json, "loads", counted)
    told = await client.call("POST", f"{API}/sessions", raw=WIDE[kind]().encode())
    monkeypatch.undo()
    assert (told.status, told.json["error"]) == (413, "TooLarge"), told.body[:200]
    assert "50,000" in told.json["remedy"]
    assert max(read, default=0) < 100_000


async def test_fields_that_are_not_known_are_no_error_each(hf: Holdfast) -> None:
    told = await ann(hf).post(f"{API}/sessions", {f"k{number}": 1 for number in range(20_000)})
    assert (told.status, told.json["detail"]) == (422, "body: Value error, a request has at most 100 fields.")


async def test_a_prompt_has_so_many_parts(hf: Holdfast) -> None:
    told = await ann(hf).post(f"{API}/runs", {"agent": "clerk", "prompt": [1] * 20_000})
    assert (told.status, "at most 2000 items" in told.json["detail"]) == (422, True), told.body


async def test_a_long_text_is_not_many_values(hf: Holdfast) -> None:
    await hf.agents.create("clerk", model="scripted:")
    said = json.dumps({"a": [1, 2, {"b": "c"}]}) * 40_000
    told = await ann(hf).post(f"{API}/runs", {"agent": "clerk", "prompt": said})
    assert told.status == 201, told.body[:200]


def test_json_in_a_form_has_the_same_bound() -> None:
    with pytest.raises(BadPayload, match="input has more than 50,000 values"):
        Form([("input", "[" + "1," * MANY + "1]")]).json("input")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"])
async def test_a_body_is_utf_8_so_that_it_can_be_judged(hf: Holdfast, encoding: str) -> None:
    said = '{"metadata": {"a": "' + "\u222c" * 10 + '"}}'  # whose bytes have a quote and a comma
    told = await ann(hf).call("POST", f"{API}/sessions", raw=said.encode(encoding))
    assert (told.status, "UTF-8" in told.json["detail"]) == (422, True), told.body
    with pytest.raises(BadPayload, match="not JSON"):
        codec.decode_foreign(said.encode(encoding), what="it")


async def test_a_mark_before_utf_8_is_read(hf: Holdfast) -> None:
    told = await ann(hf).call("POST", f"{API}/sessions", raw=b'\xef\xbb\xbf{"metadata": {}}')
    assert told.status == 201, told.body
    assert codec.decode_foreign(b"\xef\xbb\xbf[1]", what="it") == [1]


async def test_json_that_is_named_like_a_form_has_the_same_bound(hf: Holdfast) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded+json"}
    told = await ann(hf).call("POST", f"{API}/sessions", raw=WIDE["items"]().encode(), headers=headers)
    assert (told.status, told.json["error"]) == (413, "TooLarge"), told.body[:200]


@pytest.mark.parametrize("unit", ["sk-a", "\n", "\u202e", "a. ", '"'])
async def test_a_refusal_repeats_only_the_beginning_of_what_was_sent(hf: Holdfast, unit: str) -> None:
    long = "token=abcdef1 " + unit * (1_000_000 // len(unit))
    for path, body in (
        ("agents", {"name": "clerk", "model": long}),
        ("jobs/cancel", {"state": long}),
        ("sessions", {"parent": long}),
        ("budgets", {"cost": long}),
    ):
        method = "PUT" if path == "budgets" else "POST"
        with loop_watched() as held:
            told = await ann(hf).call(method, f"{API}/{path}", body)
        assert told.status in (404, 422), told.body[:200]
        assert len(told.json["detail"]) + len(told.json["remedy"]) < 20_000
        assert "abcdef1" not in told.body.decode()
        assert not [each for each in held.found if "problems.py" in each]


async def test_a_secret_at_the_end_of_what_a_refusal_repeats_is_not_cut_in_half(hf: Holdfast) -> None:
    for at in range(7_900, 8_020, 7):
        told = await ann(hf).post(
            f"{API}/sessions", {"parent": "a " * (at // 2) + "Bearer abcdefgh1jkl " + "a " * 20_000}
        )
        assert "abcdefgh1" not in told.json["detail"]


@pytest.mark.parametrize("name", ["a" * 300_000, "clerk" * 100_000])
async def test_a_long_name_is_not_compared_with_those_there_are(hf: Holdfast, name: str) -> None:
    await hf.agents.create("clerk", model="scripted:")
    told = await ann(hf).post(f"{API}/runs", {"agent": name, "prompt": "x"})
    assert (told.status, "Did you mean" in told.json["detail"]) == (404, False)
    told = await ann(hf).post(f"{API}/runs", {"agent": "clark", "prompt": "x"})
    assert "Did you mean 'clerk'?" in told.json["detail"]


async def test_who_is_not_known_yet_sends_little(hf: Holdfast) -> None:
    client = Client(web(hf))
    for headers in (FORM, {"sec-fetch-site": "same-origin"}):
        told = await client.call("POST", "/login", raw=b"[" + b"1," * 100_000, headers=headers)
        assert (told.status, told.json["error"]) == (413, "TooLarge")


async def test_a_delivery_is_utf_8(hf: Holdfast) -> None:
    @hf.job
    async def book(amount: int) -> None: ...

    hf.webhook("payments", book, secret=SECRET)
    told = await Sender(hf).deliver("payments", '{"amount": 1}'.encode("utf-16"))
    assert (told.status, "not JSON" in told.json["detail"]) == (422, True), told.body


async def test_a_delivery_has_the_same_bound(hf: Holdfast) -> None:
    @hf.job
    async def book(amount: int) -> None: ...

    hf.webhook("payments", book, secret=SECRET)
    told = await Sender(hf).deliver("payments", b"[" + b"1," * codec.MOST_VALUES + b"1]")
    assert (told.status, "more than 50,000 values" in told.json["detail"]) == (422, True), told.body


_PROMPTS = """
import asyncio, gc, json, sys
from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.errors import BadPayload
from holdfast.http import web
from holdfast.http.pages.forms import Form
from holdfast.http.server import server_for
from tests.http.client import Client

def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

async def main() -> None:
    async with Holdfast("sqlite:///" + sys.argv[1], embedded=False) as hf:
        client = Client(web(hf, who=lambda _: Principal("ann", "operator")))
        server_for(client.app)
        await hf.agents.create("clerk", model="scripted:")
        async def ask(length: int) -> None:
            told = await client.post("/api/v1/runs", {"agent": "clerk", "prompt": "a" * length})
            assert told.status == 201, told.body
        await ask(1)
        before = resident()
        for _ in range(3):
            await ask(8_000_000)
        gc.collect()
        print((resident() - before) // 1_000_000)

asyncio.run(main())
"""


@pytest.mark.skipif("sys.platform != 'linux'", reason="glibc keeps what other systems return")
@pytest.mark.slow
def test_the_memory_of_long_prompts_is_given_back(tmp_path: Any) -> None:
    said = python("-c", _PROMPTS, str(tmp_path / "x.db"))
    assert said.code == 0, said.err
    assert int(said.out) < 60, f"{said.out} MB more than before"


@pytest.mark.parametrize(
    "fields",
    [
        {"fallbacks": [f"scripted:{number}" for number in range(20_000)]},
        {"server_tools": [{"type": "web_search", "name": f"n{number}"} for number in range(9_000)]},
        {"tools": ["pay"] * 20_000},
    ],
    ids=["fallbacks", "server tools", "tools"],
)
async def test_an_agent_with_very_many_names_is_judged_in_time(hf: Holdfast, fields: dict[str, Any]) -> None:
    @hf.tool
    def pay(amount: int) -> int:
        return amount

    client = ann(hf)
    await client.post(f"{API}/agents", {"name": "first", "model": "scripted:"})
    with loop_watched() as held:
        told = await client.post(f"{API}/agents", {"name": "clerk", "model": "scripted:", "fields": fields})
    assert told.status == (201 if "server_tools" in fields else 422), told.body[:200]
    assert not [each for each in held.found if "comp>" in each]


async def test_the_name_of_a_model_has_a_length(hf: Holdfast) -> None:
    """What is said of a model that nobody knows is remembered with its name."""
    await hf.agents.create("clerk", model="scripted:")
    for model in ("claude-" + "a" * 600, "scripted:" + "a" * 600):
        told = await ann(hf).post(f"{API}/runs", {"agent": "clerk", "prompt": "x", "model": model})
        assert (told.status, "1 to 512 characters" in told.json["detail"]) == (422, True), told.body
        told = await ann(hf).post(f"{API}/agents", {"name": "other", "model": model})
        assert told.status == 422


@pytest.mark.parametrize("field", ["name", "description", "metadata", "self", "id", "model"])
async def test_what_stands_beside_the_fields_of_an_agent_is_none_of_them(hf: Holdfast, field: str) -> None:
    told = await ann(hf).post(f"{API}/agents", {"name": "clerk", "model": "scripted:", "fields": {field: "x"}})
    assert told.status == 422, told.body
    made = await ann(hf).post(f"{API}/agents", {"name": "clerk", "model": "scripted:"})
    if field in ("description", "self", "id"):
        told = await ann(hf).call("PATCH", f"{API}/agents/{made.json['id']}", {"fields": {field: "x"}})
        assert told.status == 422, told.body
