"""Triggers: what starts machines when nothing runs all the time. They stand in `trigger_registry.yml`.

An execution is named by its trigger and the moment that it stands for, so a tick that comes twice runs nothing twice.
Work that was added without a trigger is found by the next tick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import crons
from holdfast.app import Holdfast, core_of
from holdfast.errors import HoldfastError, UsageError
from holdfast.facades.flatagents.hooks import LAUNCHED, DistributedWorkerHooks, MachineHooks
from holdfast.facades.flatagents.work import HoldfastWorkBackend
from holdfast.kernel.queries import list_jobs, now
from holdfast.kernel.states import State
from holdfast.machines.api import ExecutionHandle
from holdfast.machines.documents import plain_value, read_document
from holdfast.machines.run import play_here
from holdfast.validation import did_you_mean

WORK_ADDED = "work_added"
TYPES = ("cron", "subprocess", "in_loop", "webhook", "lambda")
_FIELDS = ("name", "type", "machine", "schedule", "on", "input")
_BOOT_US = 30_000_000  # so long a process that was started may take to appear
_WINDOWS_US = (60_000_000, 3_600_000_000, 86_400_000_000)  # a tick makes up for a time it missed, for a day


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a machine is to be started, and with which input."""

    name: str
    type: str
    machine: str
    schedule: str | None = None
    on: str | None = None
    input: Mapping[str, Any] = field(default_factory=dict)

    def due(self, moment: int) -> int | None:
        """The last time that its schedule names, at or before this moment; None: there was none for a day."""
        if self.schedule is None:
            return None
        for window in _WINDOWS_US:
            at = crons.next_tick(self.schedule, "UTC", moment - window)
            if at <= moment:
                while (following := crons.next_tick(self.schedule, "UTC", at)) <= moment:
                    at = following
                return at
        return None


def read_triggers(path: str | Path) -> list[Trigger]:
    """The triggers of a file; `UsageError` says everything that is wrong with them."""
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"there is no file {path}.")
    given = plain_value(read_document(file.read_text("utf-8"), str(path)))
    listed = given.get("triggers") if isinstance(given, dict) else None
    if not isinstance(listed, list):
        raise UsageError(f"{path}: it has no list of `triggers`.")
    wrong = [problem for number, each in enumerate(listed, 1) for problem in _problems(number, each)]
    if wrong:
        raise UsageError("\n".join(f"{path}: {problem}" for problem in wrong))
    return [Trigger(**{**each, "input": each.get("input") or {}}) for each in listed]


def _problems(number: int, given: Any) -> list[str]:
    if not isinstance(given, dict):
        return [f"trigger {number} is no mapping."]
    named = f"trigger {given.get('name', number)!r}"
    wrong = [f"{named}: {key!r} is no key.{did_you_mean(key, _FIELDS)}" for key in given if key not in _FIELDS]
    wrong += [f"{named} has no {key!r}." for key in ("name", "type", "machine") if not given.get(key)]
    sort = str(given.get("type", "cron")).replace("-", "_")
    if sort not in TYPES:
        wrong.append(f"{named}: its type is one of {', '.join(TYPES)}, not {sort!r}.{did_you_mean(sort, TYPES)}")
    if sort == "cron" and not given.get("schedule"):
        wrong.append(f"{named} has no 'schedule'.")
    if given.get("on") not in (None, WORK_ADDED):
        wrong.append(f"{named}: the only event is {WORK_ADDED!r}, not {given['on']!r}.")
    if given.get("schedule"):
        try:
            crons.next_tick(str(given["schedule"]), "UTC", 0)
        except HoldfastError as problem:
            wrong.append(f"{named}: {problem}")
    return wrong


class Triggers:
    """The triggers of a file, for machines beside it."""

    def __init__(
        self,
        path: str | Path,
        *,
        app: Holdfast,
        hooks: MachineHooks | None = None,
        machines: Mapping[str, str | Path] | None = None,
    ) -> None:
        """`machines` says which file a name stands for; other names are files beside the registry, or in `config`."""
        self.listed = read_triggers(path)
        self._folder = Path(path).absolute().parent
        self._app = app
        self._hooks = hooks or DistributedWorkerHooks()
        self._bound = dict(machines or {})

    async def tick(self) -> list[str]:
        """Run what is due, here, and start the processes that are missing; returns the executions that ran."""
        core = core_of(self._app)
        await core.opened()
        moment = await core.runtime().transact(now)
        started: list[ExecutionHandle[Any]] = []
        for trigger in self.listed:
            at = trigger.due(moment)
            if at is not None:
                started += await self._enqueue(trigger, trigger.input, f"{at}")
            elif trigger.on == WORK_ADDED:
                started += await self._repair(trigger, moment)
        for execution in started:
            await play_here(core, execution)
        await self._restart(moment - _BOOT_US)
        return [str(execution.id) for execution in started]

    async def handle(self, name: str, body: Mapping[str, Any] | None = None, *, key: str | None = None) -> str:
        """Run the machine of one trigger, for a webhook or a function service; `key` makes a repeat harmless."""
        found = next((trigger for trigger in self.listed if trigger.name == name), None)
        if found is None:
            raise UsageError(f"there is no trigger {name!r}.{did_you_mean(name, [each.name for each in self.listed])}")
        started = await self._enqueue(found, {**found.input, **(body or {})}, key or "")
        for execution in started:
            await play_here(core_of(self._app), execution)
        return str(started[0].id) if started else ""

    def watch(self, work: HoldfastWorkBackend) -> None:
        """Start the machines of `on: work_added` for what is pushed through this backend, from now on."""
        work.on_push = self.work_added

    def work_added(self, pool_id: str) -> None:
        """Something was added to a pool: start a process for each trigger that wants to know."""
        for trigger in self.listed:
            if trigger.on == WORK_ADDED:
                self._hooks.invoker.launch(self._file(trigger), {"pool_id": pool_id, **trigger.input})

    async def _repair(self, trigger: Trigger, moment: int) -> list[ExecutionHandle[Any]]:
        """Pools in which something waits: perhaps the process that was to look after it never came."""
        rows = await core_of(self._app).runtime().transact(list_jobs, kind="flatagents.work", state=State.PENDING)
        pools = sorted({row.queue.removeprefix("flatagents.") for row in rows})
        wanted = trigger.input.get("pool_id")
        found: list[ExecutionHandle[Any]] = []
        for pool in pools if wanted is None else [wanted] if wanted in pools else []:
            found += await self._enqueue(trigger, {"pool_id": pool, **trigger.input}, f"{pool} {moment}")
        return found

    async def _enqueue(self, trigger: Trigger, input: Mapping[str, Any], key: str) -> list[ExecutionHandle[Any]]:
        machine = self._app.machine(self._file(trigger), hooks=self._hooks, machines=self._bound)
        id = f"trigger {trigger.name} {key}" if key else None
        execution = await machine.enqueue(input, execution_id=id)
        return [execution] if execution.fresh else []

    async def _restart(self, before: int) -> None:
        """Executions that were launched, and that no process plays: a launcher may have died before it started one."""
        core = core_of(self._app)
        rows = await core.runtime().transact(list_jobs, state=State.PENDING, limit=10_000)
        waiting: dict[str, list[str]] = {}
        for row in rows:
            if row.queue.startswith(LAUNCHED) and row.parent is None and row.created_at < before:
                waiting.setdefault(row.queue, []).append(str(row.id))
        for queue, ids in waiting.items():
            self._hooks.on_launched(ids, queue, core.settings.url)

    def _file(self, trigger: Trigger) -> str:
        named = self._bound.get(trigger.machine)
        folders = (self._folder, self._folder / "config")
        candidates: Sequence[Path] = [
            *([Path(named)] if named is not None else []),
            *(folder / f"{trigger.machine}.yml" for folder in folders),
        ]
        for path in candidates:
            if path.is_file():
                return str(path)
        raise UsageError(f"trigger {trigger.name!r}: there is no machine {trigger.machine!r} beside its file.")
