"""Machines as a program sees them: `hf.machine("pipeline.yml", hooks=…)`, and handles on executions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from holdfast import validation
from holdfast.agents.core import AgentsCore
from holdfast.client.jobs import Job
from holdfast.errors import IdempotencyConflict, NotFound, RunFailed, UsageError
from holdfast.kernel import codec, queries
from holdfast.kernel.cancel import cancel_these
from holdfast.kernel.database import Transaction
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import JobId, derived_id, is_id, new_id
from holdfast.kernel.rows import JobRow, NewJob, Route
from holdfast.kernel.states import TERMINAL, State
from holdfast.kernel.waiting import list_steps
from holdfast.machines.agent_calls import Agents, unknown_agents
from holdfast.machines.bundle import Bundle, Finder, gather, load_file, unpack
from holdfast.machines.documents import MOST_BYTES, plain_value, read_document
from holdfast.machines.engine import Engine, machine_definition
from holdfast.machines.family import read_steps
from holdfast.machines.graph import AgentDefinition, MachineGraph
from holdfast.machines.hooks import HookRegistry, log
from holdfast.machines.layer import KIND, LAYER, layer_of
from holdfast.machines.orders import QUEUE, ExecutionOrder, JobPolicy, StartPoint, first_order, new_job, read_order
from holdfast.machines.problems import Findings
from holdfast.machines.stepping import MachineEvent, MachinePlace
from holdfast.machines.triggers import DeclaredTrigger
from holdfast.settings import Settings
from holdfast.text import shown_text
from holdfast.validation import did_you_mean
from holdfast.values import Stored
from holdfast.values.jobs import JobRecord, ReasonRecord, Why, why_of

# Profiles: which model a name in a machine's file stands for, by `profiles.yml` beside it.


FILE = "profiles.yml"


def model_of(name: str, folder: Path) -> str:
    """The model of a profile: the override, else the profile of this name, else the default one, else the name."""
    profiles = _read(folder / FILE)
    data = profiles.get("data", {})
    known = data.get("model_profiles", {})
    chosen = data.get("override") or name or data.get("default")
    if not chosen:
        raise UsageError(f"an agent needs a model: name one, or a default in {folder / FILE}.")
    profile = known.get(chosen)
    if profile is None:
        return str(chosen)
    if not isinstance(profile, dict) or not isinstance(profile.get("name"), str):
        raise UsageError(f"profile {chosen!r} in {folder / FILE} has no name of a model.")
    provider = profile.get("provider")
    is_own = provider in (None, "anthropic") or ":" in profile["name"]
    return str(profile["name"]) if is_own else f"{provider}:{profile['name']}"


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    with file.open("rb") as opened:
        text = opened.read(MOST_BYTES + 1).decode("utf-8", "replace")
    stored = plain_value(read_document(text, str(file)))
    if not isinstance(stored, dict) or not isinstance(stored.get("data", {}), dict):
        raise UsageError(f"{file} is not a file of profiles.")
    return stored


T = TypeVar("T")

_FIRST_LOOK, _LAST_LOOK = 0.02, 0.5
_REPLACED = "it continues with another version of its machine"


class MachineOptions(TypedDict, total=False):
    """The options of `hf.machine`."""

    hooks: Any
    machines: Mapping[str, str | Path] | None
    queue: str


class ExecutionOptions(TypedDict, total=False):
    """How one execution is enqueued, beside its input.

    `execution_id` names it: the same id and input is the same execution, another input is refused. It may be any text.
    """

    execution_id: str | None
    tenant: str
    priority: int
    metadata: Mapping[str, Any] | None


class Machines:
    """The machines of one program."""

    def __init__(self, core: AgentsCore) -> None:
        self._core = core
        self.engine = Engine(Agents(core), lambda: core.ports)
        self.files: dict[str, str] = {}  # of each machine that is served here
        self.declared: dict[str, Machine[Any]] = {}  # by name, as the program declared them
        self.triggers: dict[str, DeclaredTrigger] = {}  # by name, from the files that the program has read
        self._layer = layer_of(core.registry)

    def declare(self, path: str | Path, output: Any, **options: Unpack[MachineOptions]) -> Machine[Any]:
        """Load a machine and all that it runs, and serve them here."""
        validation.option_names(options, MachineOptions, "machine")
        hooks, machines, queue = options.get("hooks"), options.get("machines"), options.get("queue", QUEUE)
        found = Findings()
        registry = hooks if isinstance(hooks, HookRegistry) else HookRegistry(hooks)
        graph = load_file(path)
        bundle = gather(graph, Finder({**self.files, **(machines or {})}).find, found)
        for each in bundle.machines.values():
            registry.check(each, found)
        found.raise_any()
        for name, each in bundle.machines.items():
            self.files[name] = each.file
            self.serve(each, registry, queue, declared=name == bundle.main)
        for each in bundle.machines.values():
            self._warn_of_agents(each)
        made: Machine[Any] = Machine(self._core, bundle, queue, output)
        self.declared[made.name] = made
        return made

    def named(self, name: str) -> Machine[Any]:
        """A machine that the program declared; `NotFound` otherwise."""
        if name not in self.declared:
            raise NotFound(f"this program has no machine {name[:80]!r}.")
        return self.declared[name]

    def serve(self, graph: MachineGraph, hooks: HookRegistry, queue: str, *, declared: bool = True) -> None:
        """Let workers of this program play this machine."""
        self.engine.register(graph.name, hooks, declared=declared)
        self._layer.attend(hooks)
        self._core.registry.add(machine_definition(graph.kind, queue, self.engine))
        for name, agent in graph.agents.items():
            if isinstance(agent, AgentDefinition):
                self._define(f"{graph.name}.{name}", agent, Path(graph.file).parent, queue)

    def _warn_of_agents(self, graph: MachineGraph) -> None:
        """Agents may be declared later, so one that is not there yet is no error."""
        for at, name in unknown_agents(graph, self._core.defined):
            advice = did_you_mean(name, sorted({*graph.agents, *self._core.defined}))
            log.warning("%s: machine %s: no agent %r yet.%s", at, graph.name, name, advice)

    def _define(self, name: str, agent: AgentDefinition, folder: Path, queue: str) -> None:
        """Its runs are in the queue of the machine, so that a process which plays that queue alone plays them too."""
        from holdfast.agents.api.declarations import declare_agent

        if name not in self._core.defined:
            model = model_of(agent.model, folder)
            declare_agent(self._core, name, model, None, instructions=agent.instructions, queue=queue)


class Machine(Generic[T]):
    """A machine of this program, checked, with all machines that it can run."""

    def __init__(self, core: AgentsCore, bundle: Bundle, queue: str, output: Any) -> None:
        self._core = core
        self.queue = queue
        self._output = output
        self.bundle = bundle

    def __repr__(self) -> str:
        return f"Machine({self.name!r})"

    @property
    def name(self) -> str:
        return self.bundle.main

    @property
    def graph(self) -> MachineGraph:
        return self.bundle.machines[self.bundle.main]

    async def enqueue(
        self, input: Mapping[str, Any] | None = None, **options: Unpack[ExecutionOptions]
    ) -> ExecutionHandle[T]:
        """Accept an execution durably. The machine's files may change then: it continues with what it began with."""
        order = first_order(self.bundle, _input(input))
        return await start_execution(self._core, order, self.queue, self._output, **options)

    async def run(self, input: Mapping[str, Any] | None = None, **options: Unpack[ExecutionOptions]) -> T:
        """Enqueue, then wait for the result; starts a worker in this process if the app may embed one."""
        await self._core.ensure_worker()
        return await (await self.enqueue(input, **options)).result()

    def enqueue_sync(
        self, input: Mapping[str, Any] | None = None, **options: Unpack[ExecutionOptions]
    ) -> ExecutionHandle[T]:
        return self._core.call(self.enqueue(input, **options), "machine.enqueue_sync")

    def run_sync(self, input: Mapping[str, Any] | None = None, **options: Unpack[ExecutionOptions]) -> T:
        return self._core.call(self.run(input, **options), "machine.run_sync")

    def execution(self, id: str) -> ExecutionHandle[T]:
        """A handle on an execution, without I/O."""
        return ExecutionHandle(self._core, execution_job(id), self._output)


class ExecutionHandle(Job[T]):
    """One execution of a machine: a job, whose states can be followed."""

    def __init__(self, core: AgentsCore, id: JobId, output: Any = None) -> None:
        super().__init__(core, id, None)
        self._core = core
        self._output = output

    def __repr__(self) -> str:
        return f"Execution({self.id}, state={self.state})"

    async def result(self, *, timeout: Any = None) -> T:
        """The output of its final state. `RunFailed` when it failed or was cancelled."""
        try:
            value = await super().result(timeout=timeout)
        except RunFailed as problem:
            raise await self._located(problem) from None
        if self._output is None:
            return value
        from pydantic import TypeAdapter

        made: T = TypeAdapter(self._output).validate_python(value)
        return made

    async def _located(self, problem: RunFailed) -> RunFailed:
        """The failure, and in which state of which file it was."""
        with contextlib.suppress(NotFound):  # retention may have removed what was stored of it
            order, bundle = await stored_order(self._core, self.id)
            place = await self.place()
            if place is not None and place.failure is not None:
                at = f"state {place.state!r}, {bundle.machines[order.machine].states[place.state].at}"
                words = shown_text(f"{problem.error} (in {at})")
                failure = RunFailed(self.id, problem.state, problem.error, problem.type, shown=words)
                for note in getattr(problem, "__notes__", ()):
                    failure.add_note(note)
                return failure
        return problem

    async def place(self) -> MachinePlace | None:
        """Where the machine is by its last checkpoint; None: it has not begun."""
        return (await self._read())[1]

    async def events(self) -> AsyncIterator[MachineEvent]:
        """What happens to it, from its beginning until it has ended."""
        seen, pause = -1, _FIRST_LOOK
        while True:
            row, _, recorded = await self._read()
            fresh = [each for each in recorded if each.number > seen]
            for each in fresh:
                seen = each.number
                for event in each.events:
                    yield event
            if row.state in TERMINAL:
                return
            pause = _FIRST_LOOK if fresh else min(pause * 1.5, _LAST_LOOK)
            await self._core.ports.clock.sleep(pause)

    async def history(self) -> list[MachineEvent]:
        """What has happened to it so far."""
        return [event for each in (await self._read())[2] for event in each.events]

    async def why(self) -> Why:
        """Why it does not continue; empty when nothing holds it back. Printed, it is a sentence for each reason."""
        return why_of(await self._core.reasons(self.id))

    async def bundle(self) -> Bundle:
        """The machines that it runs, as they were when it began."""
        return (await stored_order(self._core, self.id))[1]

    async def _read(self) -> tuple[JobRow, MachinePlace | None, list[Any]]:
        row = await self._app.runtime().find(self.id)
        steps = await self._app.runtime().transact(list_steps, row.seq)
        place, recorded = read_steps((step.name, step.result) for step in steps)
        return row, place, recorded


async def stored_order(core: AgentsCore, id: JobId) -> tuple[ExecutionOrder, Bundle]:
    """What an execution was asked to do, and its machines."""
    row = await core.runtime().find(id)
    if not row.kind.startswith(KIND):
        raise UsageError(f"job {id} ({row.kind}) is not an execution of a machine.")
    order = read_order(codec.decode(row.payload)["order"])
    stored = order.bundle
    if stored is None:
        root = await core.runtime().find(JobId(order.of))
        stored = codec.decode(root.payload)["order"]["bundle"]
    return order, unpack(stored)


async def start_execution(
    core: AgentsCore, order: ExecutionOrder, queue: str, output: Any = None, **options: Unpack[ExecutionOptions]
) -> ExecutionHandle[Any]:
    """Enqueue an execution, or find the one that its id names already."""
    given = options.get("execution_id")
    settings = core.settings
    metadata = codec.encode(dict(options.get("metadata") or {}), what="metadata", cap=settings.metadata_cap)
    way = JobPolicy(queue, codec.check_tenant(options.get("tenant", "")), options.get("priority", 100), metadata)
    id = new_id(core.ports) if given is None else execution_job(given)
    job, route = new_job(id, order, way, settings)
    fresh = await core.runtime().transact(_enqueue_once, job, route, given or "")
    handle: ExecutionHandle[Any] = ExecutionHandle(core, id, output)
    handle.fresh = fresh
    return handle


async def _enqueue_once(tx: Transaction, job: NewJob, route: Route, named: str) -> bool:
    if await enqueue(tx, [job], [route]):
        return True
    there = await queries.find_job(tx, job.id)
    mine, theirs = (read_order(codec.decode(text)["order"]) for text in (job.payload, there.payload))
    if there.kind != job.kind or mine.input != theirs.input:
        raise IdempotencyConflict(named, job.id)
    return False


async def resume_execution(core: AgentsCore, id: JobId, bundle: Bundle | None, queue: str) -> ExecutionHandle[Any]:
    """Continue an execution that has failed or was cancelled, or with `bundle` any that nobody plays, as a new one.

    It begins in the state in which the old one is, with the context that it has there. With `bundle` it has these
    machines from then on, and the old execution is cancelled. One that a worker plays now is refused, and so is the
    second of two calls.
    """
    order, stored = await stored_order(core, id)
    machines = stored.of(order.machine) if bundle is None else bundle
    made = await core.runtime().transact(
        _resume, id, order, machines, queue=queue, replaces=bundle is not None, settings=core.settings
    )
    return ExecutionHandle(core, made)


async def _resume(
    tx: Transaction,
    id: JobId,
    order: ExecutionOrder,
    machines: Bundle,
    *,
    queue: str,
    replaces: bool,
    settings: Settings,
) -> JobId:
    """The old one ends and the new one begins in one transaction: no worker plays both. `replaces`: its machines."""
    row = await queries.find_job(tx, id)
    if row.state not in TERMINAL and not replaces:
        raise UsageError(f"execution {id} is {row.state}: it continues by itself, so there is nothing to resume.")
    idle = [state for state in State if state not in (*TERMINAL, State.RUNNING)]
    if row.state not in TERMINAL and not (await cancel_these(tx, [row.seq], idle, reason=_REPLACED)).ended:
        raise UsageError(
            f"execution {id} is running. Nothing was changed: wait until it waits or has ended, or cancel it first."
        )
    place, _ = read_steps((step.name, step.result) for step in await list_steps(tx, row.seq))
    if place is None or (place.has_ended and place.failure is None and row.state == State.SUCCEEDED):
        raise UsageError(f"execution {id} is {row.state}, so there is nothing to resume.")
    if place.state not in machines.machines[machines.main].states:
        raise UsageError(f"execution {id} is in state {place.state!r}, which the new machine does not have.")
    kept = {"depth": order.depth, "by": order.by, "family": order.family}
    again = first_order(machines, order.input, start=StartPoint(place.state, place.context, id), **kept)
    job, route = new_job(derived_id("resume", id), again, JobPolicy(queue, row.tenant, row.priority), settings)
    if not await enqueue(tx, [job], [route]):
        raise UsageError(f"execution {id} was resumed already, as {job.id}.")
    return job.id


def execution_job(id: str) -> JobId:
    """The job of an execution: its id is the job's if it is one, else the job's comes from it."""
    codec.check_text(id, what="an execution id")
    return JobId(id.lower()) if is_id(id) else derived_id("machine", id)


def _input(input: Mapping[str, Any] | None) -> dict[str, Any]:
    if input is not None and not isinstance(input, Mapping):
        raise UsageError(f"the input of a machine must be a mapping; got {input!r}.")
    return dict(input or {})


# Executions of machines as they stand in the store: what commands print and the web answers.


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRecord:
    """An execution: `state` is that of its job, `at` the state of the machine it is in, `step` how many it has done."""

    id: str
    machine: str
    tenant: str
    state: str
    at: str | None
    step: int | None
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionDetail:
    """One execution with what it was given and has made, and why it does not continue."""

    id: str
    machine: str
    state: str
    at: str | None
    step: int | None
    parent: str | None
    input: Any
    context: Any
    result: Stored
    error: Stored
    why: Sequence[ReasonRecord]


def is_execution(job: JobRecord) -> bool:
    return job.layer == LAYER


async def listed(core: AgentsCore, job: JobRecord) -> ExecutionRecord:
    place = await ExecutionHandle[Any](core, JobId(job.id)).place()
    return ExecutionRecord(
        id=job.id,
        machine=job.kind.removeprefix(KIND),
        tenant=job.tenant,
        state=job.state,
        at=None if place is None else place.state,
        step=None if place is None else place.step,
        created_at=job.created_at,
        finished_at=job.finished_at,
    )


async def detailed(core: AgentsCore, job: JobRecord) -> ExecutionDetail:
    """All of one execution; `UsageError` when the job is something else."""
    execution: ExecutionHandle[Any] = ExecutionHandle(core, JobId(job.id))
    order, _ = await stored_order(core, execution.id)
    place = await execution.place()
    return ExecutionDetail(
        id=job.id,
        machine=order.machine,
        state=job.state,
        at=None if place is None else place.state,
        step=None if place is None else place.step,
        parent=order.parent,
        input=order.input,
        context=None if place is None else place.context,
        result=job.result,
        error=job.error,
        why=await execution.why(),
    )
