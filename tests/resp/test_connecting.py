"""Who comes in, and what a connection may do before it has shown a key."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import stat
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from redis.asyncio import Redis

from holdfast import Holdfast
from holdfast.agw.link import GatewayAddress, Link
from holdfast.app import core_of
from holdfast.errors import UsageError
from holdfast.resp import keys
from holdfast.resp.client import KeyPrincipal, digest_of, from_table, matching, shared
from holdfast.resp.dispatch import TABLE
from holdfast.resp.frames import BEFORE_AUTH
from holdfast.resp.options import DEAD_AFTER, RespOptions
from holdfast.resp.server import RespServer
from tests.resp.conftest import KEYS, Client, Connect, Raw, Serve, request
from tests.resp.test_workers import worker
from tests.support.apps import eventually

OpenRaw = Callable[[], Awaitable[Raw]]
NOAUTH = "-ERR NOAUTH Authentication required"
SECRET = "5e" * 32


async def add_key(hf: Holdfast, name: str, key: str = SECRET, **options: tuple[str, ...]) -> None:
    database = await core_of(hf).opened()
    principal = KeyPrincipal(name, digest_of(key.encode()), (name,), stored=True, **options)  # type: ignore[arg-type]
    await database.transact(keys.add_key, principal)


async def test_agx_01_nothing_is_answered_before_auth(connect: Connect) -> None:
    client = await connect(None)
    for words in (("PING",), ("GET", "a"), ("WORKER.REGISTER", "{}"), ("NO.SUCH",), ("SET", "a")):
        assert await client(*words) == NOAUTH
    assert await client("AUTH") == "-ERR AUTH requires exactly one argument"
    assert await client("AUTH", "a", "b", "c") == "-ERR AUTH requires exactly one argument"
    assert await client("AUTH", "") == "-ERR AUTH key cannot be empty"
    assert await client("AUTH", "0" * 64) == "-ERR Invalid authentication key"
    assert await client("PING") == NOAUTH
    assert await client("AUTH", KEYS["w1"]) == "OK"
    assert await client("PING") == "PONG"
    assert await client("PING", "hello") == b"hello"
    assert await client("PING", "a", "b") == "-ERR PING accepts 0 or 1 arguments"


async def test_agx_02_a_key_with_something_behind_it_is_another_key(serve: Serve, connect: Connect) -> None:
    client = await connect(None)
    key = bytes.fromhex(KEYS["w1"])
    for wrong in (key + b"\0", key + b"\0" * 32, key[:-1], KEYS["w1"].encode() + b"00"):
        assert await client("AUTH", wrong) == "-ERR Invalid authentication key"
    assert await client("AUTH", key) == "OK"  # the bytes themselves are the same key


def test_agx_02_what_is_compared_says_nothing_about_a_prefix() -> None:
    """Digests are compared, and two keys with a long common prefix have digests without one."""
    known = from_table(KEYS)
    near = KEYS["w1"][:-1] + "f"
    assert {len(digest_of(key.encode())) for key in (*KEYS.values(), near, "short", "x" * 500)} == {64}
    assert digest_of(near.encode())[:4] != known[0].digest[:4]
    assert matching(digest_of(near.encode()), known) is None
    assert matching(digest_of(KEYS["w1"].encode()), known) == known[0]


async def test_agx_02_six_wrong_keys_in_a_minute_are_throttled(connect: Connect) -> None:
    """A guess after them waits, costs its connection, and does not say whether it was wrong."""
    client = await connect(None)
    for _ in range(5):
        assert await client("AUTH", "0" * 64) == "-ERR Invalid authentication key"
    refused = "-ERR Too many authentication failures; try again in a minute"
    for _ in range(2):
        began = asyncio.get_running_loop().time()
        assert await client("AUTH", "0" * 64) == refused
        assert asyncio.get_running_loop().time() - began >= 0.9  # seconds
        with pytest.raises(ConnectionError):
            await client("AUTH", "0" * 64)
        client = await connect(None)


async def test_a_right_key_comes_in_however_many_wrong_ones_its_address_has_shown(hf: Holdfast, serve: Serve) -> None:
    """A proxy and the nodes of a cluster are one address for everybody behind them."""
    await add_key(hf, "stored")
    server = await serve(shared=shared("a key that all of us have"))
    links = [await Link.open(GatewayAddress("127.0.0.1", server.port)) for _ in range(24)]
    clients = [Client(link) for link in links]
    for _ in range(5):
        await clients[0]("AUTH", "0" * 64)
    guesses = [asyncio.create_task(each("AUTH", "1" * 64)) for each in clients[:20]]
    right = [KEYS["w1"]], [SECRET], ["worker-7", "a key that all of us have"]
    for client, words in zip(clients[20:], right, strict=False):
        assert await client("AUTH", *words) == "OK"
        assert await client("PING") == "PONG"
    assert isinstance(await clients[23]("HELLO", "2", "AUTH", "default", KEYS["w2"]), list)
    assert await clients[23]("PING") == "PONG"
    assert {await each for each in guesses} == {"-ERR Too many authentication failures; try again in a minute"}
    for client in clients:
        await client.close()


async def test_one_key_cannot_use_up_the_calls_of_another(connect: Connect) -> None:
    first, second = await connect("w1"), await connect("w2")
    said = [str(await first("ACTION.SUBMIT", "{")) for _ in range(101)]
    limited = "-ERR ACTION.SUBMIT is limited to 100 calls a minute for each key; try again later"
    assert said[-1] == limited
    assert limited not in said[:100]
    assert await second("ACTION.SUBMIT", "{") == said[0]


async def test_a_silent_client_is_let_go_later_than_a_silent_worker(serve: Serve) -> None:
    assert RespOptions().idle > DEAD_AFTER
    server = await serve(idle=timedelta(milliseconds=50))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request("AUTH", KEYS["w1"]))
    assert await reader.read() == b"+OK\r\n", "and then the end"
    writer.close()


async def test_agx_04_pipelined_requests_are_answered_in_order_however_they_are_cut(raw: OpenRaw) -> None:
    stream = request("AUTH", KEYS["w1"]) + b"".join(request("ECHO", str(n)) for n in range(5)) + request("QUIT")
    expected = b"+OK\r\n" + b"".join(b"$1\r\n%d\r\n" % n for n in range(5)) + b"+OK\r\n"
    whole = await raw()
    await whole.send(stream)
    assert await whole.rest() == expected
    for place in range(0, len(stream), 9):
        halves = await raw()
        await halves.send(stream[:place])
        await asyncio.sleep(0)
        await halves.send(stream[place:])
        assert await halves.rest() == expected


@pytest.mark.parametrize(
    "data", [b"*-2\r\n", b"*1\r\n*1\r\n", b"*1\r\n$-1\r\n", b"*4294967295\r\n", b"*1\r\n$99999999\r\n", b"*1\r\n:5\r\n"]
)
@pytest.mark.parametrize("known", [True, False])
async def test_agx_05_what_is_not_a_request_is_answered_and_closed(raw: OpenRaw, data: bytes, known: bool) -> None:
    client = await raw()
    await client.send(request("AUTH", KEYS["w1"]) * known + data + request("PING"))
    answer = await client.rest()
    assert answer.removeprefix(b"+OK\r\n").startswith(b"-ERR Protocol error: ")
    assert b"PONG" not in answer


async def test_agx_05_an_unknown_command_is_named_and_the_connection_survives(connect: Connect) -> None:
    client = await connect()
    assert await client("NO.SUCH", "a") == "-ERR unknown command 'NO.SUCH'"
    assert await client(b"\xff\r\n" * 100) == f"-ERR unknown command '{'�??' * 21}�'"
    assert await client("PING") == "PONG"


FOREIGN = Path(__file__).parent / "foreign"  # what such programs sent to a gateway, up to what it refused


@pytest.mark.parametrize(
    ("file", "library"),
    [
        ("celery_worker", "Celery"),
        ("celery_send", "Celery"),
        ("rq_worker", "RQ"),
        ("rq_send", "RQ"),
        ("bullmq_add", "BullMQ"),
        ("bullmq_worker", "BullMQ"),
    ],
)
async def test_who_takes_the_gateway_for_a_redis_is_told_what_it_is(raw: OpenRaw, file: str, library: str) -> None:
    client = await raw()
    await client.send((FOREIGN / f"{file}.resp").read_bytes() + request("ECHO", "the end"))
    answer = await client.until(b"the end\r\n")
    assert (
        f": this is Holdfast's gateway for workers, not a Redis for {library}; see docs/resp.md\r\n".encode() in answer
    )


async def test_an_error_reaches_a_client_that_is_still_sending(raw: OpenRaw) -> None:
    client = await raw()
    client.writer.write(b"*4294967295\r\n" + b"x" * (8 << 20))
    answer = await client.rest()
    assert answer.startswith(b"-ERR Protocol error: ")


@pytest.mark.parametrize("known", [True, False])
async def test_http_is_closed(raw: OpenRaw, known: bool) -> None:
    client = await raw()
    body = request("SET", "stolen", "1")
    http = b"POST / HTTP/1.1\r\nHost: 127.0.0.1:6380\r\nContent-Length: %d\r\n\r\n" % len(body)
    await client.send(request("AUTH", KEYS["w1"]) * known + http + body)
    assert await client.rest() == b"+OK\r\n" * known


async def test_a_line_of_words_needs_a_key_like_everything_else(raw: OpenRaw) -> None:
    client = await raw()
    await client.send(b"PING\r\nPING\r\n")
    assert await client.rest() == b"-ERR NOAUTH Authentication required\r\n"
    client = await raw()
    await client.send(request("AUTH", KEYS["w1"]) + b"PING words\r\nQUIT\r\n")
    assert await client.rest() == b"+OK\r\n$5\r\nwords\r\n+OK\r\n"


async def test_a_connection_without_a_key_stores_little_and_has_little_time(serve: Serve) -> None:
    server = await serve(auth_within=timedelta(milliseconds=50))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    assert await reader.read() == b""
    writer.close()
    assert BEFORE_AUTH.request + 16_384 <= 64 << 10


async def test_who_sends_byte_after_byte_has_no_more_time_to_show_a_key(serve: Serve) -> None:
    server = await serve(auth_within=timedelta(milliseconds=300))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)

    async def drip() -> None:
        while True:
            writer.write(b"A")
            await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    try:
        async with asyncio.timeout(30):
            assert await reader.read() == b""
    finally:
        dripping.cancel()
        writer.close()


async def test_hello_without_a_key_counts_among_the_refusals(raw: OpenRaw) -> None:
    client = await raw()
    await client.send(request("HELLO", "2") * 40)
    assert (await client.rest()).count(b"NOAUTH") == 32


@pytest.mark.long
async def test_agx_37_thousands_of_connections_one_after_the_other(server: RespServer) -> None:
    for number in range(1_200):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        if number % 100 == 0:
            writer.write(request("AUTH", KEYS["w1"]) + request("PING"))
            assert await reader.readexactly(12) == b"+OK\r\n+PONG\r\n"
        writer.close()
        await writer.wait_closed()

    async def gone() -> bool:
        return not server.gateway.clients

    await eventually(gone)
    assert server.gateway.counts["connections"] == 1_200


async def test_too_many_connections_are_told_so(serve: Serve) -> None:
    server = await serve(connections=1)
    _, first = await asyncio.open_connection("127.0.0.1", server.port)
    reader, second = await asyncio.open_connection("127.0.0.1", server.port)
    assert await reader.read() == b"-ERR max number of clients reached\r\n"
    first.close()
    second.close()


async def test_a_reader_that_does_not_read_is_closed(serve: Serve) -> None:
    server = await serve(output=1 << 20)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request("AUTH", KEYS["w1"]))
    await reader.readexactly(5)
    reader._transport.pause_reading()  # type: ignore[attr-defined]

    async def flood() -> None:
        while True:
            writer.write(request("ECHO", b"x" * (9 << 20)))
            await writer.drain()

    with pytest.raises(ConnectionError):
        await flood()

    async def gone() -> bool:
        return not server.gateway.clients

    await eventually(gone)
    writer.close()


async def test_a_key_in_the_store_is_revoked_and_its_connections_end(
    hf: Holdfast, server: RespServer, connect: Connect
) -> None:
    await add_key(hf, "rented")
    client, other = await connect(None), await connect("w1")
    assert await client("AUTH", SECRET) == "OK"
    database = await core_of(hf).opened()
    await database.transact(keys.revoke_key, "rented")

    async def ended() -> bool:
        return {each.who for each in server.gateway.clients.values()} == {"w1"}

    await eventually(ended)
    assert await other("PING") == "PONG"
    late = await connect(None)
    assert await late("AUTH", SECRET) == "-ERR Invalid authentication key"
    await add_key(hf, "rented", "6f" * 32)
    assert await late("AUTH", "6f" * 32) == "OK"
    with pytest.raises(UsageError, match="has a key already"):
        await add_key(hf, "rented")


@pytest.mark.long
async def test_a_revoked_key_ends_a_connection_that_waits_for_work(
    hf: Holdfast, server: RespServer, connect: Connect
) -> None:
    await add_key(hf, "rented")
    client = await connect(None)
    assert await client("AUTH", SECRET) == "OK"
    assert str(await client("WORKER.REGISTER", worker("rented"))).startswith("OK")
    waiting = asyncio.create_task(client("BRPOP", "queue:mail", "0"))

    async def waits() -> bool:
        return len(server.gateway.pops) == 1

    await eventually(waits)
    await (await core_of(hf).opened()).transact(keys.revoke_key, "rented")
    with pytest.raises(ConnectionError):
        await waiting
    assert len(server.gateway.pops) == 0


async def test_a_key_may_be_limited_to_some_commands(hf: Holdfast, connect: Connect) -> None:
    await add_key(hf, "reader", commands=("COMMAND",))
    client = await connect(None)
    assert await client("AUTH", SECRET) == "OK"
    assert await client("PING") == "PONG"
    assert await client("INFO") == "-NOPERM this key may not call INFO"


async def test_a_user_name_is_default_or_the_one_of_the_key(connect: Connect) -> None:
    client = await connect(None)
    assert await client("AUTH", "w2", KEYS["w1"]) == "-ERR Invalid authentication key"
    assert await client("AUTH", "default", KEYS["w1"]) == "OK"
    assert await client("AUTH", "w1", KEYS["w1"]) == "OK"


async def test_a_shared_key_says_which_worker_it_is(serve: Serve, connect: Connect) -> None:
    server = await serve(shared=shared("a key that all of us have"))
    client = await connect(None, server.port)
    assert await client("AUTH", "worker-7", "a key that all of us have") == "OK"
    assert {each.who for each in server.gateway.clients.values()} == {"worker-7"}


async def test_a_shared_key_stands_for_nobody_who_has_a_key_of_their_own(
    hf: Holdfast, serve: Serve, connect: Connect
) -> None:
    await add_key(hf, "rented")
    server = await serve(shared=shared("a key that all of us have"))
    client = await connect(None, server.port)
    for name in ("w1", "rented", "two words", "x" * 65):
        assert await client("AUTH", name, "a key that all of us have") == "-ERR Invalid authentication key"
    assert await client("AUTH", "worker-7", "a key that all of us have") == "OK"


async def test_hello_chooses_the_protocol_and_may_show_the_key(raw: OpenRaw) -> None:
    client = await raw()
    await client.send(
        request("HELLO", "3") + request("HELLO", "4") + request("HELLO", "3", "AUTH", "default", KEYS["w1"])
    )
    assert await client.until(b"\r\n") == b"-ERR NOAUTH Authentication required\r\n"
    assert await client.until(b"\r\n") == b"-NOPROTO unsupported protocol version\r\n"
    assert (await client.until(b"$7\r\nmodules\r\n*0\r\n")).startswith(b"%7\r\n$6\r\nserver\r\n")
    await client.send(request("CLIENT", "GETNAME") + request("RESET") + request("PING"))
    assert await client.until(b"required\r\n") == b"_\r\n+RESET\r\n-ERR NOAUTH Authentication required\r\n"


async def test_the_table_answers_command(connect: Connect) -> None:
    client = await connect()
    assert await client("COMMAND", "COUNT") == len(TABLE)
    listed = await client("COMMAND")
    assert isinstance(listed, list)
    assert {bytes(each[0]).decode().upper(): each[1] for each in listed} == {  # type: ignore[index, arg-type]
        name: command.arity for name, command in TABLE.items()
    }


async def test_a_wrong_number_of_arguments_is_refused(connect: Connect) -> None:
    for command in TABLE.values():
        least, most, name = command.least, command.most, command.name
        client = await connect()
        if least:
            assert await client(name, *["a"] * (least - 1)) == f"-ERR {command.wrong_number}", name
        if most is not None:
            assert await client(name, *["a"] * (most + 1)) == f"-ERR {command.wrong_number}", name
        await client.close()


async def test_multi_queues_and_exec_calls_in_order(connect: Connect) -> None:
    client = await connect()
    assert [await client(*words) for words in (("MULTI",), ("ECHO", "a"), ("SELECT", "1"), ("EXEC",))] == [
        *("OK", "QUEUED", "QUEUED"),
        [b"a", "-ERR DB index is out of range"],
    ]
    assert await client("EXEC") == "-ERR EXEC without MULTI"
    await client("MULTI")
    assert await client("NO.SUCH") == "-ERR unknown command 'NO.SUCH'"
    assert await client("EXEC") == "-EXECABORT Transaction discarded because of previous errors."


@pytest.mark.parametrize("words", [("AUTH", SECRET), ("HELLO", "3", "AUTH", "default", SECRET), ("RESET",)])
async def test_nothing_that_was_queued_under_one_key_is_called_under_another(
    hf: Holdfast, connect: Connect, words: tuple[str, ...]
) -> None:
    await add_key(hf, "reader", commands=("GET",))
    client = await connect("w1")
    await client("MULTI")
    assert await client("SET", "a", "1") == "QUEUED"
    assert await client(*words) == "-ERR Command not allowed inside a transaction"
    assert await client("EXEC") == "-EXECABORT Transaction discarded because of previous errors."
    assert await client("GET", "a") is None


async def test_exec_asks_again_what_the_key_may_call(hf: Holdfast, server: RespServer, connect: Connect) -> None:
    client = await connect("w1")
    await client("MULTI")
    for words in (("SET", "a", "1"), ("PING",)):
        assert await client(*words) == "QUEUED"
    (there,) = server.gateway.clients.values()
    assert there.principal is not None
    there.principal = replace(there.principal, commands=("GET",))
    assert await client("EXEC") == ["-NOPERM this key may not call SET", "PONG"]
    assert await client("GET", "a") is None


async def test_multi_stores_no_more_bytes_than_one_request_may_have(connect: Connect) -> None:
    client, large = await connect(), b"x" * (7 << 20)
    await client("MULTI")
    assert [await client("ECHO", large) for _ in range(3)] == [
        *("QUEUED", "QUEUED"),
        "-ERR MULTI takes at most 1024 commands, of 16777216 bytes together",
    ]
    assert await client("EXEC") == "-EXECABORT Transaction discarded because of previous errors."
    await client("MULTI")
    assert [await client("ECHO", "a"), await client("EXEC")] == ["QUEUED", [b"a"]]


def test_a_public_address_needs_tls() -> None:
    for bind in ("0.0.0.0:6380", "[::]:6380", "192.0.2.1:6380", "example.org:6380"):
        with pytest.raises(UsageError, match="can be reached from other machines"):
            RespOptions(bind=bind)
    for bind in ("127.0.0.1:6380", "[::1]:6380", "localhost:0"):
        RespOptions(bind=bind)


async def test_a_server_without_any_key_does_not_start(hf: Holdfast) -> None:
    with pytest.raises(UsageError, match="there is no key yet"):
        async with RespServer(core_of(hf), RespOptions(bind="127.0.0.1:0")):
            pass


async def test_secrets_are_neither_logged_nor_shown(
    hf: Holdfast, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await add_key(hf, "quiet")
    client = await connect(None)
    await client("AUTH", "wrong-" + SECRET)
    await client("AUTH", SECRET)
    shown = str([await client(*words) for words in (("INFO",), ("CLIENT", "INFO"), ("COMMAND", "DOCS"))])
    for text in (shown, caplog.text):
        assert SECRET not in text
        assert digest_of(SECRET.encode()) not in text


async def test_redis_py_reads_who_is_connected_and_what_the_server_uses(server: RespServer) -> None:
    async with (
        Redis(port=server.port, username="w1", password=KEYS["w1"], client_name="first") as first,
        Redis(port=server.port, password=KEYS["w2"], client_name="second") as second,
    ):
        assert await first.acl_whoami() == "w1"
        assert (await second.set("a", "1"), await second.set("b", "1", px=1)) == (True, True)

        async def counted() -> bool:
            return bool(await second.dbsize() == 1)  # what has expired is not there

        await eventually(counted)
        listed = await first.client_list()
        assert {(each["name"], each["user"], each["addr"]) for each in listed} == {
            ("first", "w1", "127.0.0.1"),
            ("second", "w2", "127.0.0.1"),
        }
        ids = {each["name"]: each["id"] for each in listed}
        assert [each["name"] for each in await first.client_list(client_id=[ids["second"]])] == ["second"]
        assert await first.client_list(_type="pubsub") == []
        memory = await first.info("memory")
        assert (memory["maxmemory"], memory["maxmemory_policy"]) == (0, "noeviction")
        assert memory["used_memory_peak"] >= memory["used_memory"] > 1 << 20
        assert memory["used_memory_human"].endswith(("M", "G"))
        whole = await first.info()
        assert (whole["loading"], whole["role"]) == (0, "master")


async def test_a_key_learns_of_no_connections_but_those_it_may_know_of(hf: Holdfast, serve: Serve) -> None:
    rights = {
        "wide": KeyPrincipal("wide", digest_of(b"w" * 16), ("wide",), tenant="acme"),
        "narrow": KeyPrincipal("narrow", digest_of(b"n" * 16), ("narrow",), commands=("GET",), tenant="acme"),
        "other": KeyPrincipal("other", digest_of(b"o" * 16), ("other",), tenant="other"),
    }
    server = await serve(principals=tuple(rights.values()))
    clients = {name: Client(await Link.open(GatewayAddress("127.0.0.1", server.port))) for name in rights}
    for name, client in clients.items():
        assert await client("AUTH", name[0] * 16) == "OK"
    found = {name: re.findall(r"user=(\w+)", await client.text("CLIENT", "LIST")) for name, client in clients.items()}
    assert found == {"wide": ["wide", "narrow"], "narrow": ["narrow"], "other": ["other"]}
    for client in clients.values():
        await client.close()


# Unix sockets


async def test_a_unix_socket_is_for_its_user_and_needs_a_key_too(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "gateway"
    await serve(bind=None, unix=path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    client = Client(await Link.open(GatewayAddress("", 0, unix=path)))
    assert await client("PING") == NOAUTH
    assert await client("AUTH", KEYS["w1"]) == "OK"
    assert "addr=unix " in await client.text("CLIENT", "INFO")
    await client.close()


async def test_a_socket_that_a_killed_server_has_left_is_replaced_and_nothing_else(
    hf: Holdfast, serve: Serve, tmp_path: Path
) -> None:
    path, file = tmp_path / "gateway", tmp_path / "file"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
        left.listen()
    file.write_text("mine")
    options = RespOptions(None, path, from_table(KEYS))
    async with RespServer(core_of(hf), options):
        with pytest.raises(UsageError, match="another server listens there"):
            await serve(bind=None, unix=path)
        with pytest.raises(UsageError, match="cannot listen on "):
            await serve(unix=file)
        await (await Link.open(GatewayAddress("", 0, unix=path))).close()
    assert not path.exists()
    assert file.read_text() == "mine"
    with pytest.raises(UsageError, match="on a Unix socket"):
        RespOptions(None)
