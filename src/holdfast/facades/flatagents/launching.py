"""Launching: processes that each play one execution and exit. They are started and left alone."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from holdfast.agents.core import AgentsCore
from holdfast.clock import Ports
from holdfast.errors import HoldfastError, UsageError
from holdfast.facades.flatagents.environment import child_environment
from holdfast.kernel.ids import JobId, new_id
from holdfast.kernel.states import TERMINAL
from holdfast.machines.api import Machine, start_execution
from holdfast.machines.family import waits_for_others
from holdfast.machines.orders import OWN_PROCESS, first_order
from holdfast.machines.run import WAITS, main_of_a_process
from holdfast.workers.role import Role
from holdfast.workers.worker import Worker

log = logging.getLogger("holdfast.flatagents")

SHIPPED_HOOKS = "holdfast.facades.flatagents:DistributedWorkerHooks"
FOLDERS = (".", "config")
_RUN = "holdfast.machines.run"
_LOOK = 0.2  # seconds until an execution that others hold is looked at again


class SubprocessInvoker:
    """Starts `python -m holdfast.machines.run`, detached from this process."""

    def __init__(
        self,
        hooks: str = SHIPPED_HOOKS,
        *,
        url: str | None = None,
        app: str | None = None,
        backends: Mapping[str, Any] | None = None,
        bind: Mapping[str, str] | None = None,
    ) -> None:
        """`hooks` is MODULE:OBJECT, and `app` the program's MODULE:APP, whose agents and hooks its machines then find.
        Without it, HOLDFAST_APP names it. `bind` says which file a name in a machine stands for."""
        self._hooks = hooks
        self._url = url
        self._app = app
        self._backends = backends
        self._bind = dict(bind or {})

    def launch(
        self, machine: str, input: Mapping[str, Any], *, execution_id: str | None = None, parent_id: str | None = None
    ) -> str:
        """Start a machine in a process of its own; returns the id of its execution.

        `parent_id` names the execution that starts it.
        """
        id = execution_id or str(new_id(Ports()))
        bound = [part for name, file in self._bind.items() for part in ("--bind", f"{name}={file}")]
        said = ["--machine", found_machine(machine), "--input", "-", "--execution-id", id]
        parent = [] if parent_id is None else ["--parent-id", parent_id]
        self._start([*said, *parent, *bound], self._url, json.dumps(dict(input)))
        return id

    def play(self, execution_ids: Sequence[str], queue: str, url: str) -> None:
        """Start a process for each of these executions, which are stored already."""
        for id in execution_ids:
            self._start(["--execution-id", id, "--queue", queue], self._url or url)

    def command(self, said: Sequence[str]) -> list[str]:
        """Its command line, which everybody can read: the database and the input are told in other ways."""
        where = [] if self._app is None else ["--app", self._app]
        return [sys.executable, "-m", _RUN, *said, "--hooks", self._hooks, *where]

    def environment(self, url: str | None) -> dict[str, str]:
        """What its process is told beside the command line."""
        return child_environment(self._backends, url)

    def _start(self, said: Sequence[str], url: str | None, input: str = "") -> None:
        with tempfile.TemporaryFile() as given:  # it has no name, and is there until the process has read it
            given.write(input.encode())
            given.seek(0)
            command = self.command(said)
            process = subprocess.Popen(
                command,
                env=self.environment(url),
                stdin=given,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        ending = threading.Thread(target=_ended, args=(process, command), name=f"end of {process.pid}", daemon=True)
        ending.start()  # it leaves no zombie
        log.info("process %d plays %s", process.pid, " ".join(said))


def _ended(process: subprocess.Popen[bytes], command: Sequence[str]) -> None:
    """What a machine fails with stands in the store. A process that could not even begin is only heard of here.

    Without its input the command says the same, or that there is none, and starts nothing.
    """
    code = process.wait()
    if code not in (0, 1, WAITS):
        called, without = shlex.join(command), ""
        if "--input" in command:
            called, without = f"{called} </dev/null", ", without its input"
        log.warning(
            "process %d has ended with %d; to see why, run it yourself%s: %s", process.pid, code, without, called
        )


class InLoopInvoker:
    """Plays machines in this process, beside what else an event loop of it does: nobody waits for them.

    That is the loop in which it was made, or if there was none or it has ended, the one of calls that are not awaited.
    What these machines launch is played there too.
    """

    def __init__(self, core: AgentsCore) -> None:
        self._core = core
        self._loop = _running_loop()
        self._starting: set[Future[None]] = set()
        self._asked: dict[str, set[str]] = {}  # the executions of each queue that are played
        self._tasks: dict[asyncio.Task[None], asyncio.AbstractEventLoop] = {}
        self._workers: dict[asyncio.Task[None], Worker] = {}
        core.closing.append(self._close)

    def launch(self, machine: Machine[Any], input: Mapping[str, Any], queue: str, metadata: Mapping[str, Any]) -> str:
        """Enqueue a machine and play it; returns the id of its execution. From any thread."""
        id = new_id(self._core.ports)
        order = first_order(machine.bundle, input)

        async def starting() -> None:
            await start_execution(self._core, order, queue, execution_id=id, metadata=metadata)
            self._begin([id], queue)

        self._run(starting())
        return str(id)

    def play(self, execution_ids: Sequence[str], queue: str, url: str) -> None:
        """Play these executions, which are stored already; from any thread. `url` is that of the app."""
        ids = tuple(execution_ids)

        async def starting() -> None:
            self._begin(ids, queue)

        self._run(starting())

    def _run(self, starting: Coroutine[Any, Any, None]) -> None:
        loop = self._loop
        if loop is None or loop.is_closed():
            loop = self._loop = self._core.call(_this_loop())
        future = asyncio.run_coroutine_threadsafe(starting, loop)
        self._starting.add(future)
        future.add_done_callback(self._begun)

    def _begun(self, future: Future[None]) -> None:
        self._starting.discard(future)
        if not future.cancelled() and (problem := future.exception()) is not None:
            log.warning("a machine of a trigger could not be started: %s", problem)

    async def finished(self) -> None:
        """Wait until nothing is played any more."""
        while awaited := [*map(asyncio.wrap_future, self._starting), *self._tasks]:
            await asyncio.wait(awaited)

    def _begin(self, ids: Sequence[str], queue: str) -> None:
        """One worker plays all of a queue."""
        if queue in self._asked:
            self._asked[queue].update(ids)
            return
        self._asked[queue] = set(ids)
        task = asyncio.create_task(self._play(queue), name=f"machines of {queue}")
        self._tasks[task] = asyncio.get_running_loop()
        task.add_done_callback(self._tasks.pop)

    async def _play(self, queue: str) -> None:
        invoking.set(self)
        role = Role(until="empty", queues=(queue,), capabilities=(OWN_PROCESS,))
        task, left = asyncio.current_task(), self._asked[queue]
        assert task is not None
        try:
            while left:
                worker = self._workers[task] = self._core.make_worker(role)
                await worker.run()
                for id in tuple(left):  # others may be added meanwhile
                    if await self._is_over(id):
                        left.discard(id)
                if left:
                    await self._core.ports.clock.sleep(_LOOK)
        except HoldfastError as problem:
            log.warning("machines of %s are not played any more, until the next tick: %s", queue, problem)
        finally:
            self._asked.pop(queue)
            self._workers.pop(task, None)

    async def _is_over(self, id: str) -> bool:
        """It has ended, or waits for what does not happen here."""
        row = await self._core.runtime().find(JobId(id))
        return row.state in TERMINAL or await self._core.runtime().transact(waits_for_others, row.id)

    async def _close(self) -> None:
        """The running loop closes the app: what is played there is handed back when its time to drain is over."""
        here = asyncio.get_running_loop()
        tasks = [task for task, loop in self._tasks.items() if loop is here]
        await asyncio.gather(*(self._workers[task].stop() for task in tasks if task in self._workers))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


invoking: ContextVar[InLoopInvoker | None] = ContextVar("holdfast_flatagents_in_loop", default=None)  # plays this code


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _this_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def run_process() -> NoReturn:
    """`python -m flatagents.run`: as `python -m holdfast.machines.run`, with the machine named as states name it, and
    with the hooks of the document if none are named."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--machine")
    parser.add_argument("--hooks", action="append")
    known, words = parser.parse_known_args()
    try:
        machine = [] if known.machine is None else ["--machine", found_machine(known.machine)]
    except UsageError as problem:
        sys.exit(f"holdfast: {problem}")
    hooks = [part for each in known.hooks or [SHIPPED_HOOKS] for part in ("--hooks", each)]
    main_of_a_process([*words, *machine, *hooks])


def found_machine(name: str) -> str:
    """The file of a machine: a path, or a name that a file here or in `config` has."""
    candidates = [Path(name), *(Path(folder) / f"{name}{end}" for folder in FOLDERS for end in (".yml", ".yaml"))]
    for path in candidates:
        if path.is_file():
            return str(path.absolute())
    raise UsageError(f"there is no machine {name!r}: give its file, or put {name}.yml here or into config/.")


def importable_name(module: ModuleType) -> str:
    """What another process imports this module as. The program itself is `__main__` only here."""
    if module.__name__ != "__main__":
        return module.__name__
    spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    return str(spec.name) if spec is not None else Path(file).stem if file else "__main__"


def launch_machine(machine_name: str, input: Mapping[str, Any], **options: Any) -> str:
    """Start a machine in a process of its own, and do not wait for it; returns the id of its execution."""
    return SubprocessInvoker(**options).launch(machine_name, input)
