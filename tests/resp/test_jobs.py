"""Jobs over real sockets: popped under a lease, reported by their worker alone, and never lost."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.resp import keys
from holdfast.resp.client import KeyPrincipal, digest_of
from holdfast.resp.server import LeaseRenewal, RespServer
from tests.conftest import Place
from tests.resp.conftest import Client, Connect, Serve
from tests.resp.test_plans_and_actions import action
from tests.resp.test_workers import SHORT, let_die, live_long, registered, worker
from tests.support.apps import eventually
from tests.support.past_kernel import query

PLAN = {"plan_id": "sorting", "tasks": [{"task_number": 1, "command": "sort"}]}


async def submitted(
    client: Client, id: str = "a1", count: int = 1, plan: dict[str, Any] = PLAN, **more: Any
) -> list[str]:
    """The ids of the jobs of an action."""
    assert (await client.text("PLAN.SUBMIT", json.dumps(plan))).startswith("OK")
    body = {**json.loads(action(id, *range(count), plan=plan["plan_id"])), **more}
    assert (await client.text("ACTION.SUBMIT", json.dumps(body))).startswith("OK")
    jobs = await client("JOB.LIST", id)
    assert isinstance(jobs, list)
    return [bytes(each).decode() for each in jobs]  # type: ignore[arg-type]


async def popped(client: Client, timeout: str = "10") -> dict[str, Any]:
    answer = await client("BRPOP", "queue:ready", timeout)
    assert isinstance(answer, bytes), answer
    job: dict[str, Any] = json.loads(answer)
    return job


async def status(client: Client, id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await client.text("JOB.STATUS", id))
    return found


async def test_agx_18_a_parked_pop_gets_a_job_when_it_comes(connect: Connect) -> None:
    client, submitter = await registered(connect), await connect("submitter")
    waiting = asyncio.create_task(popped(client))
    await asyncio.sleep(0)
    (id,) = await submitted(submitter)
    job = await waiting
    assert (job["job_id"], job["plan_id"], job["input"], job["inputs"], job["attempt"]) == (id, "sorting", 0, [0], 1)
    assert job["plan"]["tasks"][0]["command"] == "sort"
    assert await client("BRPOP", "queue:ready", "0.01") is None


@pytest.mark.both
async def test_agx_18_a_parked_pop_hears_of_a_job_without_a_look(server: RespServer, connect: Connect) -> None:
    client, submitter = await registered(connect), await connect("submitter")
    await submitted(submitter, "a0")  # from now on the server knows the route
    await popped(client)
    without_sweep(server)
    side = await registered(connect, "w2")
    for number in range(1, 4):
        waiting = asyncio.create_task(popped(side, "60"))
        await eventually(lambda: parked(server))
        (id,) = await submitted(submitter, f"a{number}")
        assert (await waiting)["job_id"] == id
        assert await side("JOB.UPDATE", id, '{"status": "completed"}') == "OK"


async def parked(server: RespServer) -> bool:
    """Whether somebody waits, and nobody has anything to do for them."""
    waiting = [*server.gateway.pops._waiting]
    return bool(waiting) and not any(each.fresh or each.served for each in waiting)


def without_sweep(server: RespServer) -> None:
    """Nobody looks any more: what has run out stays where it is, and only hints say what is new."""
    assert server._upkeep is not None
    for task in (*server._tasks, *server._upkeep._hub._station._loops):
        if task.get_name() == "resp-upkeep" or task.get_name().startswith("poll of "):
            task.cancel()


async def test_agx_18_jobs_come_in_order_and_one_waiter_gets_each(connect: Connect) -> None:
    workers = [await registered(connect, name, max_concurrent_jobs=10) for name in ("w1", "w2")]
    ids = await submitted(await connect("submitter"), count=6)
    assert [(await popped(workers[0]))["job_id"] for _ in range(4)] == ids[:4]
    taken = await asyncio.gather(*(popped(client) for client in workers))
    assert {job["job_id"] for job in taken} == set(ids[4:])


async def test_agx_19_each_job_is_delivered_once(hf: Holdfast, connect: Connect) -> None:
    """Three workers with several connections each; the chaos test has sixteen and a thousand jobs."""
    submitter = await connect("submitter")
    clients = [await registered(connect, name, max_concurrent_jobs=20) for name in ("w1", "w2", "w3")]
    clients += [await connect(name) for name in ("w1", "w2", "w3")]
    ids = [id for number in range(2) for id in await submitted(submitter, f"a{number}", 60)]
    seen: Counter[str] = Counter()

    async def work(client: Client) -> None:
        while isinstance(answer := await client("BRPOP", "queue:ready", "0.3"), bytes):
            id = json.loads(answer)["job_id"]
            seen[id] += 1
            assert await client("JOB.UPDATE", id, '{"status": "completed", "task_results": []}') == "OK"

    await asyncio.gather(*(work(client) for client in clients))
    assert seen == Counter(ids)
    assert {(await status(submitter, id))["status"] for id in ids} == {"completed"}


async def test_agx_20_a_job_whose_reply_was_lost_comes_back(serve: Serve, connect: Connect, hf: Holdfast) -> None:
    """The claim is committed and nobody hears of it: the worker lives on, and the job is not renewed by its beats."""
    dying, other = await serve(dead_after=SHORT), await serve()
    dying.gateway.options = other.gateway.options  # the claim of the job ends soon, the worker lives long
    client = await registered(connect, "w1", port=dying.port)
    (id,) = await submitted(await connect("submitter", other.port))
    dying.gateway.pops.deliver = lambda popped, client: None  # type: ignore[method-assign]  # the reply is lost
    await popped(client)
    late = await registered(connect, "w2", port=other.port)
    beats = asyncio.create_task(beating(client, "w1"))
    job = await popped(late)
    beats.cancel()
    assert (job["job_id"], job["attempt"]) == (id, 2)


async def beating(client: Client, id: str) -> None:
    while True:
        assert await client("WORKER.HEARTBEAT", id) == "OK"
        await asyncio.sleep(SHORT.total_seconds() / 4)


async def test_agx_20_a_client_that_left_while_it_waited_gets_nothing(connect: Connect) -> None:
    client = await registered(connect)
    side = await connect("w1")
    waiting = asyncio.create_task(side("BRPOP", "queue:ready", "0"))
    await asyncio.sleep(0.05)
    await side.close()
    with pytest.raises(ConnectionError):
        await waiting
    (id,) = await submitted(await connect("submitter"))
    assert (await popped(client))["job_id"] == id


async def test_agx_21_a_dead_workers_job_is_done_by_another(place: Place, serve: Serve, connect: Connect) -> None:
    server = await serve()
    dying = await registered(connect, "w1", port=server.port)
    (id,) = await submitted(await connect("submitter", server.port))
    assert (await popped(dying))["job_id"] == id
    await dying.close()
    let_die(place)
    heir = await registered(connect, "w2", port=server.port)
    job = await popped(heir)  # a worker that waits is alive: its connection is
    assert (job["job_id"], job["attempt"]) == (id, 2)
    assert await heir("JOB.UPDATE", id, '{"status": "completed"}') == "OK"
    assert (await status(heir, id))["status"] == "completed"


async def test_agx_22_only_the_claimant_reports(connect: Connect) -> None:
    client, stranger = await registered(connect, "w1"), await registered(connect, "w2")
    (id,) = await submitted(await connect("submitter"))
    await popped(client)
    done = '{"status": "completed"}'
    assert await stranger("JOB.UPDATE", id, done) == "-ERR Worker w2 cannot update job claimed by w1"
    lying = '{"status": "completed", "worker_id": "w1"}'
    assert await stranger("JOB.UPDATE", id, lying) == "-ERR Worker w1 cannot update job claimed by w1"
    foreign = '{"status": "completed", "worker_id": "w2"}'
    assert await client("JOB.UPDATE", id, foreign) == "-ERR Worker w2 cannot update job claimed by w1"
    assert (await status(client, id))["status"] == "running"
    await registered(connect, "w1")  # a new epoch
    assert await client("JOB.UPDATE", id, done) == "-ERR Worker not registered: w1"
    assert (await status(stranger, id))["status"] == "running"


async def test_agx_23_transitions_are_checked_and_a_repeated_end_is_fine(connect: Connect) -> None:
    client = await registered(connect)
    (id,) = await submitted(await connect("submitter"))
    assert await client("JOB.UPDATE", "job_" + "0" * 32, "{}") == f"-ERR Job not found: job_{'0' * 32}"
    early = await client("JOB.UPDATE", id, '{"status": "completed"}')
    assert early == "-ERR Invalid status transition: pending -> completed"
    await popped(client)
    assert await client("JOB.UPDATE", id, '{"status": "running", "current_task": 1}') == "OK"
    assert await client("JOB.UPDATE", id, '{"progress_percent": 40}') == "OK"
    shown = await status(client, id)
    assert (shown["current_task"], shown["progress_percent"], shown["worker_id"]) == (1, 40, "w1")
    assert await client("GET", f"job:{id}:worker") == b"w1"
    ttl = await client("TTL", f"job:{id}:worker")
    assert isinstance(ttl, int)
    assert 3_500 < ttl <= 3_600
    assert await client("JOB.UPDATE", id, '{"status": "dead"}') == "-ERR Invalid status transition: running -> dead"
    results = '{"status": "completed", "task_results": [{"task_number": 1, "exit_code": 0}]}'
    for _ in range(2):
        assert await client("JOB.UPDATE", id, results) == "OK"
    again = await client("JOB.UPDATE", id, '{"status": "running"}')
    assert again == "-ERR Invalid status transition: completed -> running"
    shown = await status(client, id)
    assert (shown["status"], shown["task_results"][0]["exit_code"]) == ("completed", 0)
    assert await client("EXISTS", f"job:{id}:worker") == 0


async def test_a_failed_job_is_retried_until_it_is_dead_and_then_by_hand(connect: Connect) -> None:
    client = await registered(connect)
    (id,) = await submitted(await connect("submitter"))
    failed = '{"status": "failed", "error": "Task 1 timed out"}'
    for attempt in (1, 2, 3):
        assert await client("JOB.RETRY", id) == "-ERR Job not in failed status"
        assert (await popped(client))["attempt"] == attempt
        for _ in range(2):  # the same report after the job was enqueued again is still fine
            assert await client("JOB.UPDATE", id, failed) == "OK"
    shown = await status(client, id)
    assert (shown["status"], shown["attempt"], shown["error"]) == ("dead", 3, "Task 1 timed out")
    assert await client("JOB.LIST", "a1", "dead") == [id.encode()]
    assert await client("JOB.RETRY", id) == "OK job re-queued"
    assert (await status(client, id))["status"] == "pending"
    job = await popped(client)
    assert (job["job_id"], job["attempt"]) == (id, 1)
    assert await client("JOB.UPDATE", id, '{"status": "completed"}') == "OK"
    assert json.loads(await client.text("ACTION.STATUS", "a1"))["completed_jobs"] == 1


@pytest.mark.both
async def test_agx_24_a_job_over_its_time_is_taken_away_and_dead_in_the_end(connect: Connect) -> None:
    """A limit far below the time after which a silent worker is dead: the lease would hold for long."""
    client = await registered(connect, "w1")
    (id,) = await submitted(await connect("submitter"), timeout_secs=1, max_attempts=2)
    beats = asyncio.create_task(beating(await connect("w1"), "w1"))
    for attempt in (1, 2):
        assert (await popped(client, "60"))["attempt"] == attempt

    async def dead() -> bool:
        return bool((await status(client, id))["status"] == "dead")

    await eventually(dead)
    await eventually(lambda: flagged(client, id))
    beats.cancel()


@pytest.mark.both
@pytest.mark.parametrize(("seconds", "lease_ms"), [(1, 1_000), (3_600, 90_000)])
async def test_agx_24_no_lease_is_longer_than_its_job_may_run(connect: Connect, seconds: int, lease_ms: int) -> None:
    client = await registered(connect)
    await submitted(await connect("submitter"), timeout_secs=seconds)
    ((_, _, lease),) = await client("JOB.CLAIM", "ready")  # type: ignore[misc, str-unpack]
    assert lease == lease_ms


@pytest.mark.parametrize("renewed_by", ["heartbeat", "token", "server"])
async def test_agx_24_no_renewal_passes_the_time_of_the_job(
    place: Place, server: RespServer, connect: Connect, renewed_by: str
) -> None:
    """A limit far above the time after which a silent worker is dead: nearly all of it is over."""
    client = await registered(connect)
    (id,) = await submitted(await connect("submitter"), timeout_secs=3_600)
    ((_, token, _),) = await client("JOB.CLAIM", "ready")  # type: ignore[misc, str-unpack]
    query(place, "update holdfast.lease set claimed_at = claimed_at - 3580000000, lease_until = lease_until - 85000000")
    if renewed_by == "heartbeat":
        assert await client("WORKER.HEARTBEAT", "w1") == "OK"
    elif renewed_by == "token":
        assert await client("JOB.RENEW", id, token, "600000") == "OK"  # type: ignore[arg-type]
    else:
        await LeaseRenewal(server.gateway).keep()
    assert query(place, "select lease_until - claimed_at from holdfast.lease") == [(3_600_000_000,)]


async def flagged(client: Client, id: str) -> bool:
    listed = await client("WORKERS.LIST")
    assert isinstance(listed, list)
    return id in json.loads(listed[0]).get("flagged", [])  # type: ignore[arg-type]


async def test_agx_25_a_worker_without_the_tool_never_gets_the_job(connect: Connect) -> None:
    client = await registered(connect, "w1", "sort")
    plan = {"plan_id": "p", "tasks": [{"task_number": 1, "command": "jq"}, {"task_number": 2, "command": "sort"}]}
    (id,) = await submitted(await connect("submitter"), plan=plan)
    assert await client("BRPOP", "queue:ready", "0.2") is None
    assert json.loads(await client.text("QUEUE.STATS", "ready"))["unroutable_jobs"] == 1
    able = await registered(connect, "w2", "sort", "jq")
    assert json.loads(await client.text("QUEUE.STATS"))["ready"]["unroutable_jobs"] == 0
    assert (await popped(able))["job_id"] == id


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("true", "true"),
        (True, True),
        (True, "true"),
        ("false", False),
        (2, 2.0),
        (None, None),
        ([1], [1]),
        ("a b", "a b"),
    ],
)
async def test_tags_are_pools_of_workers(connect: Connect, said: object, wanted: object) -> None:
    """A worker says what it is in the same form in which an action asks for it."""
    plain = await registered(connect, "w1", "sort", tags={"gpu": "no"})
    (id,) = await submitted(await connect("submitter"), tags={"gpu": wanted})
    assert await plain("BRPOP", "queue:ready", "0.2") is None
    assert (await popped(await registered(connect, "w2", "sort", tags={"gpu": said})))["job_id"] == id


async def test_agx_26_a_worker_has_no_more_jobs_than_it_may(connect: Connect) -> None:
    client = await registered(connect, "w1", max_concurrent_jobs=2)
    side = await connect("w1")
    ids = await submitted(await connect("submitter"), count=4)
    assert [(await popped(each))["job_id"] for each in (client, side)] == ids[:2]
    assert await client("BRPOP", "queue:ready", "0.2") is None
    waiting = asyncio.create_task(popped(side))
    assert await client("JOB.UPDATE", ids[0], '{"status": "completed"}') == "OK"
    assert (await waiting)["job_id"] == ids[2]


async def test_agx_27_a_worker_that_waits_is_alive(hf: Holdfast, serve: Serve, connect: Connect) -> None:
    """Beats on another connection while a pop is parked, and the parked pop itself, keep it alive."""
    server = await serve(dead_after=SHORT)
    live_long(server)
    client, side = await registered(connect, "w1", port=server.port), await connect("w1", server.port)
    begun = (await hf.workers.get("w1")).heartbeat_at
    parked = asyncio.create_task(client("BRPOP", "queue:ready", "0"))

    async def has_beaten() -> bool:
        return (await hf.workers.get("w1")).heartbeat_at > begun

    await eventually(has_beaten)  # nobody has sent a heartbeat
    assert await side("WORKER.HEARTBEAT", "w1") == "OK"
    assert await side("LPUSH", "queue:ready", "raw") == 1
    assert await parked == b"raw"


@pytest.mark.both
@pytest.mark.parametrize("side", [False, True])
async def test_agx_27_a_heartbeat_keeps_a_worker_and_its_job(place: Place, connect: Connect, side: bool) -> None:
    """Over the connection that popped the job, and over another one while that waits for more."""
    client = await registered(connect, max_concurrent_jobs=2)
    beating_one = await connect("w1") if side else client
    await submitted(await connect("submitter"))
    await popped(client)
    parked_one = asyncio.create_task(client("BRPOP", "queue:ready", "0")) if side else None
    await asyncio.sleep(0)
    before = query(place, LIFE)
    query(place, "update holdfast.worker set heartbeat_at = heartbeat_at - 60000000 where id = 'w1'")
    query(place, "update holdfast.lease set lease_until = lease_until - 60000000")
    assert await beating_one("WORKER.HEARTBEAT", "w1") == "OK"
    after = query(place, LIFE)
    assert [new >= old for old, new in zip(*before, *after, strict=True)] == [True, True]
    if parked_one is not None:
        parked_one.cancel()


LIFE = "select w.heartbeat_at, l.lease_until from holdfast.worker w join holdfast.lease l on l.worker = w.seq"


async def test_agx_12_with_active_jobs_only_force_lets_a_worker_leave(connect: Connect) -> None:
    client, heir = await registered(connect, "w1"), await registered(connect, "w2")
    (id,) = await submitted(await connect("submitter"))
    await popped(client)
    assert (await client.text("WORKER.UNREGISTER", "w1")).startswith("-ERR Worker has 1 active jobs")
    assert await client("WORKER.UNREGISTER", "w1", "FORCE") == "OK"
    assert (await popped(heir))["job_id"] == id


async def test_agx_28_a_new_epoch_keeps_the_jobs_unless_it_releases_them(connect: Connect) -> None:
    old = await registered(connect, "w1")
    (id,) = await submitted(await connect("submitter"))
    await popped(old)
    await old.close()
    new = await registered(connect, "w1")
    assert await new("JOB.UPDATE", id, '{"status": "running"}') == "OK"
    assert await new("WORKER.REGISTER", worker("w1"), "RELEASE") == "OK worker_id=w1 heartbeat_interval=30"
    assert (await status(new, id))["status"] == "pending"
    assert (await popped(new))["job_id"] == id


async def test_queues_are_tried_in_their_order(connect: Connect) -> None:
    client = await registered(connect, "w1", max_concurrent_jobs=9)
    for queue in ("low", "high"):
        await client("LPUSH", f"queue:{queue}", f"from {queue}")
    for expected in (b"from high", b"from low"):
        assert await client("BRPOP", "queue:high", "queue:low", "1") == expected
    await client("CLIENT", "POPFORM", "ARRAY")
    await client("LPUSH", "queue:low", b"\x00\xff")
    assert await client("BRPOP", "queue:high", "queue:low", "1") == [b"queue:low", b"\x00\xff"]
    assert await client("BRPOP", "queue:high", "0.01") is None
    assert "Use BRPOP" in await client.text("BLPOP", "queue:high", "1")


async def test_raw_elements_are_acknowledged_by_lrem(connect: Connect) -> None:
    client = await registered(connect)
    assert await client("LPUSH", "queue:in", "a", "b") == 2
    assert await client("BRPOPLPUSH", "queue:in", "queue:processing", "1") == b"a"
    assert await client("LLEN", "queue:processing") == 1
    assert await client("LRANGE", "queue:processing", "0", "-1") == [b"a"]
    assert await client("LREM", "queue:processing", "1", "x") == 0
    assert await client("LREM", "queue:processing", "1", "a") == 1
    assert await client("LLEN", "queue:processing") == 0
    assert await client("LLEN", "queue:in") == 1
    assert await client("RPOPLPUSH", "queue:in", "queue:processing") == b"b"


async def test_honest_workers_claim_with_tokens(connect: Connect) -> None:
    client = await registered(connect, "w1", max_concurrent_jobs=3)
    ids = [await client.text("JOB.ENQUEUE", "mail", "send", json.dumps({"to": n})) for n in range(3)]
    claimed = await client("JOB.CLAIM", "mail", "COUNT", "5", "BLOCK", "1000")
    assert isinstance(claimed, list)
    jobs = [json.loads(each[0]) for each in claimed]  # type: ignore[index, arg-type]
    tokens = [bytes(each[1]).decode() for each in claimed]  # type: ignore[index, arg-type]
    assert [(job["job_id"], job["payload"]) for job in jobs] == [(id, {"to": n}) for n, id in enumerate(ids)]
    assert {each[2] for each in claimed} == {90_000}  # type: ignore[index]
    assert await client("JOB.RENEW", ids[0], tokens[0], "60000") == "OK"
    assert await client("JOB.PROGRESS", ids[0], tokens[0], '{"progress_percent": 5}') == "OK"
    assert await client("JOB.COMPLETE", ids[0], tokens[0], '{"sent": true}') == "OK"
    assert (await status(client, ids[0]))["result"] == {"sent": True}
    assert (await client.text("JOB.COMPLETE", ids[0], tokens[0])).startswith("-LEASELOST ")
    assert (await client.text("JOB.RENEW", ids[1], "9.9")).startswith("-LEASELOST ")
    assert await client("JOB.RELEASE", ids[1], tokens[1]) == "OK"
    assert await client("JOB.FAIL", ids[2], tokens[2], "no such address", "NEVER") == "OK"
    assert (await status(client, ids[2]))["error"] == "no such address"
    again = await client("JOB.CLAIM", "mail")
    assert isinstance(again, list)
    token = bytes(again[0][1]).decode()  # type: ignore[index, arg-type]
    assert await client("JOB.SNOOZE", ids[1], token, "60000") == "OK"
    assert await client("JOB.CLAIM", "mail") == []


async def test_a_worker_verifies_what_it_says(connect: Connect) -> None:
    client, other = await registered(connect, "w1", "sort"), await registered(connect, "w2", "sort")
    challenge = '{"command": "sort", "args": ["--version"]}'
    answer = await other.text("WORKER.VERIFY", "w1", challenge)
    assert answer.startswith("OK job_id=")
    assert await other("BRPOP", "queue:ready", "0.2") is None
    assert (await popped(client))["job_id"] == answer.partition("=")[2]
    assert await other("WORKER.VERIFY", "nobody", challenge) == "-ERR Worker not registered: nobody"


async def test_the_next_jobs_are_shown(connect: Connect) -> None:
    client = await registered(connect)
    ids = await submitted(await connect("submitter"), count=3)
    shown = await client("QUEUE.PEEK", "ready", "2")
    assert isinstance(shown, list)
    assert [json.loads(each)["job_id"] for each in shown] == ids[:2]  # type: ignore[arg-type]
    assert json.loads(await client.text("METRICS"))["workers"]["active"] == 1
    assert len(await client("JOBS.SEARCH", "pending") or []) == 3  # type: ignore[arg-type]
    assert json.loads(await client.text("JOB.GET", ids[0]))["input"] == 0


async def test_a_key_of_a_tenant_gets_and_ends_jobs_of_that_tenant_alone(hf: Holdfast, connect: Connect) -> None:
    database = await core_of(hf).opened()
    secrets = {tenant: f"{number:02x}" * 32 for number, tenant in enumerate(("acme", "other"), 0x70)}
    for tenant, secret in secrets.items():
        rights = KeyPrincipal(tenant, digest_of(secret.encode()), (tenant,), ("ready",), tenant=tenant, stored=True)
        await database.transact(keys.add_key, rights)
    clients = {name: await connect(None) for name in secrets}
    for name, client in clients.items():
        assert await client("AUTH", secrets[name]) == "OK"
        assert (await client.text("WORKER.REGISTER", worker(name, max_concurrent_jobs=9))).startswith("OK")
    acme, other = clients["acme"], clients["other"]
    await other("LPUSH", "queue:ready", "a", "b")
    waiting = asyncio.create_task(acme("BRPOP", "queue:ready", "30"))
    await (await connect("submitter"))("LPUSH", "queue:ready", "nobody's")
    beside = await connect(None)
    assert await beside("AUTH", secrets["acme"]) == "OK"
    await beside("LPUSH", "queue:ready", "c")
    assert await waiting == b"c"
    assert await acme("BRPOP", "queue:ready", "0.05") is None
    assert [await other("BRPOP", "queue:ready", "30") for _ in "ab"] == [b"a", b"b"]
    assert await acme("LREM", "queue:processing", "1", "a") == 0
    assert await other("LREM", "queue:processing", "1", "a") == 1
    challenge = json.dumps({"command": "sort"})
    assert await acme("WORKER.VERIFY", "other", challenge) == "-ERR Worker not registered: other"
    assert (await acme.text("WORKER.VERIFY", "acme", challenge)).startswith("OK job_id=")


async def test_a_key_of_one_queue_sees_and_verifies_on_no_other(hf: Holdfast, connect: Connect) -> None:
    database = await core_of(hf).opened()
    rights = KeyPrincipal("narrow", digest_of(b"71" * 32), ("narrow",), ("mine",), stored=True)
    await database.transact(keys.add_key, rights)
    client, submitter = await connect(None), await registered(connect)
    assert await client("AUTH", "71" * 32) == "OK"
    for queue in ("ready", "mine"):
        await submitter("LPUSH", f"queue:{queue}", "data")
    assert {*json.loads(await client.text("METRICS"))["queues"]} == {"mine"}
    assert await client("WORKER.VERIFY", "w1", "{}") == "-NOPERM this key may not use the queue ready"


async def test_a_status_that_is_not_text_is_refused(connect: Connect) -> None:
    client, submitter = await registered(connect), await connect("submitter")
    (id,) = await submitted(submitter)
    await popped(client)
    refused = "-ERR Invalid status: it is text, as running, completed or failed"
    assert await client("JOB.UPDATE", id, json.dumps({"status": []})) == refused
    assert await client("JOB.UPDATE", id, json.dumps({"status": "completed"})) == "OK"
    assert await client("JOB.UPDATE", id, json.dumps({"status": {}})) == refused


async def test_a_job_that_is_not_of_an_action_is_known_to_retry(connect: Connect) -> None:
    client = await registered(connect)
    id = await client.text("JOB.ENQUEUE", "mail", "send", "{}")
    assert await client("JOB.RETRY", id) == "-ERR Job not in failed status"
    ((_, token, _),) = await client("JOB.CLAIM", "mail")  # type: ignore[misc, str-unpack]
    assert await client("JOB.FAIL", id, token, "no", "NEVER") == "OK"  # type: ignore[arg-type]
    assert "for this one: holdfast jobs retry " in await client.text("JOB.RETRY", id)
    assert await client("JOB.RETRY", "job_0") == "-ERR Job not found: job_0"
