"""What all connections of one server share: the store, who may come in, and what is counted."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import ParamSpec, TypeVar

from holdfast.agents.core import AgentsCore
from holdfast.clock import Clock
from holdfast.kernel.database import Database, Operation
from holdfast.kernel.rows import LeaseRef
from holdfast.resp import keys
from holdfast.resp.client import WORKER_ID, Client, KeyPrincipal, digest_of, matching
from holdfast.resp.endings import ReportEndings, SentLease, Write
from holdfast.resp.options import RespOptions
from holdfast.resp.pops import Pops

# Throttling: wrong keys by address, and calls by principal. One client cannot use up what others may do.


FAILURES = 5  # wrong keys that one address may show in a minute before their answers are delayed
DELAY = 1.0  # seconds
_MINUTE = 60.0
_ADDRESSES = 10_000  # that are remembered, the latest ones
_AT_ONCE = 4  # keys of barred addresses that are judged at the same time


class FailedKeys:
    """Who has shown wrong keys in the last minute. Their keys are judged too, but only a few at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._judging = asyncio.Semaphore(_AT_ONCE)
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def turn(self, address: str) -> AbstractAsyncContextManager[None]:
        """Around the judgement of a key: those who guess do not keep the store from everybody else."""
        return self._judging if self.is_barred(address) else nullcontext()

    def is_barred(self, address: str) -> bool:
        times = self._failures.get(address)
        if times is None:
            return False
        while times and times[0] <= self._clock.monotonic() - _MINUTE:
            times.popleft()
        if not times:
            del self._failures[address]
        return len(times) >= FAILURES

    def note(self, address: str) -> None:
        times = self._failures.setdefault(address, deque(maxlen=FAILURES))
        times.append(self._clock.monotonic())
        self._failures.move_to_end(address)
        if len(self._failures) > _ADDRESSES:
            self._failures.popitem(last=False)


class Rates:
    """How often each principal called what is limited, in the minute under way."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._minute = 0
        self._calls: dict[tuple[str, str], int] = {}

    def allows(self, principal: str, command: str, most: int) -> bool:
        """Count a call; is it within the limit?"""
        minute = int(self._clock.monotonic() // _MINUTE)
        if minute != self._minute:
            self._minute = minute
            self._calls.clear()
        calls = self._calls[principal, command] = self._calls.get((principal, command), 0) + 1
        return calls <= most


P = ParamSpec("P")
R = TypeVar("R")


INLET = 16_384  # bytes taken from a socket at once


class RespGateway:
    def __init__(self, core: AgentsCore, options: RespOptions) -> None:
        self.core = core
        self.options = options
        self.clock = core.ports.clock
        self.started = self.clock.monotonic()
        self.failed_keys = FailedKeys(self.clock)
        self.rates = Rates(self.clock)
        self.clients: dict[int, Client] = {}
        self.inlet = bytearray(INLET)  # of all connections: what arrives is copied from it before another can arrive
        self.counts: Counter[str] = Counter()  # connections, commands, refusals since the start
        self.pushed = asyncio.Event()  # somebody put something into a plain list of this server
        self._pops: Pops | None = None
        self._endings: ReportEndings | None = None

    @property
    def pops(self) -> Pops:
        if self._pops is None:
            self._pops = Pops(self.database, self.options, self.core.settings, self.core.ports)
        return self._pops

    @property
    def endings(self) -> ReportEndings:
        if self._endings is None:
            self._endings = ReportEndings(self.database, self.clock)
        return self._endings

    @property
    def dead_after_us(self) -> int:
        return int(self.options.dead_after.total_seconds() * 1_000_000)

    @property
    def database(self) -> Database:
        return self.core.runtime().database

    async def transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.database.transact(operation, *args, **kwargs)

    async def end(self, client: Client, sent: SentLease | None, write: Write, *, merges: bool = False) -> bool:
        """End an attempt whose lease went out to a client. False: not in this way; the store says why."""
        ending = self.begin_end(client, sent, write, merges=merges)
        return ending is not None and await ending

    def begin_end(
        self, client: Client, sent: SentLease | None, write: Write, *, merges: bool = False
    ) -> asyncio.Future[bool] | None:
        """As `end`, which somebody awaits later; None: False. `merges`: what was reported before is part of the end."""
        if sent is None or client.epoch not in (None, sent.epoch) or sent.lease.tenant != client.tenant:
            return None
        held, worker = sent.lease.held, client.worker_id
        self.pops.delivered.ending.add(held)
        ending = self.endings.begin(sent, write, merges=merges)
        ending.add_done_callback(lambda ended: self._note_end(held, worker, ended))
        return ending

    def _note_end(self, held: LeaseRef, worker: str, ended: asyncio.Future[bool]) -> None:
        self.pops.delivered.ending.discard(held)
        if ended.cancelled() or ended.exception() is not None:
            return
        self.pops.delivered.forget(held)
        if ended.result():
            self.pops.freed(worker)

    async def principal_of(self, key: bytes, name: str | None) -> KeyPrincipal | None:
        """Who has this key. `name` must be theirs; with a shared key it says which worker this is."""
        digest = digest_of(key)
        given = self.options.principals
        found = matching(digest, given) or matching(digest, await self.transact(keys.find_keys, digest))
        if found is not None:
            return found if name in (None, "default", found.name) else None
        shared = self.options.shared
        if shared is None or matching(digest, (shared,)) is None:
            return None
        if name is None or name == "default":
            return shared
        return await self.named_by_shared(name)

    async def named_by_shared(self, worker: str) -> KeyPrincipal | None:
        """Who shows the shared key and says that it is this worker; None if that has a key of its own."""
        shared = self.options.shared
        if shared is None or not WORKER_ID.fullmatch(worker) or worker in await self._named():
            return None
        return KeyPrincipal(worker, shared.digest, (worker,))

    async def _named(self) -> set[str]:
        """Who has a key of their own: a shared key does not stand for them."""
        stored = await self.transact(keys.list_keys, all=False)
        return {each.name for each in (*self.options.principals, *stored)}
