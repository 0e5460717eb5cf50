"""Plain data commands answer what a real redis-server answers, for the same calls in the same order.

Where the gateway differs on purpose, `DIFFERENT` says so, and docs/resp.md lists it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator

import pytest
import redis.asyncio

from holdfast import Holdfast
from holdfast.agw.link import GatewayAddress, Link
from holdfast.app import core_of
from holdfast.resp import keyspace
from holdfast.resp.keyspace import SpacedKey
from holdfast.resp.server import RespServer
from tests.resp.conftest import KEYS, Client, Connect
from tests.support.redis import running_redis

NAMES = ("a", "b", "c", "l", "m", "h", "z")
VALUES = ("", "1", "-7", "x", "y", "9223372036854775807", "3.5", "a b", "\x00\xff", "nan", "é")
NUMBERS = ("0", "1", "-1", "2", "-3", "100", "x", "1.5", "-100")
SCORES = ("0", "1", "-2.5", "1e3", "inf", "-inf", "nan", "x", "3")
PATTERNS = ("*", "a", "?", "[a-c]", "[^a]", "z*", "\\a", "[", "*h*")
SHAPES: dict[str, tuple[tuple[str, ...], ...]] = {
    "SET": (NAMES, VALUES),
    "GET": (NAMES,),
    "DEL": (NAMES, NAMES),
    "EXISTS": (NAMES, NAMES),
    "TYPE": (NAMES,),
    "TTL": (NAMES,),
    "EXPIRE": (NAMES, ("1000", "0", "-1", "x")),
    "PERSIST": (NAMES,),
    "KEYS": (PATTERNS,),
    "HSET": (NAMES, VALUES, VALUES),
    "HGET": (NAMES, VALUES),
    "HDEL": (NAMES, VALUES, VALUES),
    "HGETALL": (NAMES,),
    "HEXISTS": (NAMES, VALUES),
    "HLEN": (NAMES,),
    "HINCRBY": (NAMES, VALUES, NUMBERS),
    "ZADD": (NAMES, SCORES, VALUES),
    "ZRANGE": (NAMES, NUMBERS, NUMBERS),
    "ZRANGEBYSCORE": (NAMES, (*SCORES, "(1", "(0"), (*SCORES, "(3")),
    "ZREM": (NAMES, VALUES),
    "ZSCORE": (NAMES, VALUES),
    "ZCARD": (NAMES,),
    "LPUSH": (NAMES, VALUES, VALUES),
    "RPUSH": (NAMES, VALUES),
    "RPOP": (NAMES,),
    "LPOP": (NAMES,),
    "LLEN": (NAMES,),
    "LRANGE": (NAMES, NUMBERS, NUMBERS),
    "LREM": (NAMES, NUMBERS, VALUES),
    "RPOPLPUSH": (NAMES, NAMES),
}
OPTIONS: dict[str, tuple[tuple[str, ...], ...]] = {
    "SET": (("EX", "100"), ("NX",), ("XX",), ("KEEPTTL",), ("GET",), ("EX", "0"), ("EX", "x"), ("NX", "XX"), ("WHAT",)),
    "ZRANGE": (("WITHSCORES",), ("WHAT",)),
    "ZRANGEBYSCORE": (("WITHSCORES",), ("LIMIT", "0", "1"), ("LIMIT", "1", "-1"), ("LIMIT", "-1", "1"), ("WHAT",)),
    "HSET": (("odd",), ("f", "v")),
}
UNORDERED = {"KEYS"}
PAIRED = {"HGETALL"}  # Redis keeps the order in which fields came, the gateway that of their bytes


@pytest.fixture(scope="session")
def redis_port() -> Iterator[int]:
    with running_redis() as port:
        yield port


@pytest.fixture
async def real(redis_port: int) -> AsyncIterator[Client]:
    client = Client(await Link.open(GatewayAddress("127.0.0.1", redis_port)))
    await client("FLUSHALL")
    yield client
    await client.close()


def call(chance: random.Random) -> tuple[bytes, ...]:
    name = chance.choice(sorted(SHAPES))
    words = [name, *(chance.choice(each) for each in SHAPES[name])]
    if name in OPTIONS and chance.random() < 0.4:
        words += chance.choice(OPTIONS[name])
    return tuple(word.encode("latin-1") for word in words)


def comparable(words: tuple[bytes, ...], answer: object) -> object:
    name = words[0].decode()
    if isinstance(answer, list) and name in UNORDERED:
        return sorted(answer)
    if isinstance(answer, list) and name in PAIRED:
        return dict(zip(answer[::2], answer[1::2], strict=True))
    return answer


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(8))
async def test_the_same_calls_have_the_same_replies(connect: Connect, real: Client, seed: int) -> None:
    ours = await connect()
    chance = random.Random(seed)
    done: list[tuple[bytes, ...]] = []
    for _ in range(250):
        words = call(chance)
        done.append(words)
        mine, theirs = [comparable(words, await client(*words)) for client in (ours, real)]
        assert mine == theirs, f"seed {seed}, call {len(done)}: {words}\nafter {done[-12:-1]}"


async def test_two_who_write_the_same_key_lose_nothing(connect: Connect) -> None:
    clients = [await connect(name) for name in ("w1", "w2", "w3")]
    await asyncio.gather(*(client("LPUSH", "same", f"{n}-{i}") for n, client in enumerate(clients) for i in range(20)))
    await asyncio.gather(*(client("HINCRBY", "count", "f", "1") for client in clients for _ in range(20)))
    assert await clients[0]("LLEN", "same") == 60
    assert await clients[0]("HGET", "count", "f") == b"60"
    taken = await asyncio.gather(*(client("RPOP", "same") for client in clients for _ in range(25)))
    assert len({each for each in taken if each is not None}) == 60


async def test_what_has_expired_is_not_there(hf: Holdfast, connect: Connect) -> None:
    client = await connect()
    assert await client("SET", "short", "1", "PX", "1") == "OK"
    while await client("GET", "short") is not None:
        pass
    assert await client("TTL", "short") == -2
    assert await client("HSET", "short", "f", "v") == 1  # it may be of another kind now
    await client("PEXPIRE", "short", "1")
    while await client("EXISTS", "short"):
        pass
    database = await core_of(hf).opened()
    assert await database.transact(keyspace.prune, limit=100) == 1
    assert await database.transact(keyspace.parts, SpacedKey("", b"short"), "hash") == []


async def test_scan_finds_every_key_once(connect: Connect) -> None:
    client = await connect()
    for number in range(60):
        await client("SET", f"key-{number}", "1")
    found: list[bytes] = []
    cursor = "0"
    while True:
        answer = await client("SCAN", cursor, "MATCH", "key-*", "COUNT", "7")
        assert isinstance(answer, list)
        cursor, part = bytes(answer[0]).decode(), answer[1]  # type: ignore[arg-type]
        found += part  # type: ignore[arg-type]
        if cursor == "0":
            break
    assert sorted(found) == sorted(f"key-{number}".encode() for number in range(60))


async def test_keys_of_views_cannot_be_written(connect: Connect) -> None:
    client = await connect()
    for words in (("SET", "worker:w1:alive", "1"), ("DEL", "job:1:worker"), ("HSET", "plan:p", "a", "b")):
        assert "are live views" in str(await client(*words))


async def test_a_hash_has_at_most_so_many_fields(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyspace, "MOST_FIELDS", 3)
    client = await connect()
    assert await client("HSET", "h", "a", "1", "b", "2") == 2
    assert await client("HSET", "h", "c", "1", "d", "2") == "-ERR a hash has at most 3 fields"
    assert await client("HLEN", "h") == 2


@pytest.mark.parametrize("protocol", [2, 3])
async def test_agx_03_a_stock_client_can_use_it(server: RespServer, protocol: int) -> None:
    client = redis.asyncio.Redis(port=server.port, password=KEYS["w1"], protocol=protocol)
    async with client:
        assert await client.ping()
        assert await client.set("a", b"\x00\xff", ex=100)
        assert await client.get("a") == b"\x00\xff"
        assert 90 < await client.ttl("a") <= 100
        assert await client.lpush("l", "1", "2") == 2
        assert await client.lrange("l", 0, -1) == [b"2", b"1"]
        assert await client.hset("h", mapping={"a": "1", "b": "2"}) == 2
        assert await client.hgetall("h") == {b"a": b"1", b"b": b"2"}
        assert await client.zadd("z", {"a": 1.5, "b": 1}) == 2
        assert await client.zscore("z", "a") == 1.5
        assert await client.zrange("z", 0, -1) == [b"b", b"a"]
        assert sorted([key async for key in client.scan_iter()]) == [b"a", b"h", b"l", b"z"]
        async with client.pipeline() as pipe:  # with MULTI, as it does by default
            pipe.set("p", "1")
            pipe.get("p")
            assert await pipe.execute() == [True, b"1"]
