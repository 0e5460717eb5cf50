"""What connections cost that wait, and requests that are pipelined: counted in statements, over real sockets."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from holdfast.agw.link import GatewayAddress, Link, read_reply
from holdfast.resp.client import shared
from holdfast.resp.records import Epoch
from holdfast.resp.server import RespServer, keep
from tests.resp.conftest import Client, Connect, Serve, request
from tests.resp.test_jobs import submitted
from tests.resp.test_workers import SHORT, live_long, registered, worker
from tests.support.apps import eventually
from tests.support.sent import Statements

KEY = "a key that all of us have"


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch, dialect: str) -> Statements:
    return Statements(monkeypatch, dialect)


async def parked(server: RespServer, number: int) -> tuple[Link, asyncio.Task[object]]:
    """A connection of a worker of its own that waits for ever."""
    link = await Link.open(GatewayAddress("127.0.0.1", server.port))
    assert await link.call("AUTH", f"p{number}", KEY) == "OK"
    assert str(await link.call("WORKER.REGISTER", worker(f"p{number}"))).startswith("OK")
    return link, asyncio.create_task(link.call("BRPOP", "queue:in", "0"))


async def waiting(server: RespServer, count: int) -> None:
    async def all_wait() -> bool:
        return len(server.gateway.pops) == count

    await eventually(all_wait, lambda: len(server.gateway.pops))


async def looked(statements: Statements, count: int) -> None:
    """Until so many looks and a round of heartbeats have passed."""

    async def passed() -> bool:
        return statements.sent["look"] >= count and statements.sent["beat_many"] >= 1

    await eventually(passed, statements.sent.total)


@pytest.mark.parametrize("many", [100, pytest.param(1_000, marks=pytest.mark.long)])
async def test_many_parked_connections_send_no_more_statements_than_ten(
    serve: Serve, statements: Statements, many: int
) -> None:
    server = await serve(shared=shared(KEY), dead_after=timedelta(seconds=12))
    spent = {}
    kept: list[tuple[Link, asyncio.Task[object]]] = []
    for size in (10, many):
        statements.clear()
        while len(kept) < size:
            kept.append(await parked(server, len(kept)))
        await waiting(server, size)
        assert statements.listed["lock_holders"] <= size + 10, "who comes is looked for alone"
        statements.clear()
        await looked(statements, 2)
        spent[size] = sum(statements.sent.values()) / statements.sent["look"]  # one look a second
    for link, task in kept:
        task.cancel()
        await link.close()
    await asyncio.gather(*(task for _, task in kept), return_exceptions=True)
    assert spent[many] <= spent[10] + 2, spent
    assert spent[many] <= 15, spent  # as ten idle workers
    await waiting(server, 0)


async def test_a_job_wakes_those_alone_who_wait_for_it(serve: Serve, connect: Connect, statements: Statements) -> None:
    server = await serve(shared=shared(KEY))
    others = [await parked(server, number) for number in range(20)]
    client = await registered(connect, "w1", port=server.port)
    reply = asyncio.create_task(client("BRPOP", "queue:mail", "0"))
    await waiting(server, 21)
    statements.clear()
    await (await connect("submitter", server.port))("LPUSH", "queue:mail", "letter")
    assert await reply == b"letter"
    assert statements.listed["lock_holders"] <= 2
    for link, task in others:
        task.cancel()
        await link.close()


async def test_routes_are_read_once(connect: Connect, statements: Statements) -> None:
    client = await registered(connect, max_concurrent_jobs=20)
    await client("LPUSH", "queue:in", *(f"e{number}" for number in range(10)))
    assert await client("RPOP", "queue:in") == b"e0"
    statements.clear()
    assert [await client("RPOP", "queue:in") for _ in range(9)] == [f"e{number}".encode() for number in range(1, 10)]
    assert statements.sent["list_routes"] <= 1  # by a look, if there was one
    assert statements.sent["list_workers"] == statements.sent["find_live"] == 0
    assert await client("RPOP", "queue:in") is None


async def piped(client: Client, *requests: tuple[str | bytes, ...]) -> list[object]:
    """The replies to requests that were sent at once."""
    client.link._writer.write(b"".join(request(*each) for each in requests))
    replies: list[object] = []
    for _ in requests:
        try:
            replies.append(await read_reply(client.link._reader))
        except Exception as refusal:  # noqa: BLE001  an error is a reply
            replies.append(f"-{refusal}")
    return replies


@pytest.mark.long
async def test_pipelined_completions_share_their_commits(
    server: RespServer, connect: Connect, statements: Statements
) -> None:
    client = await registered(connect, max_concurrent_jobs=100)
    for number in range(40):
        await client("JOB.ENQUEUE", "mail", "send", str(number))
    claimed = await client("JOB.CLAIM", "mail", "COUNT", "40")
    assert isinstance(claimed, list)
    held = [(json.loads(each[0])["job_id"], bytes(each[1]).decode()) for each in claimed]  # type: ignore[index, arg-type]
    statements.clear()
    asked = [("JOB.COMPLETE", id, token, json.dumps(id)) for id, token in held]
    wrong = ("JOB.COMPLETE", held[0][0], "9.9")
    replies = await piped(client, *asked[:20], wrong, asked[0], *asked[20:])
    assert replies[:20] == replies[22:] == ["OK"] * 20
    assert all(str(reply).startswith("-LEASELOST") for reply in replies[20:22])
    assert statements.sent["finish"] <= 10
    assert {json.loads(await client.text("JOB.STATUS", id))["result"] for id, _ in held} == {id for id, _ in held}
    assert not len(server.gateway.pops.delivered)


async def test_pipelined_pops_and_removals_are_answered_in_their_order(connect: Connect) -> None:
    client = await registered(connect, max_concurrent_jobs=100)
    elements = [f"e{number // 2}".encode() for number in range(30)]  # each twice
    await client("LPUSH", "queue:in", *elements)
    pops = [("RPOPLPUSH", "queue:in", "queue:processing")] * 31
    assert await piped(client, *pops) == [*elements, None]
    removals = [("LREM", "queue:processing", "1", element) for element in [*elements, b"e0"]]
    assert await piped(client, ("PING",), *removals, ("PING",)) == ["PONG", *[1] * 30, 0, "PONG"]
    assert await client("LLEN", "queue:processing") == 0


@pytest.mark.both
async def test_a_job_costs_a_claim_and_one_statement_that_ends_it(connect: Connect, statements: Statements) -> None:
    """However many come in a pipeline, and without a question whether the lease of a moment ago still holds."""
    client = await registered(connect, max_concurrent_jobs=100)
    await client("LPUSH", "queue:in", *(f"e{number}" for number in range(50)))
    await client("RPOP", "queue:none")  # routes are known from now on
    statements.clear()
    elements = await piped(client, *[("RPOPLPUSH", "queue:in", "queue:processing")] * 49)
    removed = await piped(client, *(("LREM", "queue:processing", "1", str(each, "ascii")) for each in elements))  # type: ignore[call-overload]
    assert removed == [1] * 49
    assert (statements.sent["take_for"], statements.sent["standing_leases"]) == (1, 0)
    assert statements.sent["finish"] <= 2
    last = await client("BRPOPLPUSH", "queue:in", "queue:processing", "1")
    assert await client("LREM", "queue:processing", "1", last) == 1  # type: ignore[arg-type]
    sent = statements.sent
    assert (sent["claim_each"], sent["take_for"], sent["standing_leases"]) == (1, 1, 0)


async def test_replies_of_a_pipeline_come_before_the_error_that_ends_it(connect: Connect) -> None:
    client = await registered(connect, max_concurrent_jobs=3)
    await client("LPUSH", "queue:in", "a", "b")
    client.link._writer.write(request("RPOP", "queue:in") * 2 + b"*1\r\n$-5\r\n")
    assert [await read_reply(client.link._reader) for _ in range(2)] == [b"a", b"b"]
    assert (await client.link._reader.read()).startswith(b"-ERR Protocol error")


async def test_two_connections_of_a_worker_get_what_each_waits_for(server: RespServer, connect: Connect) -> None:
    client = await registered(connect, "w1", max_concurrent_jobs=5)
    side = await connect("w1")
    waits = [asyncio.create_task(each("BRPOP", key, "0")) for each, key in ((client, "queue:a"), (side, "queue:b"))]
    await waiting(server, 2)
    submitter = await connect("submitter")
    await submitter("LPUSH", "queue:b", "for b")
    assert await waits[1] == b"for b"
    await submitter("LPUSH", "queue:a", "for a")
    assert await waits[0] == b"for a"


async def test_a_parked_pop_follows_its_worker_into_a_new_epoch(server: RespServer, connect: Connect) -> None:
    first, side = await registered(connect, "w1"), await connect("w1")
    waits = [asyncio.create_task(each("BRPOP", "queue:in", "0")) for each in (first, side)]
    await waiting(server, 2)
    again = await registered(connect, "w1")
    assert await waits[0] == "-ERR Worker not registered: w1"
    await again("LPUSH", "queue:in", "x")
    assert await waits[1] == b"x"


async def test_a_parked_pop_hears_of_a_new_epoch_at_another_server(serve: Serve, connect: Connect) -> None:
    here, there = await serve(dead_after=SHORT), await serve()
    live_long(here)
    await registered(connect, "w1", port=here.port)
    side = await connect("w1", here.port)
    wait = asyncio.create_task(side("BRPOP", "queue:in", "0"))
    await waiting(here, 1)
    again = await registered(connect, "w1", port=there.port)
    await again("LPUSH", "queue:in", "x")
    assert await wait == b"x"


async def test_a_dead_worker_completes_nothing_that_it_popped(serve: Serve, connect: Connect) -> None:
    server = await serve(dead_after=SHORT * 4)  # as long as a slow machine needs to come to the claim
    client = await registered(connect, "w1", port=server.port, max_concurrent_jobs=2)
    submitter = await connect("submitter", server.port)
    (id,) = await submitted(submitter)
    await client("LPUSH", "queue:ready", "raw")
    claimed = await client("JOB.CLAIM", "ready", "COUNT", "2")
    assert isinstance(claimed, list)
    tokens = [bytes(each[1]).decode() for each in claimed]  # type: ignore[index, arg-type]

    async def dead() -> bool:
        return await submitter("EXISTS", "worker:w1:alive") == 0

    await eventually(dead)
    for call in (
        ("JOB.COMPLETE", id, tokens[0]),
        ("JOB.UPDATE", id, '{"status": "completed"}'),
        ("LREM", "queue:processing", "1", "raw"),
    ):
        assert await client(*call) == "-ERR Worker not registered: w1"
    assert json.loads(await submitter.text("JOB.STATUS", id))["status"] != "completed"


async def test_what_ended_elsewhere_is_forgotten(serve: Serve, connect: Connect) -> None:
    here, there = await serve(), await serve()
    client = await registered(connect, "w1", port=here.port)
    (id,) = await submitted(await connect("submitter", there.port))
    assert isinstance(await client("BRPOP", "queue:ready", "0"), bytes)
    assert len(here.gateway.pops.delivered) == 1
    assert await (await connect("w1", there.port))("JOB.UPDATE", id, '{"status": "completed"}') == "OK"
    assert await client("WORKER.HEARTBEAT", "w1") == "OK"
    assert len(here.gateway.pops.delivered) == 0


async def test_what_was_sent_is_sure_for_no_longer_than_its_lease(serve: Serve, connect: Connect) -> None:
    """Until then it is ended without a question: whoever holds it must still have it then, however silent."""
    for number, (seconds, most) in enumerate(((4.0, 4.0), (90.0, 10.0)), 1):
        server = await serve(dead_after=timedelta(seconds=seconds))
        client = await registered(connect, f"w{number}", port=server.port)
        (id,) = await submitted(await connect("submitter", server.port), f"a{number}")
        begun = server.gateway.clock.monotonic()
        assert isinstance(await client("BRPOP", "queue:ready", "0"), bytes)
        sent = server.gateway.pops.delivered.find(f"w{number}", id)
        assert sent is not None
        assert begun < sent.sure_until < server.gateway.clock.monotonic() + most


async def test_a_lease_is_renewed_for_the_registration_that_it_was_sent_to(serve: Serve, connect: Connect) -> None:
    """After a restore the number of a registration may be another's, and so may the token."""
    server = await serve()
    client = await registered(connect, "w1", port=server.port)
    (id,) = await submitted(await connect("submitter", server.port))
    assert isinstance(await client("BRPOP", "queue:ready", "0"), bytes)
    sent = server.gateway.pops.delivered.find("w1", id)
    assert sent is not None
    mine, held = sent.epoch, sent.lease.held
    before = Epoch(mine.worker, "a registration that the restored store has forgotten")
    assert await server.gateway.transact(keep, before, [held], ttl_us=60_000_000) == set()
    assert await server.gateway.transact(keep, mine, [held], ttl_us=60_000_000) == {held}
