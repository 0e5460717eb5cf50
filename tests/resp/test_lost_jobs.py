"""Jobs that somebody lost: taken back from who is gone, silent or too late, once and at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import apsw
import psycopg
import pytest

from holdfast import Holdfast
from holdfast.errors import StoreUnavailable
from holdfast.kernel.database import is_reading
from holdfast.resp.pops import claim_asked
from holdfast.resp.server import LeaseRenewal, RespServer
from holdfast.resp.workers import is_silent
from tests.conftest import Place
from tests.resp.conftest import Connect, Serve
from tests.resp.test_jobs import popped, status, submitted, without_sweep
from tests.resp.test_workers import let_die, registered, worker
from tests.support.apps import eventually, settings_with
from tests.support.past_kernel import query
from tests.support.proxy import Proxy

MINUTE_US = 60_000_000


@contextmanager
def claims_wait(place: Place) -> Iterator[None]:
    """A transaction of somebody else, for which claims wait."""
    if place.url.startswith("sqlite"):
        other = apsw.Connection(place.url.removeprefix("sqlite:///"))
        other.execute("begin immediate")
        try:
            yield
        finally:
            other.execute("rollback")
            other.close()
        return
    with psycopg.connect(place.direct) as connected:
        connected.execute("lock table holdfast.lease in share mode")
        yield


@pytest.mark.both
async def test_agx_20_a_job_claimed_for_somebody_who_left_meanwhile_goes_back_at_once(
    place: Place, server: RespServer, connect: Connect
) -> None:
    """Its lease would hold for 90 seconds, and the worker is alive: it has another connection."""
    assert server._upkeep is not None
    await server._upkeep.close()  # on SQLite what it writes would stand in line before the claim
    client, heir = await registered(connect, "w1"), await registered(connect, "w2")
    leaving = await connect("w1")
    (id,) = await submitted(client)
    with claims_wait(place):
        waiting = asyncio.create_task(leaving("BRPOP", "queue:ready", "0"))

        async def is_claiming() -> bool:
            return any(each.served for each in server.gateway.pops._waiting)

        async def has_left() -> bool:
            return not server.gateway.pops._waiting

        await eventually(is_claiming)
        await leaving.close()
        await eventually(has_left)
    with pytest.raises(ConnectionError):
        await waiting
    job = await popped(heir, "60")
    assert (job["job_id"], job["attempt"]) == (id, 1)


@pytest.mark.both
async def test_agx_10_agx_11_a_silent_workers_job_is_done_by_another_once(place: Place, connect: Connect) -> None:
    """After 60 seconds without a word it is alive, after 91 it is dead."""
    silent, heir = await registered(connect, "w1"), await registered(connect, "w2", max_concurrent_jobs=5)
    (id,) = await submitted(await connect("submitter"))
    await popped(silent)
    query(place, f"update holdfast.worker set heartbeat_at = heartbeat_at - {MINUTE_US} where id = 'w1'")
    assert await heir("EXISTS", "worker:w1:alive") == 1
    assert await heir("BRPOP", "queue:ready", "2.5") is None, "several looks have found nothing to take back"
    query(place, f"update holdfast.worker set heartbeat_at = heartbeat_at - {MINUTE_US * 31 // 60} where id = 'w1'")
    job = await popped(heir, "60")
    assert (job["job_id"], job["attempt"]) == (id, 2)
    for report in ('{"status": "completed"}', '{"status": "running"}'):
        assert await silent("JOB.UPDATE", id, report) == "-ERR Worker not registered: w1"
    assert await silent("WORKER.HEARTBEAT", "w1") == "-ERR Worker not registered: w1"
    assert [await heir("EXISTS", f"worker:w1:{key}") for key in ("alive", "metadata")] == [0, 1]
    listed = await heir("WORKERS.LIST")
    assert isinstance(listed, list)
    assert [json.loads(each)["worker_id"] for each in listed] == ["w2"]  # type: ignore[arg-type]
    assert (await silent.text("WORKER.REGISTER", worker("w1"))).startswith("OK")
    assert await silent("BRPOP", "queue:ready", "0.05") is None, "it was given out once"
    assert query(place, "select outcome from holdfast.attempt") == [("lost",)]
    assert await heir("JOB.UPDATE", id, '{"status": "completed"}') == "OK"
    assert (await status(heir, id))["attempt"] == 2


@pytest.mark.both
@pytest.mark.parametrize("lease", ["popped", "renewed by its token"])
async def test_a_silent_workers_lease_ends_with_the_worker(place: Place, connect: Connect, lease: str) -> None:
    """Its connections are open, and its last lease would hold for much longer: nobody could use it."""
    hung, heir = await registered(connect, "w1"), await registered(connect, "w2")
    (id,) = await submitted(await connect("submitter"))
    ((_, token, _),) = await hung("JOB.CLAIM", "ready")  # type: ignore[misc, str-unpack]
    if lease == "renewed by its token":
        assert await hung("JOB.RENEW", id, token, "3600000") == "OK"  # type: ignore[arg-type]
    query(place, "update holdfast.worker set ttl_us = 1 where id = 'w1'")
    job = await popped(heir, "60")
    assert (job["job_id"], job["attempt"]) == (id, 2)


async def test_a_server_keeps_a_lease_no_longer_than_its_worker_counts_as_alive(
    place: Place, server: RespServer, connect: Connect
) -> None:
    client = await registered(connect)
    await submitted(await connect("submitter"))
    await popped(client)
    query(place, "update holdfast.worker set heartbeat_at = heartbeat_at - 60000000")
    query(place, "update holdfast.lease set lease_until = lease_until - 70000000")
    await LeaseRenewal(server.gateway).keep()
    ((beyond,),) = query(
        place,
        "select l.lease_until - w.heartbeat_at - w.ttl_us from holdfast.lease l, holdfast.worker w"
        " where w.seq = l.worker",
    )
    assert -60_000_000 < beyond < 30_000_000  # each statement has a time of its own


@pytest.mark.both
async def test_agx_22_a_report_under_a_lease_that_ran_out_changes_nothing(
    place: Place, server: RespServer, connect: Connect
) -> None:
    """Even if nobody has taken the job back yet, and the server remembers that it has sent it."""
    client = await registered(connect, "w1", max_concurrent_jobs=10)
    without_sweep(server)
    count = len(REPORTS)
    ids = await submitted(await connect("submitter"), count=count, timeout_secs=1)
    claimed = await client("JOB.CLAIM", "ready", "COUNT", str(count))
    assert isinstance(claimed, list)
    tokens = [bytes(each[1]).decode() for each in claimed]  # type: ignore[index, arg-type]
    await asyncio.sleep(1.1)  # a lease is no longer than its job may run
    for (name, *rest), id, token in zip(REPORTS, ids, tokens, strict=True):
        answer = await client.text(name, id, *(each.replace("TOKEN", token) for each in rest))
        expected = "-ERR Worker w1 cannot update job claimed by w1" if name == "JOB.UPDATE" else "-LEASELOST "
        assert answer.startswith(expected), (name, rest, answer)
    assert query(place, "select count(*) from holdfast.lease") == [(count,)]
    assert query(place, "select count(*) from holdfast.ended") == [(0,)]
    assert query(place, "select count(*) from holdfast.progress") == [(0,)]


REPORTS = (
    ("JOB.UPDATE", '{"status": "completed"}'),
    ("JOB.UPDATE", '{"status": "failed"}'),
    ("JOB.UPDATE", '{"status": "running"}'),
    ("JOB.RENEW", "TOKEN"),
    ("JOB.COMPLETE", "TOKEN"),
    ("JOB.FAIL", "TOKEN", "no"),
    ("JOB.SNOOZE", "TOKEN", "1"),
    ("JOB.RELEASE", "TOKEN"),
    ("JOB.PROGRESS", "TOKEN", "1"),
)


@pytest.mark.both
async def test_a_look_that_finds_nobody_silent_waits_for_no_turn_to_write(
    place: Place, server: RespServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await registered(connect)
    await submitted(client)
    await popped(client)
    assert server._upkeep is not None
    transact = server.gateway.transact
    asked: list[Any] = []

    async def noted(operation: Any, /, *args: Any, **kwargs: Any) -> Any:
        asked.append(operation)
        return await transact(operation, *args, **kwargs)

    monkeypatch.setattr(server.gateway, "transact", noted)
    asked.clear()
    await server._upkeep.look()
    assert is_silent in asked
    assert all(map(is_reading, asked))
    let_die(place)
    await eventually(lambda: _is_pending(place))


async def _is_pending(place: Place) -> bool:
    return bool(query(place, "select count(*) from holdfast.ready")[0][0])


MARK = 987_654_321


@pytest.mark.both
@pytest.mark.parametrize("gives_up", [False, True])
async def test_a_job_whose_claim_was_never_answered_goes_back_at_once(
    place: Place, server: RespServer, connect: Connect, gives_up: bool
) -> None:
    """Its lease would hold for 90 seconds, because the worker that asked for it lives."""
    client = await registered(connect)
    (id,) = await submitted(client)
    database: Any = server.gateway.database
    transact = database.transact
    lost: list[Any] = []

    async def lossy(operation: Any, /, *args: Any, **kwargs: Any) -> Any:
        answer = await transact(operation, *args, **kwargs)
        if operation is not claim_asked or lost or not any(answer.leases):
            return answer
        lost.append(answer)
        if gives_up:
            raise StoreUnavailable("the store does not answer.")
        return await transact(operation, *args, **kwargs)  # as drivers do

    database.transact = lossy
    job = await popped(client, "25")
    assert (job["job_id"], job["attempt"], len(lost)) == (id, 1, 1)


@pytest.fixture
async def proxied(postgres_url: str) -> AsyncIterator[tuple[Holdfast, Proxy]]:
    async with Proxy(postgres_url) as proxy:
        app = Holdfast(proxy.url, settings=settings_with(), embedded=False)
        yield app, proxy
        await app.close()


async def test_a_connection_that_is_cut_at_the_commit_of_a_pop_costs_its_job_nothing(
    proxied: tuple[Holdfast, Proxy], serve: Serve, connect: Connect
) -> None:
    app, proxy = proxied
    client = await registered(connect, port=(await serve(app)).port)
    assert await client("LPUSH", "queue:ready", str(MARK)) == 1
    proxy.lose_commit(str(MARK).encode())
    assert await client("BRPOP", "queue:ready", "100") == str(MARK).encode()
    assert proxy.lost.is_set()


async def test_a_pop_does_not_wait_for_the_row_of_another_worker(
    proxied: tuple[Holdfast, Proxy], postgres_url: str, serve: Serve, connect: Connect
) -> None:
    """One claim serves all who wait at a server, and somebody may be stopped with the row of one of them locked."""
    port = (await serve(proxied[0])).port
    held, free = await registered(connect, "w1", port=port), await registered(connect, "w2", port=port)
    with psycopg.connect(postgres_url) as other:
        other.execute("select 1 from holdfast.worker where id = 'w1' for update")
        waits = asyncio.create_task(held("BRPOP", "queue:ready", "100"))
        await asyncio.sleep(0)
        for number in range(3):
            await free("LPUSH", "queue:ready", str(number))
            assert await free("BRPOP", "queue:ready", "100") == str(number).encode()
            assert await free("LREM", "queue:processing", "1", str(number)) == 1
        assert not waits.done()
    await free("LPUSH", "queue:ready", "last")
    assert await waits == b"last"


async def test_a_heartbeat_that_is_answered_was_heard(
    proxied: tuple[Holdfast, Proxy], postgres_url: str, serve: Serve, connect: Connect
) -> None:
    """Also if somebody held the row of its worker when it came; others do not wait for it."""
    app, _ = proxied
    port = (await serve(app)).port
    held, free = await registered(connect, "w1", port=port), await registered(connect, "w2", port=port)
    before = (await app.workers.get("w1")).heartbeat_at
    with psycopg.connect(postgres_url) as other:
        other.execute("select 1 from holdfast.worker where id = 'w1' for update")
        beats = asyncio.create_task(held("WORKER.HEARTBEAT", "w1"))
        for _ in range(3):
            assert await free("WORKER.HEARTBEAT", "w2") == "OK"
        assert not beats.done()
    assert await beats == "OK"
    assert (await app.workers.get("w1")).heartbeat_at > before


async def test_a_pop_that_does_not_wait_is_patient_with_the_row_of_its_worker(
    proxied: tuple[Holdfast, Proxy], postgres_url: str, serve: Serve, connect: Connect
) -> None:
    """However often others are served meanwhile."""
    port = (await serve(proxied[0])).port
    held, free = await registered(connect, "w1", port=port), await registered(connect, "w2", port=port)
    with psycopg.connect(postgres_url) as other:
        other.execute("select 1 from holdfast.worker where id = 'w1' for update")
        pop = asyncio.create_task(held("RPOP", "queue:ready"))
        for number in range(40):
            await free("LPUSH", "queue:ready", str(number), "left")
            popped = await free("BRPOP", "queue:ready", "100")
            assert isinstance(popped, bytes)
            assert await free("LREM", "queue:processing", "1", popped) == 1
        assert not pop.done()
    assert await pop is not None


async def test_a_worker_that_never_waits_long_is_heard_of(place: Place, connect: Connect) -> None:
    """On a full queue the heartbeat for those who wait finds it in no list, or its row locked by its own claim."""
    client = await registered(connect)
    (before,) = query(place, "select heartbeat_at from holdfast.worker where id = 'w1'")
    query(place, "update holdfast.worker set heartbeat_at = heartbeat_at - 60000000 where id = 'w1'")
    await client("LPUSH", "queue:ready", "raw")
    assert await client("RPOP", "queue:ready") == b"raw"
    assert query(place, "select heartbeat_at from holdfast.worker where id = 'w1'") >= [before]
