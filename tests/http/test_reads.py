"""Reads of the web: over connections of their own, which change nothing and end what takes too long."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.http.api.seen import RequestScope
from tests.http.client import Client
from tests.http.planted import ask, endless, plant
from tests.http.test_api import API, guide
from tests.http.test_security import as_principal
from tests.support.apps import MakeApp, eventually

pytestmark = pytest.mark.both


def planted(hf: Holdfast, monkeypatch: pytest.MonkeyPatch, route: Any) -> Client:
    plant(monkeypatch, "/planted", route)
    return as_principal(hf, Principal("ann", "admin"))


async def pause_a_queue(seen: RequestScope) -> dict[str, Any]:
    """It writes, though it is asked by GET."""
    await seen.hf.queues.pause("default", reason="planted")
    return {}


async def enqueue_a_job(seen: RequestScope) -> dict[str, Any]:
    """It writes, though it is asked by GET."""
    await seen.hf.enqueue("planted")
    return {}


@pytest.mark.parametrize("route", [pause_a_queue, enqueue_a_job])
async def test_what_is_asked_by_get_cannot_write(hf: Holdfast, monkeypatch: pytest.MonkeyPatch, route: Any) -> None:
    client = planted(hf, monkeypatch, route)
    with pytest.raises(RuntimeError, match="a read for the web tried to write"):  # a server answers it with 500
        await client.get(f"{API}/planted")
    assert [queue for queue in await hf.queues.list() if queue.paused_at is not None] == []
    assert await hf.jobs.list() == []
    assert (await client.post(f"{API}/sessions", {})).status == 201


async def test_a_query_that_takes_too_long_is_ended(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = make_app(web_patience="50ms", embedded=False)

    async def look_for_ever(seen: RequestScope) -> dict[str, Any]:
        """It asks for more than there is time for."""
        await ask(seen.hf, endless)
        return {}

    client = planted(hf, monkeypatch, look_for_ever)
    for _ in range(6):  # more than there are connections
        answer = await client.get(f"{API}/planted")
        assert (answer.status, answer.json["error"]) == (503, "QueryTooLong"), answer.body
        assert "Ask for less" in answer.json["remedy"]
        assert answer.headers["retry-after"]

    async def others_are_answered() -> bool:  # a busy machine may need longer than that for any query
        return (await client.get(f"{API}/runs")).status == 200

    await eventually(others_are_answered)


async def test_a_store_in_memory_is_read_within_the_same_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Holdfast("sqlite://:memory:", embedded=False) as hf:
        client = planted(hf, monkeypatch, pause_a_queue)
        with pytest.raises(RuntimeError, match="a read for the web tried to write"):
            await client.get(f"{API}/planted")
        assert (await client.post(f"{API}/sessions", {"key": "chat"})).status == 201
        assert (await client.get(f"{API}/sessions/chat")).json["key"] == "chat"


async def test_a_worker_that_a_request_starts_is_bound_by_nothing(hf: Holdfast) -> None:
    """The first request of all is a read, and one of a tenant: what it opens serves everybody."""
    agent = guide(hf)
    ann = as_principal(hf, Principal("ann", "operator", "acme"))
    assert (await ann.get(f"{API}/runs")).status == 200
    started = (await ann.post(f"{API}/runs", {"agent": "guide", "prompt": "x"})).json
    await hf.ensure_worker()
    ended = await ann.get(f"{API}/runs/{started['id']}/result", wait="60s")
    assert (ended.status, ended.json["text"]) == (200, "A cat."), ended.body
    assert (await agent.run("y", tenant="other")).text == "A cat."
