"""Odd values in every parameter and field that openapi.json names: an answer or a problem, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pytest

from tests.http.client import Client
from tests.http.test_api import guide
from tests.http.test_bad_input import is_problem, many
from tests.support.apps import MakeApp

TEXTS = (
    *("", "\u202e", "x" * 5_000, "-1", "0", "1e9", "null", "[]", "{}", '{"a": 1}', '{"a": "\\u0000"}', "true", "NaN"),
    *("2026-13-45", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999Z", "1h", "-1h"),
    *("100000d", "999999999999999999999", "%", "_", "\\", "';--", "\U0001f600", "..", "/", "1e400", "now", "a\x00b"),
)
VALUES: tuple[Any, ...] = (*TEXTS, 1, -1, None, [], {}, {"a": 1}, [None], True, 2**70, 1.5, -(2**63), "guide")
STREAMS = ("/stream", "/events")


def wishes(described: dict[str, Any], ids: list[str], chance: Random) -> Iterator[tuple[str, str, dict[str, str], Any]]:
    """A request for each operation: its method, path, query and body."""
    schemas = described["components"]["schemas"]
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            place = path
            for part in ("{id}", "{name}", "{queue}"):
                place = place.replace(part, quote(chance.choice([*ids, *TEXTS]) or "x", safe=""))
            named = [each["name"] for each in operation.get("parameters", []) if each["in"] == "query"]
            query = {name: chance.choice(TEXTS) for name in named if name != "wait" and chance.random() < 0.4}
            if method != "delete" and not path.endswith(STREAMS):
                yield method.upper(), place, query, _body(operation, schemas, chance)


def _body(operation: dict[str, Any], schemas: dict[str, Any], chance: Random) -> Any:
    if "requestBody" not in operation:
        return None
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    names = [each["$ref"] for each in (schema, *schema.get("anyOf", ())) if "$ref" in each]
    fields = schemas[names[0].rpartition("/")[2]] if names else {"properties": {"plan_id": {}, "tasks": {}}}
    needed = fields.get("required", ())
    return {name: chance.choice(VALUES) for name in fields["properties"] if name in needed or chance.random() < 0.5}


def questions(described: dict[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """Each parameter of each list and record, alone, with each odd text."""
    for path, methods in described["paths"].items():
        named = [each["name"] for each in methods.get("get", {}).get("parameters", []) if each["in"] == "query"]
        for name in named if not path.endswith(STREAMS) and "{" not in path else ():
            yield from ((path, {name: text}) for text in TEXTS)


async def ask(client: Client, method: str, path: str, query: dict[str, str], body: Any = None) -> None:
    answer = await client.call(method, path, body, query=query)
    fits = answer.status < 300 or is_problem(answer, 403, 404, 409, 422)
    assert fits, (method, path[:300], query, body, answer.status, answer.body[:1_000])


@pytest.fixture
async def client(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Client:
    monkeypatch.chdir(tmp_path)  # where the gateway makes its workspaces
    hf = make_app(embedded=False)
    await guide(hf).enqueue("Hello", session="chat")
    return many(hf)


@pytest.mark.parametrize(
    "seeds", [range(1), pytest.param(range(1, 7), marks=pytest.mark.long)], ids=["one round", "rounds"]
)
async def test_odd_values_are_no_faults(client: Client, seeds: range) -> None:
    described = (await client.get("/openapi.json")).json
    (run,) = (await client.get("/api/v1/runs")).json["items"]
    ids = [run["id"], run["session"], run["agent"], "chat", "guide", "default"]
    for seed in seeds:
        for method, path, query, body in wishes(described, ids, Random(seed)):
            await ask(client, method, path, query, body)


@pytest.mark.long
async def test_no_odd_value_of_a_parameter_is_a_fault(client: Client) -> None:
    for path, query in questions((await client.get("/openapi.json")).json):
        await ask(client, "GET", path, query)
