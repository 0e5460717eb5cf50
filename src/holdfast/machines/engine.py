"""The engine: plays the job of a machine, from one checkpoint to the next.

Nothing that was stored is done again. An effect and its checkpoint are two commits, so a crash between them repeats
that one effect; children, launches, runs of agents and signals are started or taken under names that make the second
time harmless.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from holdfast.clock import Ports
from holdfast.errors import BadPayload, HoldfastError, LeaseLost, NotFound, Unavailable, UsageError
from holdfast.kernel import codec
from holdfast.kernel.ids import JobId
from holdfast.kernel.leases import hold
from holdfast.kernel.queries import find_job
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.waiting import check_channel
from holdfast.machines import family
from holdfast.machines.agent_calls import AgentAsker, Answers
from holdfast.machines.bundle import Bundle, unpack
from holdfast.machines.family import (
    LaunchLimit,
    Outcome,
    admit,
    checkpoint_name,
    in_parts,
    joined,
    record,
    replayed,
)
from holdfast.machines.graph import MachineGraph, Stage
from holdfast.machines.hooks import HookRegistry, HookSet, Program
from holdfast.machines.hooks import playing as playing_program
from holdfast.machines.layer import LAYER, MACHINES
from holdfast.machines.orders import OWN_PROCESS, ExecutionOrder, JobPolicy, first_order, new_job, read_order
from holdfast.machines.stepping import (
    HOOKED,
    PROBLEMS,
    ActionCall,
    AskAgent,
    Effect,
    EffectFailed,
    ExecutionInfo,
    Hook,
    Launch,
    MachinePlace,
    RunMachines,
    StateFailure,
    Stepper,
    StepResult,
    TakeSignal,
    WantedRun,
    failure_of,
)
from holdfast.outcomes import Cancel, Discard, Fail, Park, Settled, Snooze
from holdfast.text import LIMIT, traceback_of, without_middle
from holdfast.workers.context import JobContext, ParkRequest
from holdfast.workers.definitions import Definition
from holdfast.workers.signatures import Signature

MOST_DEPTH = 50  # machines that run each other, one inside the other
MOST_LAUNCHES = 1_000  # that launch each other, one after the other
_TOLD_IDS = 1_000  # ids that the output of a launch lists
_MOST_PARTS = 16  # of one checkpoint, each as large as a result may be


class _AlreadyParked(Exception):
    """The job waits already; nothing is left to write."""


class TooDeep(Exception):
    """Machines run or launch each other without an end."""


class Engine:
    """Plays machines for the worker of one program."""

    def __init__(self, asking: AgentAsker, ports: Callable[[], Ports]) -> None:
        self._asking = asking
        self._ports = ports
        self._hooks: dict[str, HookRegistry] = {}
        self._bundles: dict[str, Bundle] = {}
        self.app: str | None = None  # MODULE:APP, by which other processes find the program
        self.play = self._play  # one function for all machines: definitions are compared by it

    def register(self, machine: str, hooks: HookRegistry, *, declared: bool) -> None:
        """Let a machine have these hooks. One that the program has not `declared` itself has those of the machine that
        runs it, and these only if that one is not here."""
        if declared or machine not in self._hooks:
            self._hooks[machine] = hooks

    def hooks_of(self, machine: str) -> HookRegistry | None:
        """The hooks that a machine of the program has; None: it has declared none."""
        return self._hooks.get(machine)

    async def _play(self, ctx: JobContext, order: dict[str, Any]) -> Any:
        """The handler of every machine's job."""
        asked = read_order(order)
        playing_program.set(Program(ctx.settings.url, self.app))
        bundle = await self._bundle(ctx, asked)
        hooks = self._hooks.get(asked.by) or self._hooks.get(asked.machine) or HookRegistry()
        playing = MachineAttempt(ctx, asked, bundle, hooks, asking=self._asking, ports=self._ports())
        try:
            return await _attended(playing, hooks.of(bundle.machines[asked.machine], None), asked)
        except _AlreadyParked:
            return Settled()

    async def _bundle(self, ctx: JobContext, order: ExecutionOrder) -> Bundle:
        if order.digest not in self._bundles:
            stored = order.bundle or await self._stored(ctx, order)
            if len(self._bundles) >= 64:
                self._bundles.clear()
            self._bundles[order.digest] = unpack(stored)
        return self._bundles[order.digest]

    async def _stored(self, ctx: JobContext, order: ExecutionOrder) -> dict[str, Any]:
        row = await ctx.database.transact(find_job, JobId(order.of))
        stored: dict[str, Any] | None = codec.decode(row.payload)["order"].get("bundle")
        if stored is None:
            raise NotFound(f"job {order.of} does not have the machines of job {ctx.id}.")
        return stored


class MachineAttempt:
    """One attempt at one machine."""

    def __init__(
        self,
        ctx: JobContext,
        order: ExecutionOrder,
        bundle: Bundle,
        hooks: HookRegistry,
        *,
        asking: AgentAsker,
        ports: Ports,
    ) -> None:
        self._ctx = ctx
        self._order = order
        self._bundle = bundle
        self._machine: MachineGraph = bundle.machines[order.machine]
        self._registry = hooks
        self._asking = asking
        self._ports = ports
        self._number = 0  # of the next checkpoint

    @property
    def id(self) -> str:
        return str(self._ctx.id)

    @property
    def machine(self) -> MachineGraph:
        return self._machine

    async def play(self) -> Any:
        """Until it has ended; raises what parks its job.

        What is stored is not done again, not even after a checkpoint that is: a failover may have lost the one, and the
        attempt of then stored the other after it.
        """
        place = await self._stored(None)
        if place is None:
            stepper = self._stepper(self._order.start.state if self._order.start else self._machine.initial)
            start = self._order.start
            moved = stepper.begin() if start is None else stepper.resume(start.state, start.context)
            place = await self._store(None, await self._recover(moved))
        while not place.has_ended:
            stored = await self._stored(place)
            place = stored or await self._store_move(place, await self._recover(await self._move(place)))
        if place.failure is not None:
            return Fail(place.failure.message, place.failure.type, self._trace(place, place.failure))
        return place.result

    def _trace(self, place: MachinePlace, failure: StateFailure) -> str:
        """In which state it failed, and what raised it there."""
        at = self._machine.states[place.state].at
        line = f'  File "{at.file}", line {at.line}, in state {place.state!r} of machine {self._machine.name!r}\n'
        return without_middle(line + failure.trace, LIMIT)

    async def _stored(self, before: MachinePlace | None) -> MachinePlace | None:
        """Where the next checkpoint led, if it is stored."""
        stored = await self._ctx.ledger.find_step(checkpoint_name(self._number))
        if stored is None:
            return None
        found = codec.decode(stored)
        if "parts" in found:
            found = joined([await self._ctx.ledger.find_step(name) or "" for name in found["parts"]])
        self._number += 1
        return replayed(before, found)

    async def _store_move(self, place: MachinePlace, moved: StepResult) -> MachinePlace:
        """Store a move. One that is larger than the store takes is the failure of its state."""
        try:
            return await self._store(place, moved)
        except BadPayload as problem:
            failed = self._stepper(place.state).failed(place, failure_of(problem))
            return await self._store(place, await self._recover(failed))

    async def _store(self, before: MachinePlace | None, moved: StepResult) -> MachinePlace:
        """In one step, or in several: the results of many items may be more than one step holds."""
        cap, state = self._ctx.settings.result_cap, moved.to.state
        codec.encode(moved.to.result, what=f"the output of the machine, from state {state!r},", cap=cap)
        what = f"what state {state!r} keeps (at most {_MOST_PARTS} times `result_cap`)"
        text = codec.encode(record(before, moved), what=what, cap=_MOST_PARTS * cap)
        parts, own = in_parts(self._number, text, cap)
        for name, piece in parts:
            await self._ctx.ledger.store_step(name, piece)
        await self._ctx.ledger.store_step(checkpoint_name(self._number), own)
        self._number += 1
        return moved.to

    def _stepper(self, state: str) -> Stepper:
        methods = self._registry.of(self._machine, state).methods - {"on_machine_start", "on_machine_end"}
        methods |= self._registry.of(self._machine, None).methods & {"on_machine_start", "on_machine_end"}
        about = ExecutionInfo(self._ctx.id, self._order.parent, self._order.depth)
        return Stepper(self._machine, self._order.input, about, methods)

    async def _move(self, place: MachinePlace) -> StepResult:
        """Do what is to be done next, and say where that leads."""
        stepper = self._stepper(place.state)
        try:
            output = await self._perform(place, stepper.effect(place))
        except (*PROBLEMS, BadPayload) as problem:
            return stepper.failed(place, failure_of(problem))
        except EffectFailed as problem:
            return stepper.failed(place, problem.failure)
        return stepper.succeeded(place, output)

    async def _recover(self, moved: StepResult) -> StepResult:
        """When nothing in the machine takes an error, its hooks may."""
        place, failure = moved.to, moved.to.failure
        hooks = self._registry.of(self._machine, place.state)
        if failure is None or "on_error" not in hooks.methods or place.over:
            return moved
        stepper = self._stepper(place.state)
        try:
            async with _of_the_program(None):
                to = await hooks.first("on_error", place.state, failure.message, _plain(stepper.seen(place)))
        except EffectFailed:
            return moved
        if not isinstance(to, str):
            return moved
        found = stepper.recovered(place, to)
        return StepResult(found.to, (*moved.events[:-1], *found.events))

    async def _perform(self, place: MachinePlace, effect: Effect) -> Any:
        state = self._machine.states[place.state]
        match effect:
            case Hook():
                return await self._hook(state, effect)
            case ActionCall():
                return await self._act(state, effect)
            case TakeSignal():
                return await self._wait(state, effect)
            case RunMachines():
                return await self._run(state, effect)
            case Launch():
                return await self._launch(place, state, effect)
            case AskAgent():
                answers = Answers(self._ctx, self._asking, self._ports, self._number, self._settled)
                return await answers.ask(self._machine, state, effect)

    def _timeout(self, state: Stage) -> float | None:
        return self._machine.settings.timeout if state.timeout is None else state.timeout

    def _hooks(self, state: Stage | None) -> HookSet:
        return self._registry.of(self._machine, None if state is None else state.name)

    # What hooks do

    async def _hook(self, state: Stage, effect: Hook) -> Any:
        method, context = HOOKED[effect.part], _plain(effect.context)
        async with _of_the_program(self._timeout(state)):
            match effect.part:
                case "start":
                    return _plain(await self._hooks(None).fold(method, value=context))
                case "enter":
                    return _plain(await self._hooks(state).fold(method, state.name, value=context))
                case "exit":
                    return _plain(await self._hooks(state).fold(method, state.name, context, value=effect.output))
                case "end":
                    return _plain(await self._hooks(None).fold(method, context, value=effect.output))
                case _:
                    return await self._hooks(state).first(method, state.name, effect.to, context) or effect.to

    async def _act(self, state: Stage, effect: ActionCall) -> Any:
        hooks = self._hooks(state)
        if not effect.each:
            async with _of_the_program(self._timeout(state)):
                return _plain(await hooks.action(state.name, effect.action, _plain(effect.contexts[0])))
        outputs = []
        for number, context in enumerate(effect.contexts):
            outputs.append(await self._act_for(number, hooks, state, effect.action, context))
        return outputs if effect.keys is None else dict(zip(effect.keys, outputs, strict=True))

    async def _act_for(self, number: int, hooks: HookSet, state: Stage, action: str, context: dict[str, Any]) -> Any:
        """One item: what it put out is stored at once, so that it is not done again."""
        step = checkpoint_name(self._number, f"item {number}")
        stored = await self._ctx.ledger.find_step(step)
        if stored is None:
            async with _of_the_program(self._timeout(state)):
                output = _plain(await hooks.action(state.name, action, _plain(context)))
            output = (
                {name: each for name, each in output.items() if name != "machine"}
                if isinstance(output, dict)
                else output
            )
            text = codec.encode(output, what=f"the output of {action!r}", cap=self._ctx.settings.result_cap)
            stored = await self._ctx.ledger.store_step(step, text)
        return codec.decode(stored)

    # What waits without a worker

    async def _wait(self, state: Stage, effect: TakeSignal) -> Any:
        """The signal is taken and stored in one transaction; only then is its state left."""
        try:
            check_channel(effect.channel)
        except HoldfastError as problem:
            raise EffectFailed(failure_of(problem)) from None
        step = checkpoint_name(self._number, "signal")
        stored = await self._ctx.ledger.find_step(step)
        if stored is not None:
            return codec.decode(stored)
        taken = await self._ctx.ledger.take_signal(effect.channel, step)
        if taken.payload is not None:
            return codec.decode(taken.payload)
        left = await self._time_left(state, taken.now)
        if left is not None and left <= 0:
            raise EffectFailed(_timed_out(state))
        raise ParkRequest(Park(effect.channel, None if left is None else f"{left}us"))

    async def _time_left(self, state: Stage, now: int) -> int | None:
        """Microseconds until this state's time is over, by the clock of the store; None: it has no end."""
        timeout = self._timeout(state)
        if timeout is None:
            return None
        step = checkpoint_name(self._number, "until")
        stored = await self._ctx.ledger.find_step(step)
        until = int(stored or await self._ctx.ledger.store_step(step, str(now + round(timeout * 1e6))))
        return until - now

    async def _now(self) -> int:
        return (await self._ctx.database.transact(hold, self._ctx.lease)).now

    async def _run(self, state: Stage, effect: RunMachines) -> Any:
        """Start the children once, then wait for all, or for the first that succeeds."""
        step = checkpoint_name(self._number, "machine")
        ids = family.child_ids(self._ctx, step, len(effect.wanted))
        if await self._ctx.ledger.find_step(step) is None:
            pairs = zip(ids, effect.wanted, strict=True)
            jobs = (self._job(id, self._child(each)) for id, each in pairs)
            await self._started(family.start_children(self._ctx, jobs, self._root()), ids)
            await self._ctx.ledger.store_step(step, str(len(ids)))
        ended = await self._settled(state, ids, first=effect.first)
        if effect.first:
            return await self._only(_winner(ended)) if ended else None
        if effect.single:
            return await self._only(ended[0])
        outputs = [_shown(each) for each in ended]
        return outputs if effect.labels is None else dict(zip(effect.labels, outputs, strict=True))

    async def _started(self, starting: Awaitable[None], children: Sequence[JobId]) -> None:
        """Machines are started, or they are too many; then the children that have begun are not awaited."""
        try:
            await starting
        except family.TooManyMachines as problem:
            await family.cancel_started(self._ctx, children, str(problem))
            raise EffectFailed(failure_of(problem)) from None

    def _root(self) -> JobId | None:
        """Where machines that can run or launch themselves are counted; None: this one cannot."""
        return JobId(self._order.family or self._ctx.id) if self._bundle.recurs(self._machine.name) else None

    async def _only(self, outcome: Outcome | None) -> Any:
        """The result of a child; what it failed with is what its state fails with, by all its classes."""
        assert outcome is not None
        if not outcome.succeeded:
            raise EffectFailed((await family.with_classes(self._ctx.database, outcome)).failure)
        return outcome.result

    async def _settled(self, state: Stage, ids: Sequence[JobId], *, first: bool = False) -> list[Outcome | None]:
        """How these children ended. Those that are still open, and not awaited any more, are cancelled."""
        ended = await family.outcomes(self._ctx, ids)
        still_open = [id for id, outcome in zip(ids, ended, strict=True) if outcome is None]
        if not still_open:
            return ended
        if first and any(outcome is not None and outcome.succeeded for outcome in ended):
            await family.cancel_children(self._ctx.database, still_open, f"another child of {self._ctx.id} was first")
            return ended
        left = None if self._timeout(state) is None else await self._time_left(state, await self._now())
        if left is not None and left <= 0:
            await family.cancel_children(self._ctx.database, still_open, f"state {state.name!r} has timed out")
            raise EffectFailed(_timed_out(state))
        if first and await family.wait_for_first(self._ctx, still_open, left):
            raise _AlreadyParked
        if first:
            return await self._settled(state, ids, first=first)
        raise ParkRequest(Park(None, None if left is None else f"{left}us"))

    def _child(self, wanted: WantedRun) -> ExecutionOrder:
        if self._order.depth >= MOST_DEPTH:
            problem = TooDeep(f"machines run each other, {MOST_DEPTH} deep.")
            raise EffectFailed(failure_of(problem))
        name = self._called(wanted)
        root = self._ctx.id if self._order.bundle is not None else self._order.of
        return ExecutionOrder(name, wanted.input, self._order.digest, of=root, **self._below())

    def _below(self) -> dict[str, Any]:
        """What an order that comes from this one says of it."""
        by = self._order.by or self._machine.name
        root = self._order.family or self._ctx.id
        return {"by": by, "parent": self._ctx.id, "family": root, "depth": self._order.depth + 1}

    def _called(self, wanted: WantedRun) -> str:
        try:
            return self._bundle.called(self._machine.name, wanted.name)
        except UsageError as problem:
            raise EffectFailed(failure_of(problem)) from None

    def _job(self, id: JobId, order: ExecutionOrder, queue: str | None = None) -> Any:
        """`queue`: that of processes which are started for it."""
        way = JobPolicy(queue or self._ctx.queue, self._ctx.tenant, self._ctx.lease.priority)
        way = replace(way, requires=(OWN_PROCESS,)) if queue else way
        return new_job(id, order, way, self._ctx.settings)

    async def _launch(self, place: MachinePlace, state: Stage, effect: Launch) -> Any:
        """Start machines that are on their own from then on."""
        if self._order.depth >= MOST_LAUNCHES:
            problem = TooDeep(f"machines launch each other, {MOST_LAUNCHES:,} one after the other.")
            raise EffectFailed(failure_of(problem))
        ids = family.child_ids(self._ctx, checkpoint_name(self._number, "launch"), len(effect.wanted))
        bundles = {each.name: self._bundle.of(self._called(each)) for each in effect.wanted}
        orders = {name: first_order(bundle, {}, **self._below()) for name, bundle in bundles.items()}
        pairs = zip(ids, effect.wanted, strict=True)
        orders_of = ((id, replace(orders[each.name], input=each.input)) for id, each in pairs)
        asked = await self._admission(place, state, effect)
        if asked is not None:
            some = itertools.islice(orders_of, max(0, asked.most))  # no more could be admitted
            jobs = [self._job(id, order, asked.queue) for id, order in some]
            return await self._admit(state, asked, jobs, wanted=len(ids))
        jobs_of = (self._job(id, order) for id, order in orders_of)
        await self._started(family.launch(self._ctx, jobs_of, self._root()), ())
        return {"count": len(ids), "execution_ids": list(ids[:_TOLD_IDS])}

    async def _admission(self, place: MachinePlace, state: Stage, effect: Launch) -> LaunchLimit | None:
        if "on_launch" not in self._hooks(state).methods:
            return None
        names = [each.name for each in effect.wanted]
        async with _of_the_program(self._timeout(state)):
            context = _plain(self._stepper(place.state).seen(place))
            asked: LaunchLimit | None = await self._hooks(state).first("on_launch", names, context)
        return asked

    async def _admit(self, state: Stage, asked: LaunchLimit, jobs: Sequence[Any], *, wanted: int) -> Any:
        """Who may start is decided once, also if this state is played again; who starts them may come twice."""
        step = checkpoint_name(self._number, "admitted")
        stored = await self._ctx.ledger.find_step(step)
        if stored is None:
            stored = await self._ctx.database.transact(admit, self._ctx.lease, asked, jobs, step)
        ids = codec.decode(stored)
        async with _of_the_program(self._timeout(state)):
            await self._hooks(state).first("on_launched", ids, asked.queue, self._ctx.settings.url)
        return {"count": len(ids), "execution_ids": ids, "refused": wanted - len(ids)}


async def _attended(playing: MachineAttempt, hooks: HookSet, order: ExecutionOrder) -> Any:
    """Play, and tell hooks that take part in every attempt when it begins and how it ends."""
    if "on_attempt_start" not in hooks.methods:
        return await playing.play()
    how = "interrupted"
    await hooks.first("on_attempt_start", playing.id, playing.machine, _plain(order.input))
    try:
        result = await playing.play()
        how = "failed" if isinstance(result, Fail) else "ended"
        return result
    except (ParkRequest, _AlreadyParked):
        how = "parked"
        raise
    finally:
        await hooks.first("on_attempt_end", playing.id, how)


@contextlib.asynccontextmanager
async def _of_the_program(timeout: float | None) -> AsyncIterator[None]:
    """Around code of the program: what it raises is the failure of its state."""
    try:
        async with asyncio.timeout(timeout):
            yield
    except (LeaseLost, Unavailable, Cancel, Discard, Snooze):
        raise
    except Exception as problem:
        raise EffectFailed(replace(failure_of(problem), trace=traceback_of(problem))) from problem


def _plain(value: Any) -> Any:
    """A copy, as JSON. Hooks change what they are given; what they return and JSON does not have is their failure."""
    return codec.decode(codec.encode(value, what="a value", cap=1 << 30))


def _timed_out(state: Stage) -> StateFailure:
    return failure_of(TimeoutError(f"state {state.name!r} has timed out."))


def _shown(outcome: Outcome | None) -> Any:
    """A result among others: an error is a value there."""
    assert outcome is not None
    if outcome.succeeded:
        return outcome.result
    return {"_error": outcome.error, "_error_type": outcome.error_type}


def _winner(ended: Sequence[Outcome | None]) -> Outcome | None:
    known = [outcome for outcome in ended if outcome is not None]
    return next((outcome for outcome in known if outcome.succeeded), known[0])


def machine_definition(kind: str, queue: str, engine: Engine) -> Definition:
    """The definition of a machine's jobs. What its states raise is the machine's business, so it is not retried; what
    the engine raises is."""
    return Definition(
        kind=kind,
        function=engine.play,
        signature=Signature(kind, engine.play),
        queue=queue,
        requires=frozenset(),
        retry=RetryPolicy(),
        timeout_us=None,
        deadline_us=None,
        priority=100,
        isolate=None,
        slots=MACHINES.name,
        layer=LAYER,
    )
