"""`python -m holdfast.machines.run`: one execution of a machine in a process of its own.

It enqueues the execution, or finds the one that the id names, plays it here, prints its output and exits: 0 when it
succeeded, 1 when it failed, 2 when it was called wrongly, 75 when it waits for a signal and some other process has to
continue it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from holdfast.agents.core import AgentsCore
from holdfast.clock import Ports
from holdfast.errors import HoldfastError, RunFailed, UsageError
from holdfast.kernel.ids import JobId
from holdfast.kernel.queries import now
from holdfast.kernel.rows import JobRow
from holdfast.kernel.states import TERMINAL, State
from holdfast.kernel.workers import present_workers
from holdfast.machines.api import ExecutionHandle, Machine, Machines, execution_job, start_execution, stored_order
from holdfast.machines.bundle import Bundle, load_file
from holdfast.machines.family import waits_for_others
from holdfast.machines.hooks import HookRegistry
from holdfast.machines.layer import MachineLayer, layer_of
from holdfast.machines.orders import OWN_PROCESS, OWN_QUEUES, QUEUE, first_order
from holdfast.settings import Settings, given_url
from holdfast.workers.role import Role
from holdfast.workers.worker import Worker

# Code of a program by where it is: hooks, and the app with its agents, as command lines name them.


def import_hooks(named: Sequence[str]) -> Any:
    """Hooks by where they are: `paper=shop.hooks:PaperHooks`, or `shop.hooks:PaperHooks` alone."""
    if not named:
        return None
    sys.path.insert(0, str(Path.cwd()))
    if len(named) == 1 and "=" not in named[0]:
        return [_import(named[0], "hooks")]
    return {name: _import(target, "hooks") for name, target in map(named_pair, named)}


def import_app(target: str) -> tuple[AgentsCore, Machines]:
    """The app that `shop:hf` names, as what is built on it sees it. A module with just one needs no `:hf`."""
    sys.path.insert(0, str(Path.cwd()))
    found = [_import(target, "app")] if ":" in target else [*vars(_import(target, "app")).values()]
    apps = [parts for each in found if (parts := _parts(each)) is not None]
    if len(apps) != 1:
        raise UsageError(f"{target!r} is not a Holdfast app; write MODULE:APP, as in shop:hf.")
    core, machines = apps[0]
    machines.engine.app = target
    return core, machines


def _parts(app: object) -> tuple[AgentsCore, Machines] | None:
    core, machines = getattr(app, "_core", None), getattr(app, "_machines", None)
    return (core, machines) if isinstance(core, AgentsCore) and isinstance(machines, Machines) else None


def _import(target: str, what: str) -> Any:
    module, _, name = target.partition(":")
    try:
        found = importlib.import_module(module)
        return getattr(found, name) if name else found
    except (ImportError, AttributeError, ValueError) as problem:
        raise UsageError(f"{what} {target!r} cannot be imported: {problem}. Write MODULE:OBJECT.") from None


def named_pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        name, value = text.rpartition(":")[2], text
    return name, value


_LOOK = 0.2
_NOBODY = 2**31 - 2  # no worker has this number: it is absent wherever the store can tell who is
_HELPER = Role(until="empty")
_SWEEPER = Role(until="empty", queues=("no queue",))
WAITS = 75  # come back later, as in sysexits.h


def main(argv: Sequence[str] | None = None) -> int:
    given = _arguments().parse_args(argv)
    with asyncio.Runner() as runner:
        return _ended(runner, given)


def main_of_a_process(argv: Sequence[str] | None = None) -> NoReturn:
    """As `main`, and exit, also when an action on a thread, which nobody can stop, would keep the process."""
    given, runner = _arguments().parse_args(argv), asyncio.Runner()
    code = _ended(runner, given)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _ended(runner: asyncio.Runner, given: argparse.Namespace) -> int:
    try:
        return runner.run(_run(given))
    except RunFailed as problem:
        sys.stderr.write(f"holdfast: {problem}\n")
        return 1
    except HoldfastError as problem:
        sys.stderr.write(f"holdfast: {problem}\n")
        return 2


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m holdfast.machines.run", description="Run one machine and exit.")
    parser.add_argument("--machine", help="the machine's file; not needed for an execution that is stored already")
    parser.add_argument("--input", default="{}", help="its input, as JSON; - reads it from the standard input")
    parser.add_argument("--execution-id", help="names the execution: the same id is the same execution")
    parser.add_argument("--parent-id", help="the execution that starts this one; templates find it in context.machine")
    parser.add_argument("--hooks", action="append", default=[], help="NAME=MODULE:OBJECT, or MODULE:OBJECT")
    parser.add_argument("--bind", action="append", default=[], help="NAME=FILE: what a name in the machine stands for")
    parser.add_argument("--queue", default=QUEUE, help="the queue of the execution")
    parser.add_argument(
        "--app", help="MODULE:APP: the program whose agents and hooks the machine finds; default: HOLDFAST_APP"
    )
    parser.add_argument("--url", help="the database; default: HOLDFAST_URL, or a file in .holdfast/")
    return parser


async def _run(given: argparse.Namespace) -> int:
    core, machines = _program(given)
    try:
        if given.machine is not None:
            execution, bundle = await _enqueued(core, machines, given)
            role = _HELPER if given.app is None else role_of(core, bundle, given.queue)
            return await play_here(core, execution, role=role)
        execution, bundle = await _stored(core, machines, given)
        return await play_here(core, execution, role=role_of(core, bundle, given.queue))
    finally:
        await core.close()


def _program(given: argparse.Namespace) -> tuple[AgentsCore, Machines]:
    """The program that is named, with its agents and hooks; else one that has none."""
    given.app = given.app or os.environ.get("HOLDFAST_APP")
    if given.app is None:
        core = AgentsCore(Settings.from_environment(), Ports())
        machines = Machines(core)
    else:
        core, machines = import_app(given.app)
        core.binding.embedded = False
    if url := given.url or given_url():
        core.settings = core.settings.override({"url": url})
    return core, machines


def role_of(core: AgentsCore, bundle: Bundle, queue: str) -> Role:
    """The worker that plays an execution: in its own queue, and in those of the agents that its states ask."""
    named = [
        machine.agents.get(state.agent, state.agent)
        for machine in bundle.machines.values()
        for state in machine.states.values()
        if state.agent is not None
    ]
    asked = _agent_queues(core, [name for name in named if isinstance(name, str)])
    own = (OWN_PROCESS,) if queue.startswith(OWN_QUEUES) else ()
    return Role(until="empty", queues=(queue, *sorted(asked - {queue})), capabilities=own)


def _agent_queues(core: AgentsCore, names: Sequence[str]) -> set[str]:
    """Where the program's agents of these names run, their tools, and the agents that they call."""
    found: set[str] = set()
    left, seen = [*names], set[str]()
    while left:
        name = left.pop()
        if name in core.defined and name not in seen:
            seen.add(name)
            spec = core.defined[name].spec
            found |= {spec.queue, *(each.queue for each in (*spec.tools, *spec.agents))}
            left += [each.name for each in spec.agents]
    return found


async def _enqueued(
    core: AgentsCore, machines: Machines, given: argparse.Namespace
) -> tuple[ExecutionHandle[Any], Bundle]:
    declared = machines.engine.hooks_of(load_file(given.machine).name)
    machine: Machine[Any] = machines.declare(
        given.machine,
        None,
        hooks=declared or import_hooks(given.hooks),
        machines=dict(map(named_pair, given.bind)),
        queue=given.queue,
    )
    await core.opened()  # first: a person who looks for what is wrong may have no input
    text = await asyncio.to_thread(sys.stdin.read) if given.input == "-" else given.input
    order = first_order(machine.bundle, read_input(text), parent=given.parent_id)
    return await start_execution(core, order, given.queue, execution_id=given.execution_id), machine.bundle


async def _stored(
    core: AgentsCore, machines: Machines, given: argparse.Namespace
) -> tuple[ExecutionHandle[Any], Bundle]:
    """An execution that somebody launched: it has its machines with it. Hooks of the program come first."""
    if given.execution_id is None:
        raise UsageError("say which machine: --machine FILE, or --execution-id ID of one that is stored.")
    hooks, id = HookRegistry(import_hooks(given.hooks)), execution_job(given.execution_id)
    await core.opened()
    bundle = (await stored_order(core, id))[1]
    for name, graph in bundle.machines.items():
        machines.serve(graph, hooks, given.queue, declared=given.app is None and name == bundle.main)
    return ExecutionHandle(core, id), bundle


async def play_here(
    core: AgentsCore, execution: ExecutionHandle[Any], *, alone: bool = False, role: Role = _HELPER
) -> int:
    """Be a worker until the execution has ended, or waits for what does not happen here.

    `alone`: refuse when another process has it, and lives.
    """
    layer = layer_of(core.registry)
    stop = _Stop(layer)
    try:
        with stop.listening():
            return await _to_the_end(core, execution, stop, role=role, alone=alone)
    finally:
        await layer.tell("on_attempt_end", str(execution.id), "left")


async def _to_the_end(
    core: AgentsCore, execution: ExecutionHandle[Any], stop: _Stop, *, role: Role, alone: bool
) -> int:
    looked = False
    while True:
        row = await core.runtime().find(execution.id)
        if row.state in TERMINAL or await core.runtime().transact(waits_for_others, execution.id):
            break
        if row.state == State.RUNNING and alone and await _is_played(core, row):
            raise UsageError(f"execution {execution.id} is running in another process. It continues there.")
        if looked or row.state == State.RUNNING:  # another process has it, or what it waits for
            await core.ports.clock.sleep(_LOOK)
        looked = True
        if not stop.asked:
            await stop.work(core.make_worker(role))
        if stop.asked:
            await stop.finish()
            break
    if row.state not in TERMINAL:
        sys.stderr.write(f"holdfast: execution {execution.id} waits: {await execution.why()}\n")
        return WAITS
    sys.stdout.write(json.dumps(await execution.result(), ensure_ascii=False) + "\n")
    return 0


async def take_back(core: AgentsCore, id: JobId) -> None:
    """Let nobody have an execution any more whose process was killed, without playing it here."""
    row = await core.runtime().find(id)
    while row.state == State.RUNNING and not await _is_played(core, row):
        await core.make_worker(_SWEEPER).run()
        row = await core.runtime().find(id)


async def _is_played(core: AgentsCore, first: JobRow) -> bool:
    """Whether a process that lives has this execution. One that was killed shows no presence any more.

    For a while after a connect, and behind a pooler, the store cannot tell that. Then the lease says it: who lives
    renews it, and that of a dead process ends.
    """
    runtime, row, is_announced = core.runtime(), first, False
    while row.state == State.RUNNING and row.worker is not None and row.lease_until is not None:
        if await runtime.transact(now) >= row.lease_until:
            return False
        if row.worker in {worker for worker, _ in await runtime.transact(present_workers)}:
            absent = await runtime.database.presence.absent((row.worker, _NOBODY))
            if _NOBODY in absent:
                return row.worker not in absent
        if (row.epoch, row.token, row.lease_until) != (first.epoch, first.token, first.lease_until):
            return True
        if not is_announced:
            sys.stderr.write(f"holdfast: waiting to see whether the process that has execution {row.id} lives\n")
            is_announced = True
        await core.ports.clock.sleep(_LOOK)
        row = await runtime.find(first.id)
    return False


class _Stop:
    """SIGTERM and SIGINT: one handler for all workers that an execution needs here, and for the pauses between them."""

    def __init__(self, layer: MachineLayer) -> None:
        self._layer = layer
        self._worker: Worker | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def asked(self) -> bool:
        return bool(self._tasks)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        loop, numbers = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
        # not on the main thread, or on Windows
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            for number in numbers:
                loop.add_signal_handler(number, self._told)
        try:
            yield
        finally:
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                for number in numbers:
                    loop.remove_signal_handler(number)

    async def work(self, worker: Worker) -> None:
        """Let a worker work until it has nothing to do, or hands back what it has."""
        self._worker = worker
        try:
            await worker.run()
        finally:
            self._worker = None

    async def finish(self) -> None:
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        await self._layer.tell("on_stopped")

    def _told(self) -> None:
        """A second signal waits for no hooks."""
        self._tasks.append(asyncio.ensure_future(self._hand_back() if self._tasks else self._stop()))

    async def _stop(self) -> None:
        await self._layer.tell("on_stopping")
        await self._hand_back()

    async def _hand_back(self) -> None:
        if self._worker is not None:
            self._worker.hurry()
            await self._worker.stop()


def read_input(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"the input is not JSON: {problem}.") from None
    if not isinstance(value, dict):
        raise UsageError("the input of a machine is a JSON object.")
    return value


if __name__ == "__main__":
    main_of_a_process()
