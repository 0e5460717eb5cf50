"""The server: listens, keeps the connections, and ends those whose key was revoked.

Several servers may share one database. A server's death is not the death of its workers: their leases are in the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

from holdfast.agents.core import AgentsCore
from holdfast.brokers.hub import Hub
from holdfast.errors import Unavailable, UsageError
from holdfast.kernel import workers
from holdfast.kernel.broker_rows import NOWHERE, Renewal
from holdfast.kernel.brokers import leases_of
from holdfast.kernel.database import Transaction
from holdfast.kernel.leases import renew_each
from holdfast.kernel.rows import LeaseRef
from holdfast.resp import keys
from holdfast.resp import workers as resp_workers
from holdfast.resp.client import Client
from holdfast.resp.connection import RespConnection
from holdfast.resp.gateway import RespGateway
from holdfast.resp.options import RespOptions, RespServing, serving
from holdfast.resp.records import Epoch, HoldersSql
from holdfast.resp.workers import MOST, NEVER_US
from holdfast.workers.lifeline import Lifeline

# Leases of jobs that this server has sent over connections that still live.
#
# Their worker may send its heartbeats to another server, which does not know what this one has sent. So each server
# renews what it has sent, while the worker lives, wherever it is heard.


log = logging.getLogger("holdfast.resp")


class LeaseRenewal:
    def __init__(self, gateway: RespGateway) -> None:
        self._gateway = gateway

    async def run(self) -> None:
        every = self._gateway.options.heartbeat.total_seconds()
        while True:
            await self._gateway.clock.sleep(every)
            try:
                await self.keep()
            except Unavailable as problem:
                self._gateway.core.ports.try_again(problem)
            except Exception:  # the edge of a task that all workers need: it continues
                log.exception("cannot keep the leases of jobs that were sent")

    async def keep(self) -> None:
        """Renew what was sent over connections of this server, and forget what has ended since."""
        delivered = self._gateway.pops.delivered
        for epoch, mine in delivered.by_epoch().items():
            still = await self._gateway.transact(keep, epoch, mine, ttl_us=self._gateway.dead_after_us)
            delivered.forget_others(mine, still)


async def keep(tx: Transaction, epoch: Epoch, delivered: Collection[LeaseRef], *, ttl_us: int) -> set[LeaseRef]:
    """Renew what a live worker was sent, but not beyond its own time. Which of them it holds still."""
    alive = await tx.many(HoldersSql.live_holders, workers=[epoch.worker], told=[])
    if [row.epoch for row in alive] != [epoch]:
        return set()
    now, left_us = alive[0].now, alive[0].left_us
    leases = [each for each in await leases_of(tx, epoch.worker, limit=MOST) if each.lease.held in delivered]
    soon = [each.lease.held for each in leases if each.lease_until - now < ttl_us * 2 // 3]
    await renew_each(tx, [Renewal(*held, min(ttl_us, left_us)) for held in soon], ceiling_us=NEVER_US)
    return {each.lease.held for each in leases}


# Upkeep: what any Holdfast process does now and then, done here too, because a gateway may be the only one.
#
# A hub without brokers does it, as it does for programs that hold leases: it sweeps, and holds duties. So deadlines,
# lanes, families, retention, schedules and tallies need no worker. What is left is the gateway's own: to look for
# those
# who wait for jobs, and to take back what its silent workers hold.


_PAUSE = 1.0
_LIMIT = 500


class Upkeep:
    def __init__(self, gateway: RespGateway, lifeline: Lifeline | None = None) -> None:
        """`lifeline`: what beats for it, instead of a thread."""
        self._gateway = gateway
        core = gateway.core
        self._hub = Hub(core.registry, gateway.database, core.settings, core.ports, name="resp", lifeline=lifeline)

    async def begin(self) -> None:
        await self._hub.start()

    async def close(self) -> None:
        await self._hub.close()

    async def run(self) -> None:
        wanted = self._gateway.pops.look_wanted
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE):
                    await wanted.wait()
            wanted.clear()
            try:
                await self.look()
            except Unavailable as problem:
                self._gateway.core.ports.try_again(problem)
            except Exception:  # the edge of a task that everybody needs: it continues
                log.exception("cannot look for those who wait for jobs")

    async def look(self) -> None:
        """Look once for everybody who waits here, and take back what workers hold that were silent for too long."""
        gateway, pops = self._gateway, self._gateway.pops
        sight = await gateway.transact(workers.look, NOWHERE, pops.served())
        if sight.leased and await gateway.transact(resp_workers.is_silent, until=sight.now):
            chance = gateway.core.ports.random
            await gateway.transact(resp_workers.give_up_silent, limit=_LIMIT, chance=chance, until=sight.now)
        await pops.looked(sight)


_LOOK = 0.5  # seconds between two looks at which keys are revoked


class RespServers:
    """The servers of one app: `hf.resp`."""

    def __init__(self, core: AgentsCore) -> None:
        self._core = core

    def server(self, bind: str | None, **options: Unpack[RespServing]) -> RespServer:
        return RespServer(self._core, serving(bind, **options))


class RespServer:
    """`async with RespServer(core, options) as server`: serves until the block ends; `port` is where it listens."""

    def __init__(self, core: AgentsCore, options: RespOptions) -> None:
        self._core = core
        self._options = options
        self._connections: dict[int, RespConnection] = {}  # by their clients, the oldest first
        self._numbers = itertools.count(1)
        self._servers: list[asyncio.Server] = []
        self._inode: int | None = None  # of the Unix socket that this server has made
        self._tasks: list[asyncio.Task[None]] = []
        self._upkeep: Upkeep | None = None
        self.gateway = RespGateway(core, options)

    @property
    def port(self) -> int:
        assert self._servers
        assert self._options.bind is not None
        port: int = self._servers[0].sockets[0].getsockname()[1]
        return port

    async def __aenter__(self) -> Self:
        await self._core.awaited_store()
        await self._refuse_without_keys()
        self._servers = await self._listen()
        pops, loop = self.gateway.pops, asyncio.get_running_loop()
        self._upkeep = upkeep = self._make_upkeep()
        try:
            await upkeep.begin()
        except BaseException:
            self._stop_listening(self._servers)
            raise
        await pops.begin()
        running = {
            "resp-keys": self._watch_keys(),
            "resp-pops": pops.run(),
            "resp-beats": pops.beat_always(),
            "resp-keeping": LeaseRenewal(self.gateway).run(),
            "resp-upkeep": upkeep.run(),
        }
        self._tasks = [loop.create_task(each, name=name) for name, each in running.items()]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_listening(self._servers)
        open_now = [*self._connections.values()]
        for connection in open_now:
            connection.close()
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for connection in open_now:
            await connection.finished()
        await self.gateway.pops.close()
        await self.gateway.endings.close()
        assert self._upkeep is not None
        await self._upkeep.close()
        for server in self._servers:
            await server.wait_closed()

    def _make_upkeep(self) -> Upkeep:
        return Upkeep(self.gateway)

    async def _listen(self) -> list[asyncio.Server]:
        loop, path, servers = asyncio.get_running_loop(), self._options.unix, list[asyncio.Server]()
        try:
            if self._options.bind is not None:
                host, port = self._options.address
                listening = loop.create_server(self._accept, host, port, ssl=self._tls(), backlog=1_024)
                servers.append(await _listened(listening, self._options.bind))
            if path is not None:
                named = _unix_socket(path)
                self._inode = path.stat().st_ino
                listening = loop.create_unix_server(self._accept, sock=named, backlog=1_024)
                servers.append(await _listened(listening, str(path)))
        except BaseException:
            self._stop_listening(servers)
            raise
        return servers

    def _stop_listening(self, servers: Sequence[asyncio.Server]) -> None:
        for server in servers:
            server.close()
        path = self._options.unix
        with contextlib.suppress(OSError):  # somebody has removed it
            if path is not None and path.stat().st_ino == self._inode:
                path.unlink()

    async def serve_forever(self) -> None:
        await asyncio.gather(*(server.serve_forever() for server in self._servers))

    def _accept(self) -> asyncio.BaseProtocol:
        self.gateway.counts["connections"] += 1
        if len(self._connections) >= self._options.connections:
            self.gateway.counts["rejected"] += 1
            return _FullServer()
        client = Client(next(self._numbers), "", self._options.pop_form, self.gateway.clock.monotonic())
        connection = RespConnection(self.gateway, client, self._left)
        self._connections[client.id] = connection
        self.gateway.clients[client.id] = client
        return connection

    def _left(self, connection: RespConnection) -> None:
        self._connections.pop(connection.client.id, None)
        self.gateway.clients.pop(connection.client.id, None)
        self.gateway.pops.delivered.lose_client(connection.client.id)

    async def _refuse_without_keys(self) -> None:
        """A server that nobody can use is a mistake, and nobody is let in without a key."""
        given = self._options.principals or self._options.shared
        if not given and not await self.gateway.transact(keys.list_keys, all=False):
            raise UsageError(
                "nobody could connect: there is no key yet. Make one with `holdfast resp keys add WORKER`, or "
                "give a file of keys with --workers-file."
            )

    async def _watch_keys(self) -> None:
        """End the connections of keys that were revoked."""
        while True:
            await self.gateway.clock.sleep(_LOOK)
            if not any(each.client.principal and each.client.principal.stored for each in self._connections.values()):
                continue
            try:
                valid = {each.digest for each in await self.gateway.transact(keys.list_keys, all=False)}
            except Unavailable as problem:
                self._core.ports.try_again(problem)
                continue
            except Exception:  # the edge of a task by which revocations count: it continues
                log.exception("cannot see which keys are revoked")
                continue
            for connection in [*self._connections.values()]:
                principal = connection.client.principal
                if principal is not None and principal.stored and principal.digest not in valid:
                    connection.close()

    def _tls(self) -> ssl.SSLContext | None:
        if self._options.tls_cert is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self._options.tls_cert, self._options.tls_key)
        except (OSError, ssl.SSLError) as problem:
            raise UsageError(f"the certificate {self._options.tls_cert} cannot be used: {problem}.") from problem
        return context


async def _listened(listening: Awaitable[asyncio.Server], where: str) -> asyncio.Server:
    try:
        return await listening
    except OSError as problem:
        raise UsageError(f"cannot listen on {where}: {problem.strerror or problem}.") from problem


def _unix_socket(path: Path) -> socket.socket:
    """A socket to which only processes of this user can connect. What a server that was killed has left is replaced."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(OSError):  # where the system allows it, nobody else can connect from the first moment
        os.fchmod(made.fileno(), 0o600)
    try:
        if path.is_socket():
            _remove_stale(path)
        made.bind(str(path))
        path.chmod(0o600)
    except OSError as problem:
        made.close()
        raise UsageError(f"cannot listen on {path}: {problem.strerror or problem}.") from problem
    except BaseException:
        made.close()
        raise
    return made


def _remove_stale(path: Path) -> None:
    """Remove a socket on which nobody listens any more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trying:
        trying.setblocking(False)
        try:
            trying.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:  # so many wait for it already
            pass
    raise UsageError(f"cannot listen on {path}: another server listens there.")


class _FullServer(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"-ERR max number of clients reached\r\n")
        transport.close()
