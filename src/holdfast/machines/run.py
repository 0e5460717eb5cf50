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
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.agents.core import AgentsCore
from holdfast.clock import Ports
from holdfast.errors import HoldfastError, RunFailed, UsageError
from holdfast.kernel.states import TERMINAL, State
from holdfast.machines.api import ExecutionHandle, Machine, Machines, execution_job, stored_order
from holdfast.machines.hooks import Registry
from holdfast.machines.orders import OWN_PROCESS, QUEUE
from holdfast.settings import Settings
from holdfast.workers.role import Role
from holdfast.workers.worker import Worker

_LOOK = 0.2
_HELPER = Role(until="empty")
WAITS = 75  # come back later, as in sysexits.h


def main(argv: Sequence[str] | None = None) -> int:
    given = _arguments().parse_args(argv)
    try:
        return asyncio.run(_run(given))
    except RunFailed as problem:
        sys.stderr.write(f"holdfast: {problem}\n")
        return 1
    except HoldfastError as problem:
        sys.stderr.write(f"holdfast: {problem}\n")
        return 2


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m holdfast.machines.run", description="Run one machine and exit.")
    parser.add_argument("--machine", help="the machine's file; not needed for an execution that is stored already")
    parser.add_argument("--input", default="{}", help="its input, as JSON")
    parser.add_argument("--execution-id", help="names the execution: the same id is the same execution")
    parser.add_argument("--hooks", action="append", default=[], help="NAME=MODULE:OBJECT, or MODULE:OBJECT")
    parser.add_argument("--bind", action="append", default=[], help="NAME=FILE: what a name in the machine stands for")
    parser.add_argument("--queue", default=QUEUE, help="the queue of the execution")
    parser.add_argument("--url", help="the database; default: HOLDFAST_URL, or a file in .holdfast/")
    return parser


async def _run(given: argparse.Namespace) -> int:
    settings = Settings.from_environment()
    if given.url:
        settings = settings.override({"url": given.url})
    core = AgentsCore(settings, Ports())
    try:
        if given.machine is not None:
            return await play_here(core, await _enqueued(core, given))
        alone = Role(until="empty", queues=(given.queue,), capabilities=(OWN_PROCESS,))
        return await play_here(core, await _stored(core, given), role=alone)
    finally:
        await core.close()


async def _enqueued(core: AgentsCore, given: argparse.Namespace) -> ExecutionHandle[Any]:
    machine: Machine[Any] = Machines(core).declare(
        given.machine,
        None,
        hooks=import_hooks(given.hooks),
        machines=dict(map(named_pair, given.bind)),
        queue=given.queue,
    )
    return await machine.enqueue(read_input(given.input), execution_id=given.execution_id)


async def _stored(core: AgentsCore, given: argparse.Namespace) -> ExecutionHandle[Any]:
    """An execution that somebody launched: it has its machines with it."""
    if given.execution_id is None:
        raise UsageError("say which machine: --machine FILE, or --execution-id ID of one that is stored.")
    machines, hooks, id = Machines(core), Registry(import_hooks(given.hooks)), execution_job(given.execution_id)
    await core.opened()
    bundle = (await stored_order(core, id))[1]
    for name, graph in bundle.machines.items():
        machines.serve(graph, hooks, given.queue, declared=name == bundle.main)
    return ExecutionHandle(core, id)


async def play_here(
    core: AgentsCore, execution: ExecutionHandle[Any], *, alone: bool = False, role: Role = _HELPER
) -> int:
    """Be a worker until the execution has ended, or waits for what does not happen here.

    `alone`: refuse when another process has it.
    """
    has_looked = False
    while True:
        row = await core.runtime().find(execution.id)
        if row.state in TERMINAL or (row.state == State.WAITING and row.channel is not None and row.due_at is None):
            break
        if row.state == State.RUNNING and alone:
            raise UsageError(f"execution {execution.id} is running in another process. It continues there.")
        if has_looked:  # what it needs is done in another process, or later
            await core.ports.clock.sleep(_LOOK)
        has_looked = True
        if await _played(core.make_worker(role)):
            break
    if row.state not in TERMINAL:
        sys.stderr.write(f"holdfast: execution {execution.id} waits: {await execution.why()}\n")
        return WAITS
    sys.stdout.write(json.dumps(await execution.result(), ensure_ascii=False) + "\n")
    return 0


async def _played(worker: Worker) -> bool:
    """Let a worker work; True when SIGTERM or SIGINT came, and what it had was handed back."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    stopping: set[asyncio.Task[None]] = set()

    def stop() -> None:
        told.set()
        worker.hurry()
        stopping.add(asyncio.ensure_future(worker.stop()))

    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not on the main thread, or on Windows
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
    await worker.run()
    return told.is_set()


def import_hooks(named: Sequence[str]) -> Any:
    """Hooks by where they are: `paper=shop.hooks:PaperHooks`, or `shop.hooks:PaperHooks` alone."""
    if not named:
        return None
    sys.path.insert(0, str(Path.cwd()))
    if len(named) == 1 and "=" not in named[0]:
        return [_import(named[0])]
    return {name: _import(target) for name, target in map(named_pair, named)}


def _import(target: str) -> Any:
    module, _, name = target.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as problem:
        raise UsageError(f"hooks {target!r} cannot be imported: {problem}. Write MODULE:OBJECT.") from None


def named_pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        name, value = text.rpartition(":")[2], text
    return name, value


def read_input(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as problem:
        raise UsageError(f"the input is not JSON: {problem}.") from None
    if not isinstance(value, dict):
        raise UsageError("the input of a machine is a JSON object.")
    return value


if __name__ == "__main__":
    sys.exit(main())
