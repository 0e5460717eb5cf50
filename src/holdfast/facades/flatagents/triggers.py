"""Triggers: what starts machines when nothing runs all the time. They stand in `trigger_registry.yml`.

An execution is named by its trigger and the moment that it stands for, so a tick that comes twice runs nothing twice.
What `work_added` triggers is enqueued in the transaction of the push; the process that plays it is started after that,
and by the next tick if it never came. A trigger of the type in_loop starts none: its machine, and those that it
launches, are played in the process of the push, beside what else that does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import durations
from holdfast.app import Holdfast, core_of, machines_of
from holdfast.errors import HoldfastError, RunFailed, StoreRefused, UsageError
from holdfast.facades.flatagents.hooks import LAUNCHED, DistributedWorkerHooks, MachineHooks, stale_after
from holdfast.facades.flatagents.launching import InLoopInvoker, invoking
from holdfast.facades.flatagents.records import WorkerFilter
from holdfast.facades.flatagents.work import QUEUE, HoldfastWorkBackend, size
from holdfast.kernel.ids import derived_id
from holdfast.kernel.queries import now
from holdfast.kernel.queues import list_queues
from holdfast.kernel.rows import NewJob, Route
from holdfast.kernel.states import State
from holdfast.machines.api import ExecutionHandle, Machine
from holdfast.machines.documents import plain_value, read_document
from holdfast.machines.family import give_up, launched
from holdfast.machines.orders import OWN_QUEUES, JobPolicy, first_order, new_job
from holdfast.machines.run import play_here
from holdfast.machines.triggers import MARK, DeclaredTrigger
from holdfast.text import plural
from holdfast.validation import did_you_mean

WORK_ADDED = "work_added"
TRIGGERED = f"{OWN_QUEUES}flatagents-triggered"  # the queue of what pushes trigger
IN_LOOP = f"{OWN_QUEUES}flatagents-in-loop"  # and of that which is played in the process of the push
TYPES = ("cron", "subprocess", "in_loop", "webhook", "lambda")
_TAKES = {"schedule": ("cron",), "on": ("subprocess", "in_loop")}  # the types that read a key
_FIELDS = ("name", "type", "machine", "schedule", "on", "input")
_BOOT_US = 30_000_000  # so long a process that was started may take to appear
_WINDOWS_US = (60_000_000, 3_600_000_000, 86_400_000_000)  # a tick makes up for a time it missed, for a day


@dataclass(frozen=True, slots=True)
class Trigger(DeclaredTrigger):
    """When a machine is to be started, and with which input."""

    def due(self, moment: int) -> int | None:
        """The last time that its schedule names, at or before this moment; None: there was none for a day."""
        if self.schedule is None:
            return None
        for window in _WINDOWS_US:
            at = durations.next_tick(self.schedule, "UTC", moment - window)
            if at <= moment:
                while (following := durations.next_tick(self.schedule, "UTC", at)) <= moment:
                    at = following
                return at
        return None


class TickFailed(StoreRefused):
    """A tick has done all that was due, and machines that it ran have failed: `ran` and `failed` say which."""

    def __init__(self, ran: Sequence[str], failed: Sequence[RunFailed]) -> None:
        super().__init__("\n".join(map(str, failed)))
        self.ran, self.failed = list(ran), list(failed)


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
    named = Counter(str(each.get("name")) for each in listed if isinstance(each, dict) and each.get("name"))
    wrong += [
        f"{plural(count, 'trigger is', 'triggers are')} named {name!r}." for name, count in named.items() if count > 1
    ]
    if wrong:
        raise UsageError("\n".join(f"{path}: {problem}" for problem in wrong))
    return [Trigger(**{**each, "type": _type_of(each), "input": each.get("input") or {}}) for each in listed]


def _type_of(given: Mapping[str, Any]) -> str:
    return str(given.get("type", "cron")).replace("-", "_")


def _problems(number: int, given: Any) -> list[str]:
    if not isinstance(given, dict):
        return [f"trigger {number} is no mapping."]
    named = f"trigger {given.get('name', number)!r}"
    wrong = [f"{named}: {key!r} is no key.{did_you_mean(key, _FIELDS)}" for key in given if key not in _FIELDS]
    wrong += [f"{named} has no {key!r}." for key in ("name", "type", "machine") if not given.get(key)]
    sort = _type_of(given)
    if sort not in TYPES:
        wrong.append(f"{named}: its type is one of {', '.join(TYPES)}, not {sort!r}.{did_you_mean(sort, TYPES)}")
    if sort == "cron" and not given.get("schedule"):
        wrong.append(f"{named} has no 'schedule'.")
    if sort == "subprocess" and not given.get("on"):
        wrong.append(f"{named} has no 'on': say which event starts it, {WORK_ADDED!r}.")
    for key, types in _TAKES.items():
        if given.get(key) and sort in TYPES and sort not in types:
            wrong.append(f"{named}: {key!r} is for the type {' or '.join(types)}, not {sort}.")
    if not isinstance(given.get("input") or {}, dict):
        wrong.append(f"{named}: its input is no mapping.")
    if given.get("on") not in (None, WORK_ADDED):
        wrong.append(f"{named}: the only event is {WORK_ADDED!r}, not {given['on']!r}.")
    if given.get("schedule"):
        try:
            durations.next_tick(str(given["schedule"]), "UTC", 0)
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
        machines_of(app).triggers.update({each.name: each for each in self.listed})
        self._hooks = hooks or DistributedWorkerHooks()
        self._bound = dict(machines or {})
        self._machines: dict[str, Machine[Any]] = {}  # by trigger
        self._here: InLoopInvoker | None = None  # plays in this process

    async def tick(self) -> list[str]:
        """Run what is due, here, and start the processes that are missing; returns the executions that ran.
        `TickFailed`, when all that is done, if some of them failed."""
        core = core_of(self._app)
        await core.opened()
        self._learn()
        moment = await core.runtime().transact(now)
        started: list[ExecutionHandle[Any]] = []
        for trigger in self.listed:
            at = trigger.due(moment)
            if at is not None:
                started += await self._enqueue(trigger, trigger.input, f"{at}")
            elif trigger.on == WORK_ADDED:
                started += await self._repair(trigger, moment)
        with self._single_process():
            failed = [problem for each in started if (problem := await self._played(each)) is not None]
            await self._restart(moment - _BOOT_US)
        if self._here is not None:
            await self._here.finished()
        if failed:
            raise TickFailed([str(execution.id) for execution in started], failed)
        return [str(execution.id) for execution in started]

    def _learn(self) -> None:
        """The backends are those that the machines name, also for what was launched before this tick."""
        for trigger in self.listed:
            for graph in self._machine(trigger).bundle.machines.values():
                self._hooks.learn(graph.settings)

    async def _played(self, execution: ExecutionHandle[Any]) -> RunFailed | None:
        """Play it here; what its machine fails with is no reason to leave out the others."""
        try:
            await play_here(core_of(self._app), execution)
        except RunFailed as problem:
            return problem
        return None

    async def handle(self, name: str, body: Mapping[str, Any] | None = None, *, key: str | None = None) -> str:
        """Run the machine of one trigger, for a webhook or a function service; `key` makes a repeat harmless."""
        found = next((trigger for trigger in self.listed if trigger.name == name), None)
        if found is None:
            raise UsageError(f"there is no trigger {name!r}.{did_you_mean(name, [each.name for each in self.listed])}")
        started = await self._enqueue(found, {**found.input, **(body or {})}, key or "")
        with self._single_process(found.type == "in_loop"):
            for execution in started:
                await play_here(core_of(self._app), execution)
        return str(started[0].id) if started else ""

    @contextlib.contextmanager
    def _single_process(self, chosen: bool | None = None) -> Iterator[None]:
        """What is launched meanwhile is played in this process: if that is `chosen`, or else if the triggers of
        `work_added` are all of the type in_loop."""
        types = {each.type for each in self.listed if each.on == WORK_ADDED}
        token = invoking.set(self._in_loop() if chosen or (chosen is None and types == {"in_loop"}) else None)
        try:
            yield
        finally:
            invoking.reset(token)

    def _in_loop(self) -> InLoopInvoker:
        self._here = self._here or InLoopInvoker(core_of(self._app))
        return self._here

    def watch(self, work: HoldfastWorkBackend) -> None:
        """Fire `on: work_added` for what is pushed through this backend, from now on. It must be in the app's database:
        there the next tick looks for what was lost."""
        if not isinstance(work, HoldfastWorkBackend):
            raise UsageError(
                f"{type(work).__name__} fires no triggers: let cron tick, or call work_added after a push."
            )
        work.watcher = self
        if any(each.type == "in_loop" for each in self.listed):
            self._in_loop()

    def fired(self, pool_id: str, item_id: str) -> list[tuple[NewJob, Route]]:
        """The executions that an item triggers, for the transaction in which it is pushed."""
        made = []
        for trigger in self._of_work(pool_id):
            order = first_order(self._machine(trigger).bundle, {**trigger.input, "pool_id": pool_id})
            queue = IN_LOOP if trigger.type == "in_loop" else TRIGGERED
            way = JobPolicy(queue, metadata=json.dumps({MARK: trigger.name}))
            made.append(new_job(derived_id("trigger", trigger.name, item_id), order, way, self._app.settings))
        return made

    def start(self, jobs: Sequence[NewJob], url: str) -> None:
        """Start a process for each of these executions, which are stored, or play it in this one."""
        apart, here = ([str(job.id) for job in jobs if job.queue == queue] for queue in (TRIGGERED, IN_LOOP))
        if apart:
            self._hooks.on_launched(apart, TRIGGERED, url)
        if here:
            self._in_loop().play(here, IN_LOOP, url)

    def work_added(self, pool_id: str) -> None:
        """For a backend of your own, after its push: start a process for each trigger that wants to know."""
        for trigger in self._of_work(pool_id):
            input = {**trigger.input, "pool_id": pool_id}
            if trigger.type == "in_loop":
                self._in_loop().launch(self._machine(trigger), input, IN_LOOP, {MARK: trigger.name})
            else:
                self._hooks.invoker.launch(self._file(trigger), input)

    def _of_work(self, pool_id: str) -> list[Trigger]:
        """The triggers of a pool's `work_added`: those that name no pool, and those that name this one."""
        return [each for each in self.listed if each.on == WORK_ADDED and each.input.get("pool_id", pool_id) == pool_id]

    async def _repair(self, trigger: Trigger, moment: int) -> list[ExecutionHandle[Any]]:
        """Pools in which something waits: perhaps the process that was to look after it never came."""
        core = core_of(self._app)
        queues = [row.name for row in await core.runtime().transact(list_queues)]
        pools = [name.removeprefix(QUEUE) for name in queues if name.startswith(QUEUE)]
        found: list[ExecutionHandle[Any]] = []
        for pool in pools:
            if trigger in self._of_work(pool) and (await core.runtime().transact(size, pool)).pending:
                found += await self._enqueue(trigger, {**trigger.input, "pool_id": pool}, f"{pool} {moment}")
        return found

    async def _enqueue(self, trigger: Trigger, input: Mapping[str, Any], key: str) -> list[ExecutionHandle[Any]]:
        machine = self._machine(trigger)
        id = f"trigger {trigger.name} {key}" if key else None
        execution = await machine.enqueue(input, execution_id=id, metadata={MARK: trigger.name})
        return [execution] if execution.fresh else []

    async def _restart(self, before: int) -> None:
        """Executions that were launched or triggered, and that no process plays: a launcher may have died before it
        started one, or the process itself has. Those whose workers have ended are cancelled."""
        core = core_of(self._app)
        known = await core.runtime().transact(list_queues)
        for queue in [row.name for row in known if row.name.startswith((LAUNCHED, TRIGGERED, IN_LOOP))]:
            rows = await core.runtime().transact(launched, queue)
            gone, silent = await asyncio.to_thread(self._absent, [str(row.id) for row in rows])
            await core.runtime().transact(give_up, [row for row in rows if row.id in gone])
            missed = [row for row in rows if row.state == State.PENDING or row.id in silent]
            ids = [str(row.id) for row in missed if row.created_at < before and row.id not in gone]
            if ids and queue == IN_LOOP:
                self._in_loop().play(ids, queue, core.settings.url)
            elif ids:
                self._hooks.on_launched(ids, queue, core.settings.url)

    def _absent(self, ids: Sequence[str]) -> tuple[set[str], set[str]]:
        """Those of these workers that have ended or were given up, and those that are silent for too long."""
        registry = self._hooks.registration_backend
        stale = registry.list(WorkerFilter(stale_threshold_seconds=stale_after(registry))) if ids else []
        return set(self._hooks.gone(ids)), {each.worker_id for each in stale} & set(ids)

    def _machine(self, trigger: Trigger) -> Machine[Any]:
        if trigger.name not in self._machines:
            file = self._file(trigger)
            self._machines[trigger.name] = self._app.machine(file, hooks=self._hooks, machines=self._bound)
        return self._machines[trigger.name]

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
