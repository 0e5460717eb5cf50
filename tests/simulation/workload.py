"""Jobs that behave as jobs do: quick, slow, failing, waiting, poisonous, deaf to cancellation.

Whatever a handler writes carries its token, so that the store's observer can tell who wrote it. And each effect is
witnessed outside the store: what a committed step did must not be done again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cache
from random import Random
from typing import Any, Final, Protocol, TypeVar

from holdfast import durations
from holdfast.client.core import Core
from holdfast.client.intake import Runtime
from holdfast.client.jobs import JobFunction
from holdfast.client.queues import Queue
from holdfast.errors import LeaseLost
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.states import TERMINAL, State
from holdfast.outcomes import Cancel, Discard, Done, Fail, Snooze, TryAgain
from holdfast.workers.context import JobContext
from holdfast.workers.definitions import Definition, LaneLimits, Registry
from holdfast.workers.signatures import Signature
from tests.simulation.audit import Violation, stamp
from tests.simulation.store import Store
from tests.simulation.swarm import KINDS, Options

R = TypeVar("R")

QUEUES: Final[Mapping[str, Queue]] = {"fragile": Queue(on_orphan="fail")}
SPECIAL: Final = "tag:special"
NEVER: Final = "never"  # channels of this name get no signal

LIMITS: Final[Mapping[str, LaneLimits]] = {
    "sleepy": LaneLimits("job:sleepy", True, 3, None, 1),
    "flaky": LaneLimits("job:flaky", True, None, 500_000, 3),
}

CHOICES: Final = ("done", "retry", "fail", "cancel", "discard", "snooze")


class Host(Protocol):
    """The process a handler runs in."""

    slow_clock: bool
    leaving: bool

    def crash(self) -> None: ...

    def block(self, seconds: float) -> None: ...


class ClientCore(Core):
    """The core of an app whose store is the client's own."""

    def __init__(self, client: Runtime, registry: Registry) -> None:
        super().__init__(client.settings, client.ports, embedded=False)
        self.registry = registry
        self._client = client

    def runtime(self) -> Runtime:
        return self._client

    def intake(self, tx: object | None, *, sync: bool = False) -> Runtime:
        return self._client


class Workload:
    """The handlers of one world, and the witness of what they did."""

    def __init__(self, store: Store, options: Options, here: Callable[[], Host]) -> None:
        self.registry = Registry()
        self.jobs: dict[str, JobFunction[Any, Any]] = {}
        self.effects = 0
        self._store = store
        self._options = options
        self._here = here
        self._chance = Random(f"handlers of {options.seed}")

    def declare(self, client: Runtime) -> None:
        policy = RetryPolicy(
            attempts=self._chance.choice((None, 1, 4)),
            backoff=self._chance.choice(("constant", "exponential")),
            base=timedelta(seconds=self._chance.choice((0, 0.1, 2))),
            cap="30s",
        )
        for kind in KINDS:
            definition = Definition(
                kind=kind,
                function=getattr(self, kind),
                signature=_signature(kind),
                queue={"fragile": "fragile", "special": "side"}.get(kind, "default"),
                requires=frozenset({SPECIAL} if kind == "special" else ()),
                retry=policy,
                timeout_us=None,
                deadline_us=None,
                priority=100,
                isolate=None,
                limits=LIMITS.get(kind),
            )
            self.registry.add(definition)
            self.jobs[kind] = JobFunction(ClientCore(client, self.registry), definition, definition.function)

    async def quick(self, ctx: JobContext, n: int) -> dict[str, Any]:
        return {"n": n, "by": stamp(ctx.token)}

    async def sleepy(self, ctx: JobContext, seconds: float) -> dict[str, Any]:
        await self._sleep(ctx, seconds)
        return {"by": stamp(ctx.token)}

    special = fragile = sleepy

    async def flaky(self, ctx: JobContext, chance: float) -> dict[str, Any]:
        await self._sleep(ctx, self._chance.random())
        if self._chance.random() < chance:
            raise ValueError(f"failed {stamp(ctx.token)}")
        return {"by": stamp(ctx.token)}

    async def snoozing(self, ctx: JobContext, seconds: float) -> dict[str, Any]:
        if self._chance.random() < 0.6:
            raise Snooze(_time(seconds))
        return {"by": stamp(ctx.token)}

    async def stepping(self, ctx: JobContext, steps: int, seconds: float) -> dict[str, Any]:
        for number in range(steps):
            name = f"step {number}"
            await ctx.step(name, self._effect, ctx, name, seconds)
            if self._chance.random() < 0.3:
                await ctx.progress({"done": number, "by": stamp(ctx.token)})
        return {"by": stamp(ctx.token)}

    async def parent(self, ctx: JobContext, children: int, depth: int) -> dict[str, Any]:
        marked: dict[str, Any] = {"metadata": {"by": stamp(ctx.token)}}
        for number in range(children):
            match (number + depth) % 4:
                case 0 if depth:
                    await ctx.start(self.jobs["parent"], children=2, depth=depth - 1, **marked)
                case 1:
                    await ctx.start(self.jobs["sleepy"], seconds=0.1 + number, **marked)
                case 2:
                    await ctx.start(self.jobs["flaky"], chance=0.5, **marked)
                case _:
                    await ctx.start(self.jobs["quick"], n=number, **marked)
        await self._dawdle(ctx)
        joined = await ctx.join()
        if len(joined) != children or any(child.state not in TERMINAL for child in joined):
            raise Violation("join returns every child, ended", f"{ctx.id} started {children}, joined {joined}")
        return {"children": len(joined), "by": stamp(ctx.token)}

    async def waiter(self, ctx: JobContext, channel: str, times: int, seconds: float | None) -> dict[str, Any]:
        heard = 0
        for _ in range(times):
            await self._dawdle(ctx)
            payload = await ctx.wait(channel, timeout=None if seconds is None else _time(seconds))
            heard += payload is not None
        return {"heard": heard, "by": stamp(ctx.token)}

    async def chooser(self, ctx: JobContext, choice: str) -> Any:
        by = stamp(ctx.token)
        match choice:
            case "retry":
                return TryAgain(_time(self._chance.choice((0, 1))), error=by)
            case "fail":
                return Fail(by)
            case "cancel":
                raise Cancel(by)
            case "discard":
                raise Discard(by)
            case "snooze" if self._chance.random() < 0.5:
                return Snooze("1s")
            case _:
                return Done({"by": by})

    async def stubborn(self, ctx: JobContext, seconds: float) -> dict[str, Any]:
        """Hears neither cancel nor the loss of its lease, and goes on writing."""
        try:
            await self._sleep(ctx, seconds)
        except asyncio.CancelledError:
            await asyncio.sleep(self._chance.random())
            try:
                await ctx.step("late", self._effect, ctx, "late", 0.1)
                await ctx.progress({"late": True, "by": stamp(ctx.token)})
            except LeaseLost:
                await asyncio.sleep(self._chance.random())
        return {"by": stamp(ctx.token)}

    async def poison(self, ctx: JobContext) -> dict[str, Any]:
        await self._sleep(ctx, self._chance.random())
        if not self._store.healed and self._chance.random() < self._options.load.poison:
            self._here().crash()
            await asyncio.get_running_loop().create_future()
        return {"by": stamp(ctx.token)}

    async def blocking(self, ctx: JobContext, seconds: float) -> dict[str, Any]:
        if not self._store.healed:
            self._here().block(seconds)
        await asyncio.sleep(0.001)
        return {"by": stamp(ctx.token)}

    async def _effect(self, ctx: JobContext, name: str, seconds: float) -> dict[str, Any]:
        self.effects += 1
        self._witness(ctx, name)
        try:
            await self._sleep(ctx, seconds * self._chance.random())
        except asyncio.CancelledError:
            if self._chance.random() < 0.5:
                raise
            # deaf: it goes on, and offers its result to be stored
        return {"by": stamp(ctx.token)}

    def _witness(self, ctx: JobContext, name: str) -> None:
        """An effect begins: under a lease that lasts, and not if it is stored already.

        An attempt that cannot know that it was overtaken may err: its worker was given up before its time, or has
        a clock that runs so slowly that it cannot know the time.
        """
        audit = self._store.audit
        seq = audit.seq_of.get(ctx.id)
        if seq is None:
            return  # the job itself was lost
        mine, stored = _pair(ctx.token), audit.steps.get((seq, name))
        if audit.lease_until[seq, *mine] <= self._store.now() and not self._here().slow_clock:
            what = f"{name} of job {seq} began under {ctx.token}"
            self._store.fail(Violation("nothing begins under a lease that is over", what))
        if stored is not None and mine >= _pair(stored):
            what = f"{name} of job {seq}, stored under {stored}, was done again under {ctx.token}"
            self._store.fail(Violation("a stored step is not repeated", what))

    async def _dawdle(self, ctx: JobContext) -> None:
        """Now and then for as long as it takes to be cancelled without knowing it yet."""
        if self._chance.random() < 0.4:
            await self._sleep(ctx, 2 * self._chance.random() * self._options.settings.heartbeat.total_seconds())

    async def _sleep(self, ctx: JobContext, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self._interrupted(ctx)
            raise

    def _interrupted(self, ctx: JobContext) -> None:
        audit, rare = self._store.audit, self._store.rare
        job = audit.jobs.get(audit.seq_of.get(ctx.id))
        if job is None or job["state"] != State.RUNNING or _pair(ctx.token) != (job["epoch"], job["token"]):
            return
        margin = durations.microseconds(self._options.settings.fence_margin)
        if job["cancel_requested_at"] is not None:
            rare.hit("cancel reaches running handler")
        elif job["lease_until"] - self._store.now() <= margin and not self._here().leaving:
            rare.hit("self-fence fired")


def arguments(  # noqa: PLR0911  one return for each kind
    kind: str, chance: Random, options: Options
) -> dict[str, Any]:
    """What a job of this kind may be given in this world: short and long, beside its leases."""
    ttl = options.settings.lease_ttl.total_seconds()
    seconds = round(chance.choice((0.01, 0.01, 1.0, 1.0, 0.4 * ttl, 1.4 * ttl, 3 * ttl)) * chance.random(), 6)
    match kind:
        case "quick":
            return {"n": chance.randrange(100)}
        case "flaky":
            return {"chance": chance.choice((0.2, 0.8))}
        case "stepping":
            return {"steps": chance.randint(1, 5), "seconds": seconds}
        case "parent":
            return {"children": chance.randint(0, 4), "depth": chance.choice((0, 0, 1, 2))}
        case "waiter":
            name = NEVER if chance.random() < 0.1 else f"channel {chance.randrange(12)}"
            limit = round(chance.uniform(0.1, 60), 6) if chance.random() < 0.5 else None
            return {"channel": name, "times": chance.randint(1, 3), "seconds": limit}
        case "chooser":
            return {"choice": chance.choice(CHOICES)}
        case "poison":
            return {}
        case "blocking":
            return {"seconds": round(ttl * chance.choice((0.3, 1.2, 2.5)), 6)}
        case _:
            return {"seconds": seconds}


@cache
def _signature(kind: str) -> Signature:
    return Signature(kind, getattr(object.__new__(Workload), kind))


def _pair(token: str) -> tuple[int, int]:
    epoch, _, counter = token.partition(".")
    return int(epoch), int(counter)


def _time(seconds: float) -> timedelta:
    return timedelta(microseconds=round(seconds * 1e6))
