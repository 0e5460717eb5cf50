"""Launching: processes that each play one execution and exit. They are started and left alone."""

from __future__ import annotations

import json
import logging
import shlex
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.clock import Ports
from holdfast.errors import UsageError
from holdfast.facades.flatagents.environment import child_environment
from holdfast.kernel.ids import new_id
from holdfast.machines.run import WAITS

log = logging.getLogger("holdfast.flatagents")

SHIPPED_HOOKS = "holdfast.facades.flatagents:DistributedWorkerHooks"
FOLDERS = (".", "config")
_RUN = "holdfast.machines.run"


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
        said = ["--machine", found_machine(machine), "--input", json.dumps(dict(input)), "--execution-id", id]
        parent = [] if parent_id is None else ["--parent-id", parent_id]
        self._start([*said, *parent, *bound], self._url)
        return id

    def play(self, execution_ids: Sequence[str], queue: str, url: str) -> None:
        """Start a process for each of these executions, which are stored already."""
        for id in execution_ids:
            self._start(["--execution-id", id, "--queue", queue], self._url or url)

    def command(self, said: Sequence[str], url: str | None) -> list[str]:
        where = [] if url is None else ["--url", url]
        where += [] if self._app is None else ["--app", self._app]
        return [sys.executable, "-m", _RUN, *said, "--hooks", self._hooks, *where]

    def _start(self, said: Sequence[str], url: str | None) -> None:
        process = subprocess.Popen(
            self.command(said, url),
            env=child_environment(self._backends),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        ending = threading.Thread(target=_ended, args=(process, said), name=f"end of {process.pid}", daemon=True)
        ending.start()  # it leaves no zombie
        log.info("process %d plays %s", process.pid, " ".join(said))


def _ended(process: subprocess.Popen[bytes], said: Sequence[str]) -> None:
    """What a machine fails with stands in the store. A process that could not even begin is only heard of here."""
    code = process.wait()
    if code not in (0, 1, WAITS):
        called = shlex.join(["python", "-m", _RUN, *said])
        log.warning("process %d has ended with %d; to see why, run it yourself: %s", process.pid, code, called)


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
