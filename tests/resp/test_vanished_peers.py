"""Peers that vanish without a word: each side notices, within a time that is known."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from holdfast.agw.link import GatewayAddress, Link, LinkPatience
from holdfast.clock import Ports
from holdfast.resp.options import DEAD_AFTER
from holdfast.resp.server import RespServer
from tests.resp.conftest import Connect
from tests.resp.test_agw import Quick, made, running
from tests.support.apps import eventually

LITTLE = LinkPatience(connect=0.2, reply=0.2)
Answering = Callable[[list[bytes]], bytes | None]


def probes(connection: socket.socket) -> tuple[int, int]:
    """Whether the system probes an idle peer, and after how many seconds at most one that is gone is found."""
    tcp = socket.IPPROTO_TCP
    idle, every, times = (
        connection.getsockopt(tcp, option) for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    )
    unconfirmed = connection.getsockopt(tcp, socket.TCP_USER_TIMEOUT) // 1_000
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), max(idle + every * times, unconfirmed or 999)


async def test_both_sides_let_the_system_look_for_peers_that_are_gone(server: RespServer, connect: Connect) -> None:
    """Before a worker would count as dead, so a half-open connection does not keep one alive."""
    client = await connect("w1")
    (connection,) = server._connections.values()
    assert connection._transport is not None
    for transport in (connection._transport, client.link._writer.transport):
        kept, seconds = probes(transport.get_extra_info("socket"))
        assert kept
        assert seconds < DEAD_AFTER.total_seconds()


@asynccontextmanager
async def silent(answers: Answering) -> AsyncIterator[tuple[int, list[list[bytes]]]]:
    """A gateway that answers some requests and is silent otherwise: its port, and what each connection has asked."""
    seen: list[list[bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests: list[bytes] = []
        seen.append(requests)
        while line := await reader.readline():
            words = []
            for _ in range(int(line[1:])):
                size = int((await reader.readline())[1:])
                words.append((await reader.readexactly(size + 2))[:-2])
            requests.append(words[0])
            if (reply := answers(words)) is not None:
                writer.write(reply)
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1], seen


def nothing(_: list[bytes]) -> None:
    return None


def all_but_pops(words: list[bytes]) -> bytes | None:
    return None if words[0] == b"BRPOP" else b"+OK\r\n"


def all_but_heartbeats(words: list[bytes]) -> bytes | None:
    return {b"BRPOP": b"$-1\r\n", b"WORKER.HEARTBEAT": None}.get(words[0], b"+OK\r\n")


@pytest.mark.parametrize("answers", [nothing, all_but_pops, all_but_heartbeats])
async def test_a_worker_leaves_a_gateway_that_has_fallen_silent(
    answers: Answering, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    clock = Quick()
    async with silent(answers) as (port, seen):

        async def came_back() -> bool:
            return len([requests for requests in seen if requests]) >= 4

        async with running(made(port, ports=Ports(clock=clock), patience=LITTLE, drain_seconds=0.1)):
            await eventually(came_back, lambda: len(seen))
    assert "the gateway did not answer in time" in caplog.text
    assert any(0.5 <= seconds <= 1 for seconds in clock.slept)


async def test_a_gateway_that_takes_no_connection_is_not_waited_for() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        held = [socket.socket() for _ in range(4)]
        for each in held:  # more than the system lets wait there
            each.setblocking(False)
            each.connect_ex(address)
        with pytest.raises(TimeoutError, match="took no connection in time"):
            await Link.open(GatewayAddress(*address), LITTLE)
        for each in held:
            each.close()
