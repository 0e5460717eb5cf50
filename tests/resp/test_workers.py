"""Workers over real sockets: they register, live by their heartbeats, and die without them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.errors import NotFound, StoreRefused
from holdfast.resp import keys
from holdfast.resp.client import KeyPrincipal, digest_of
from holdfast.resp.pops import Pops
from holdfast.resp.server import LeaseRenewal, RespServer, Upkeep
from tests.conftest import Place
from tests.resp.conftest import KEYS, LONG, Client, Connect, Serve
from tests.support.apps import eventually
from tests.support.past_kernel import query
from tests.support.restoring import Backup

SHORT = timedelta(milliseconds=800)


def worker(id: str = "w1", *tools: str, **more: Any) -> str:
    said = {
        "worker_id": id,
        "hostname": "h",
        "agw_version": "0.1.0",
        "capabilities": {"tools": list(tools or ("sort",))},
    }
    return json.dumps({**said, **more})


async def registered(connect: Connect, id: str = "w1", *tools: str, port: int | None = None, **more: Any) -> Client:
    client = await connect(id, port)
    answer = await client.text("WORKER.REGISTER", worker(id, *tools, **more))
    assert answer.startswith(f"OK worker_id={id} heartbeat_interval="), answer
    return client


def live_long(server: RespServer) -> None:
    """Beats are as frequent as before, but no worker dies because one is late."""
    server.gateway.options = replace(server.gateway.options, dead_after=LONG)
    server.gateway.pops._ttl_us = server.gateway.dead_after_us


def let_die(place: Place, id: str = "w1") -> None:
    """The worker is dead now, and what it holds is anybody's. Before, it has as long as a slow machine needs."""
    query(place, f"update holdfast.worker set ttl_us = 1 where id = '{id}'")
    query(place, "update holdfast.lease set lease_until = 1")


async def members(client: Client, key: str) -> set[str]:
    answer = await client("SMEMBERS", key)
    assert isinstance(answer, list)
    return {bytes(each).decode() for each in answer}  # type: ignore[arg-type]


async def test_agx_06_a_registration_is_stored(connect: Connect) -> None:
    client = await connect("w1")
    said = worker("w1", "sort", "jq", platform="linux", tags={"tier": "dev"})
    assert await client("WORKER.REGISTER", said) == "OK worker_id=w1 heartbeat_interval=30"
    metadata = json.loads(await client.text("GET", "worker:w1:metadata"))
    assert (metadata["hostname"], metadata["platform"]) == ("h", "linux")
    assert await client("TTL", "worker:w1:metadata") == -1
    ttl = await client("TTL", "worker:w1:alive")
    assert isinstance(ttl, int)
    assert 0 < ttl <= 90
    assert int(await client.text("GET", "worker:w1:alive")) > 1_600_000_000
    assert await members(client, "capability:jq:workers") == {"w1"}
    assert await client("TYPE", "capability:jq:workers") == "set"
    assert "WRONGTYPE" in await client.text("GET", "capability:jq:workers")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"hostname": None}, "Invalid worker registration: hostname is required"),
        ({"agw_version": ""}, "Invalid worker registration: agw_version is required"),
        ({"worker_id": "a b"}, "Invalid worker registration: worker_id has 1 to 64"),
        ({"worker_id": "x" * 65}, "Invalid worker registration: worker_id has 1 to 64"),
        ({"capabilities": {}}, "Invalid capabilities format"),
        ({"capabilities": {"tools": "sort"}}, "Invalid capabilities format"),
        ({"capabilities": {"tools": [1]}}, "Invalid capabilities format"),
        ({"capabilities": {"tools": ["/bin/sh"]}}, "Invalid capabilities format"),
        ({"max_concurrent_jobs": 0}, "Invalid worker registration: max_concurrent_jobs"),
        ({"worker_id": "somebody"}, "Invalid worker registration: this key may register w1"),
    ],
)
async def test_agx_07_a_bad_registration_stores_nothing(connect: Connect, change: dict[str, Any], problem: str) -> None:
    client = await connect()
    body = {**json.loads(worker()), **change}
    assert (await client.text("WORKER.REGISTER", json.dumps(body))).startswith(f"-ERR {problem}")
    assert await client("KEYS", "worker:*") == []
    assert await client("WORKERS.LIST") == []


async def test_agx_07_a_list_of_capabilities_is_one_of_tools(connect: Connect) -> None:
    client = await connect()
    body = {**json.loads(worker()), "capabilities": ["sort", "cut"]}
    assert (await client.text("WORKER.REGISTER", json.dumps(body))).startswith("OK")
    assert await members(client, "capability:cut:workers") == {"w1"}


async def test_agx_08_an_id_belongs_to_its_principal_and_a_new_epoch_fences_the_old(connect: Connect) -> None:
    first = await registered(connect, "w1")
    stranger = await connect("w2")
    assert await stranger("WORKER.REGISTER", worker("w1")) == "-ERR Worker ID already registered"
    second = await registered(connect, "w1")
    assert await first("WORKER.HEARTBEAT", "w1") == "-ERR Worker not registered: w1"
    assert await second("WORKER.HEARTBEAT", "w1") == "OK"
    assert await (await connect("w1"))("WORKER.HEARTBEAT", "w1") == "OK"  # a connection without an epoch of its own


async def test_agx_09_a_heartbeat_keeps_a_worker_alive_and_brings_its_stats(connect: Connect) -> None:
    client = await registered(connect)
    assert await client("WORKER.HEARTBEAT", "w1", '{"active_jobs": 2}') == "OK"
    assert json.loads(await client.text("GET", "worker:w1:stats")) == {"active_jobs": 2}
    alive, stats = await client("PTTL", "worker:w1:alive"), await client("PTTL", "worker:w1:stats")
    assert isinstance(alive, int)
    assert isinstance(stats, int)
    assert 0 < alive <= 90_000
    assert 90_000 < stats <= 120_000
    assert await client("WORKER.HEARTBEAT", "nobody") == "-ERR Worker not registered: nobody"
    assert await (await connect("w2"))("WORKER.HEARTBEAT", "w1") == "-ERR Worker not registered: w1"
    assert (await client.text("WORKER.HEARTBEAT", "w1", "[]")).startswith("-ERR Invalid stats")


async def test_agx_10_agx_11_a_silent_worker_is_dead_until_it_registers_again(
    place: Place, serve: Serve, connect: Connect
) -> None:
    server = await serve()
    client = await registered(connect, "w1", port=server.port)
    let_die(place)

    async def dead() -> bool:
        return await client("EXISTS", "worker:w1:alive") == 0

    await eventually(dead)
    assert await client("WORKER.HEARTBEAT", "w1") == "-ERR Worker not registered: w1"
    assert await client("BRPOP", "queue:ready", "10") == "-ERR Worker not registered: w1"
    assert await client("WORKERS.LIST") == []
    assert await client("EXISTS", "worker:w1:metadata") == 1
    assert await client("EXISTS", "capability:sort:workers") == 0
    assert (await client.text("WORKER.REGISTER", worker())).startswith("OK")
    assert await client("EXISTS", "worker:w1:alive") == 1


async def test_a_dead_worker_is_forgotten_when_its_jobs_are_back(
    place: Place, hf: Holdfast, serve: Serve, connect: Connect
) -> None:
    server = await serve()
    client = await registered(connect, "w1", port=server.port)
    await client("LPUSH", "queue:ready", "raw")
    assert await client("BRPOP", "queue:ready", "60") == b"raw"
    let_die(place)

    async def refused() -> str:
        try:
            await hf.workers.forget("w1")
        except StoreRefused as problem:
            return str(problem)
        return ""

    assert await refused()  # it lives, or its job is leased

    async def forgotten() -> bool:
        return await refused() == ""

    await eventually(forgotten)
    assert await client("KEYS", "worker:*") == []
    assert await client("WORKERS.LIST", "ALL") == []
    assert [row.id for row in await hf.workers.list(all=True) if row.name != "resp"] == []
    with pytest.raises(NotFound, match="there is no worker 'w1'"):
        await hf.workers.forget("w1")
    assert (await client.text("WORKER.REGISTER", worker())).startswith("OK")
    assert await client("BRPOP", "queue:ready", "60") == b"raw"


async def test_agx_12_an_idle_worker_leaves_without_a_trace(connect: Connect) -> None:
    client = await registered(connect)
    assert await client("WORKER.UNREGISTER", "w2") == "-ERR Worker not registered"
    assert await client("WORKER.UNREGISTER", "w1") == "OK"
    assert await client("KEYS", "*") == []
    assert await client("WORKER.HEARTBEAT", "w1") == "-ERR Worker not registered: w1"


async def test_agx_13_only_a_registered_worker_pops(connect: Connect) -> None:
    client = await connect()
    for words in (("BRPOP", "queue:ready", "1"), ("RPOP", "queue:ready"), ("JOB.CLAIM", "ready")):
        assert await client(*words) == "-ERR Worker not registered: w1"


async def test_agx_36_lists_agree_with_the_kernel(hf: Holdfast, connect: Connect) -> None:
    clients = [await registered(connect, name, "sort", name) for name in ("w1", "w2", "w3")]
    await clients[0]("LPUSH", "queue:ready", "raw")
    listed = await clients[0]("WORKERS.LIST")
    assert isinstance(listed, list)
    shown = {each["worker_id"]: each["tools"] for each in (json.loads(one) for one in listed)}  # type: ignore[arg-type]
    kernel = {row.id for row in await hf.workers.list() if row.name != "resp"}  # the gateway itself
    alive = await clients[0]("KEYS", "worker:*:alive")
    assert isinstance(alive, list)
    assert set(shown) == kernel == {bytes(key).decode().split(":")[1] for key in alive}  # type: ignore[arg-type]
    assert shown["w2"] == ["sort", "w2"]
    stats = json.loads(await clients[0].text("QUEUE.STATS", "ready"))
    (queue,) = [each for each in await hf.queues.list() if each.name == "ready"]
    assert queue.name == "ready"
    assert (stats["pending_jobs"], stats["running_jobs"], stats["unroutable_jobs"]) == (1, 0, 0)


async def test_capabilities_are_found_by_words(connect: Connect) -> None:
    cards = {"agx-ocr": {"name": "agx-ocr", "description": "Reads text in pictures"}}
    capabilities = {"tools": [], "agentic_units": ["agx-ocr"]}
    client = await connect()
    body = {**json.loads(worker()), "capabilities": capabilities, "descriptions": cards}
    await client("WORKER.REGISTER", json.dumps(body))
    await registered(connect, "w2")
    found = await client("CAPABILITY.SEARCH", "pictures text")
    assert isinstance(found, list)
    assert [json.loads(each)["worker_id"] for each in found] == ["w1"]  # type: ignore[arg-type]


async def test_a_key_may_be_given_more_ids(connect: Connect) -> None:
    await asyncio.gather(*(registered(connect, name) for name in ("w1", "w2", "w3")))


async def test_a_key_registers_no_id_that_is_not_its_own(connect: Connect) -> None:
    client = await connect("w1")
    answer = await client.text("WORKER.REGISTER", worker("somebody-else"))
    assert answer == "-ERR Invalid worker registration: this key may register w1"
    assert await client("EXISTS", "worker:somebody-else:metadata") == 0


async def test_a_server_forgets_what_it_has_sent_when_it_has_ended(server: RespServer, connect: Connect) -> None:
    """What it has sent it renews, so it must not keep a list of all that it ever sent."""
    client, keeping = await registered(connect), LeaseRenewal(server.gateway)
    await client("LPUSH", "queue:ready", "raw")
    await client("BRPOP", "queue:ready", "5")
    await keeping.keep()
    assert len(server.gateway.pops.delivered) == 1
    assert await client("LREM", "queue:processing", "1", "raw") == 1
    await keeping.keep()
    assert not server.gateway.pops.delivered


async def test_a_number_that_a_restored_store_gives_out_again_is_not_the_first_worker(
    connect: Connect, place: Place
) -> None:
    id = await (await connect("submitter")).text("JOB.ENQUEUE", "mail", "send", "{}")
    with Backup(place.url) as backup:
        first = await registered(connect, "w1")
        (lost,) = await claimed(first)
        await backup.restore()
        second = await registered(connect, "w2")
        (held,) = await claimed(second)
        assert held == lost, "the store gives the same token again"
        for call in (
            ("JOB.COMPLETE", id, lost),
            ("JOB.UPDATE", id, '{"status": "completed"}'),
            ("BRPOP", "queue:mail", "1"),
        ):
            assert await first(*call) == "-ERR Worker not registered: w1"
        assert await second("JOB.COMPLETE", id, held, '"by w2"') == "OK"
        assert json.loads(await second.text("JOB.STATUS", id))["result"] == "by w2"


@pytest.mark.both
async def test_a_restored_store_does_not_let_an_older_connection_speak_for_a_new_registration(
    connect: Connect, server: RespServer, place: Place
) -> None:
    await (await connect("submitter")).text("JOB.ENQUEUE", "mail", "send", "{}")
    with Backup(place.url) as backup:
        first = await registered(connect, "w1")
        await claimed(first)
        await backup.restore()
        await registered(connect, "w1")
        assert await first("WORKER.HEARTBEAT", "w1") == "-ERR Worker not registered: w1"
        assert await first("JOB.CLAIM", "mail") == "-ERR Worker not registered: w1"
        await LeaseRenewal(server.gateway).keep()
        assert not server.gateway.pops.delivered, "what the first was sent is not kept for the second"


async def claimed(client: Client) -> list[str]:
    """The tokens of what a claim gives."""
    answer = await client("JOB.CLAIM", "mail")
    assert isinstance(answer, list), answer
    return [bytes(each[1]).decode() for each in answer]  # type: ignore[index, arg-type]


async def test_a_connection_that_shows_another_key_acts_for_its_former_worker_no_more(connect: Connect) -> None:
    """Otherwise the revocation of the first key would not end what the connection does in its name."""
    client, submitter = await registered(connect, "w1"), await connect("submitter")
    await submitter("LPUSH", "queue:ready", "data")
    assert await client("BRPOP", "queue:ready", "10") == b"data"
    assert await client("AUTH", KEYS["w1"]) == "OK"  # the same key changes nothing
    assert await client("WORKER.HEARTBEAT", "w1") == "OK"
    assert await client("AUTH", KEYS["w2"]) == "OK"
    assert await client("WORKER.HEARTBEAT", "w1") == "-ERR Worker not registered: w1"
    assert await client("BRPOP", "queue:ready", "0.01") == "-ERR Worker not registered: w2"
    assert await client("LREM", "queue:processing", "1", "data") == "-ERR Worker not registered: w2"


@pytest.mark.parametrize("task", [(LeaseRenewal, "keep"), (Upkeep, "look"), (Pops, "beat"), (keys, "list_keys")])
async def test_what_a_server_always_does_continues_after_a_mistake(
    hf: Holdfast, serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch, task: tuple[object, str]
) -> None:
    """A task that ended would leave leases, heartbeats or revocations to nobody, and no one would see it."""
    database, failed = await core_of(hf).opened(), [0]
    rights = KeyPrincipal("rented", digest_of(b"72" * 32), ("rented",), stored=True)
    await database.transact(keys.add_key, rights)
    server = await serve(dead_after=SHORT)
    assert await (await connect(None, server.port))("AUTH", "72" * 32) == "OK"

    async def fail(*_: object, **__: object) -> None:
        failed[0] += 1
        raise ValueError("a mistake")

    monkeypatch.setattr(*task, fail)

    async def again() -> bool:
        return failed[0] >= 2

    await eventually(again)
    assert not [each for each in server._tasks if each.done()]


async def test_a_list_of_workers_takes_no_other_word_than_all(connect: Connect) -> None:
    client = await registered(connect)
    assert len(await client("WORKERS.LIST", "all") or []) == 1  # type: ignore[arg-type]
    assert await client("WORKERS.LIST", "dead") == "-ERR syntax error"
