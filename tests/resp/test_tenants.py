"""Tenants behind one gateway: what belongs to another one answers as if it did not exist, to every command there is."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from holdfast import Holdfast
from holdfast.agw.link import GatewayAddress, Link
from holdfast.models.script import Script
from holdfast.models.steps import say
from holdfast.resp.client import KeyPrincipal, digest_of
from holdfast.resp.dispatch import TABLE
from holdfast.resp.server import RespServer
from tests.resp.conftest import Client, Serve
from tests.resp.test_jobs import PLAN, submitted
from tests.resp.test_workers import worker

OWNER, INTRUDER = "aa" * 32, "bb" * 32


class Names(NamedTuple):
    """What commands are called with: things of the owner, or of nobody."""

    worker: str
    plan: str
    action: str
    job: str
    token: str
    queue: str
    run: str
    key: str


GHOST = Names(
    "ghost",
    "ghost-plan",
    "ghost-action",
    f"job_{'9' * 32}",
    "1.999",
    "ghost-queue",
    "9" * 8 + "-9999" * 3 + "-" + "9" * 12,
    "ghost:",
)
CHALLENGE = json.dumps({"command": "sort"})
DONE = json.dumps({"status": "completed"})
Asked = Callable[[Names], tuple[str, ...]]

# What may have something of the owner in it stands first: what writes makes things of the intruder's own.
CALLS: dict[str, Asked] = {
    "KEYS": lambda _: ("*",),
    "SCAN": lambda _: ("0", "COUNT", "1000"),
    "WORKERS.LIST": lambda _: ("ALL",),
    "CAPABILITY.SEARCH": lambda _: ("sort",),
    "JOBS.LIST": lambda _: (),
    "JOBS.SEARCH": lambda _: ("pending",),
    "PLAN.LIST": lambda _: (),
    "ACTION.LIST": lambda _: (),
    "METRICS": lambda _: (),
    "INFO": lambda _: (),
    "COMMAND": lambda _: ("COUNT",),
    "QUEUE.STATS": lambda its: (its.queue,),
    "QUEUE.PEEK": lambda its: (its.queue,),
    "PLAN.GET": lambda its: (its.plan,),
    "ACTION.STATUS": lambda its: (its.action,),
    "ACTION.GET": lambda its: (its.action,),
    "JOB.STATUS": lambda its: (its.job,),
    "JOB.GET": lambda its: (its.job,),
    "JOB.LIST": lambda its: (its.action,),
    "GET": lambda its: (f"{its.key}string",),
    "TTL": lambda its: (f"worker:{its.worker}:alive",),
    "PTTL": lambda its: (f"worker:{its.worker}:stats",),
    "TYPE": lambda its: (f"queue:{its.queue}",),
    "EXISTS": lambda its: (
        f"queue:{its.queue}",
        f"worker:{its.worker}:metadata",
        f"job:{its.job}:status",
        f"job:{its.job}:worker",
        f"plan:{its.plan}",
        f"{its.key}list",
    ),
    "SMEMBERS": lambda _: ("capability:sort:workers",),
    "HGETALL": lambda its: (f"{its.key}hash",),
    "HGET": lambda its: (f"{its.key}hash", "f"),
    "HEXISTS": lambda its: (f"{its.key}hash", "f"),
    "HLEN": lambda its: (f"{its.key}hash",),
    "ZRANGE": lambda its: (f"{its.key}zset", "0", "-1"),
    "ZRANGEBYSCORE": lambda its: (f"{its.key}zset", "-inf", "inf"),
    "ZSCORE": lambda its: (f"{its.key}zset", "m"),
    "ZCARD": lambda its: (f"{its.key}zset",),
    "LLEN": lambda its: (f"queue:{its.queue}",),
    "LRANGE": lambda its: (f"queue:{its.queue}", "0", "-1"),
    "RUN.RESULT": lambda its: (its.run, "BLOCK", "1"),
    "RUN.EVENTS": lambda its: (its.run, "0"),
    "BRPOP": lambda its: (f"queue:{its.queue}", "0.01"),
    "BRPOPLPUSH": lambda its: (f"queue:{its.queue}", "queue:processing", "0.01"),
    "RPOPLPUSH": lambda its: (f"queue:{its.queue}", "queue:processing"),
    "RPOP": lambda its: (f"queue:{its.queue}",),
    "LPOP": lambda its: (f"{its.key}list",),
    "BLPOP": lambda its: (f"{its.key}list", "1"),
    "LREM": lambda its: ("queue:processing", "1", its.job),
    "JOB.CLAIM": lambda its: (its.queue, "COUNT", "9"),
    "JOB.UPDATE": lambda its: (its.job, DONE),
    "JOB.RETRY": lambda its: (its.job,),
    "JOB.RENEW": lambda its: (its.job, its.token),
    "JOB.COMPLETE": lambda its: (its.job, its.token),
    "JOB.FAIL": lambda its: (its.job, its.token, "no"),
    "JOB.SNOOZE": lambda its: (its.job, its.token, "1"),
    "JOB.RELEASE": lambda its: (its.job, its.token),
    "JOB.PROGRESS": lambda its: (its.job, its.token, "{}"),
    "WORKER.REGISTER": lambda its: (worker(its.worker),),
    "WORKER.HEARTBEAT": lambda its: (its.worker,),
    "WORKER.UNREGISTER": lambda its: (its.worker, "FORCE"),
    "WORKER.VERIFY": lambda its: (its.worker, CHALLENGE),
    "PLAN.DELETE": lambda its: (its.plan,),
    "DEL": lambda its: (f"{its.key}string", f"{its.key}list"),
    "HDEL": lambda its: (f"{its.key}hash", "f"),
    "ZREM": lambda its: (f"{its.key}zset", "m"),
    "EXPIRE": lambda its: (f"{its.key}string", "1"),
    "PEXPIRE": lambda its: (f"{its.key}string", "1"),
    "PERSIST": lambda its: (f"{its.key}string",),
    "ACTION.SUBMIT": lambda its: (json.dumps({"action_id": its.action, "plan_id": its.plan, "inputs": [1]}),),
    "PLAN.SUBMIT": lambda its: (json.dumps({**PLAN, "plan_id": its.plan}),),
    "RUN.START": lambda its: ("guide", "hi", "SESSION", f"{its.key}session", "KEY", f"{its.key}once"),
    "JOB.ENQUEUE": lambda its: (its.queue, "mail.send", "{}"),
    "LPUSH": lambda its: (f"queue:{its.queue}", "mine"),
    "RPUSH": lambda its: (f"{its.key}list", "mine"),
    "SET": lambda its: (f"{its.key}string", "mine", "GET"),
    "HSET": lambda its: (f"{its.key}hash", "f", "mine"),
    "HINCRBY": lambda its: (f"{its.key}hash", "n", "1"),
    "ZADD": lambda its: (f"{its.key}zset", "1", "mine"),
    "AUTH": lambda its: (its.worker, INTRUDER),
    "HELLO": lambda its: ("3", "AUTH", its.worker, INTRUDER),
    "CLIENT": lambda _: ("GETNAME",),
    "ACL": lambda _: ("WHOAMI",),
    "DBSIZE": lambda _: (),
    "PING": lambda _: (),
    "ECHO": lambda _: ("x",),
    "SELECT": lambda _: ("0",),
    "MULTI": lambda _: (),
    "EXEC": lambda _: (),
    "DISCARD": lambda _: (),
    "RESET": lambda _: (),
    "QUIT": lambda _: (),
}


@asynccontextmanager
async def opened(server: RespServer, key: str) -> AsyncIterator[Client]:
    client = Client(await Link.open(GatewayAddress("127.0.0.1", server.port)))
    try:
        assert await client("AUTH", key) == "OK"
        yield client
    finally:
        await client.close()


async def owned(client: Client) -> Names:
    """Something of each sort, all of it called zebra."""
    await client("WORKER.REGISTER", worker("zebra", max_concurrent_jobs=2))
    await client("WORKER.HEARTBEAT", "zebra", '{"active_jobs": 1}')
    plan = {**PLAN, "plan_id": "zebra-plan"}
    job, _ = await submitted(client, "zebra-action", 2, plan, queue="zebra-queue")
    ((_, token, _),) = await client("JOB.CLAIM", "zebra-queue")  # type: ignore[misc, str-unpack]
    await client("LPUSH", "queue:zebra-queue", "zebra")
    await client("SET", "zebra:string", "zebra")
    await client("HSET", "zebra:hash", "f", "zebra")
    await client("ZADD", "zebra:zset", "1", "m")
    await client("RPUSH", "zebra:list", "zebra")
    run = await client.text("RUN.START", "guide", "hello", "SESSION", "zebra:session", "KEY", "zebra:once")
    return Names("zebra", "zebra-plan", "zebra-action", job, bytes(token).decode(), "zebra-queue", run, "zebra:")  # type: ignore[arg-type]


READ = (
    "PLAN.GET", "ACTION.GET", "JOB.STATUS", "JOB.GET", "GET", "HGETALL", "ZRANGE", "LRANGE", "LLEN", "EXISTS",
    "QUEUE.STATS", "QUEUE.PEEK", "RUN.EVENTS",
)  # fmt: skip


async def standing(client: Client, its: Names) -> list[str]:
    """How everything of the owner stands."""
    found = [await client.text(name, *CALLS[name](its)) for name in READ]
    return [*found, await client.text("LRANGE", "zebra:list", "0", "-1"), await client.text("KEYS", "*:*")]


def told(name: str, reply: Any, its: Names) -> str:
    """A reply without the names that it was asked with, and without what differs each time."""
    text = repr(json.loads(reply)["queues"] if name == "METRICS" else reply)
    for field in its:
        text = text.replace(field, "<it>")
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32}", "<id>", text)
    return re.sub(r"\d+(\.\d+)*", "<n>", text) if name == "INFO" else text


@pytest.mark.parametrize("tenant", ["other", pytest.param("", marks=pytest.mark.long)])
async def test_what_belongs_to_another_tenant_does_not_exist(hf: Holdfast, serve: Serve, tenant: str) -> None:
    assert set(CALLS) == set(TABLE), "a command is missing here"
    hf.script("guide", Script(say("hello")))
    hf.agent("guide", model="scripted:guide")
    server = await serve(
        principals=(
            KeyPrincipal("zebra", digest_of(OWNER.encode()), ("zebra",), tenant="acme"),
            KeyPrincipal("fox", digest_of(INTRUDER.encode()), ("fox",), tenant=tenant),
        )
    )
    differs = {}
    async with opened(server, OWNER) as owner, opened(server, INTRUDER) as intruder:
        its = await owned(owner)
        before = await standing(owner, its)
        assert str(await intruder("WORKER.REGISTER", worker("fox", max_concurrent_jobs=9))).startswith("OK")
        for name in CALLS:
            answers = [await answered(server, name, each) for each in (its, GHOST)]
            if answers[0] != answers[1] or "zebra" in answers[0]:
                differs[name] = answers
        assert not differs
        assert await standing(owner, its) == before


async def answered(server: RespServer, name: str, asked: Names) -> str:
    async with opened(server, INTRUDER) as client:
        return told(name, await client(name, *CALLS[name](asked)), asked)
