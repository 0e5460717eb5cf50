"""The core of an app with agents, and what reaches the store through it.

One object owns what every agent of an app shares: models, keys, tools, people, the loop that plays runs, and what
reads their streams. Handles and lists hold it; it knows none of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from holdfast.agents import lanes, queries
from holdfast.agents.adoption import ServedAgents
from holdfast.agents.batches import steps
from holdfast.agents.batches.job import BatchJobs
from holdfast.agents.batches.steps import prune_batches
from holdfast.agents.compaction.automatic import compact_definition
from holdfast.agents.compaction.compactor import Compactor
from holdfast.agents.definition import AGENT_KIND, ToolSpec
from holdfast.agents.events.reader import Streams
from holdfast.agents.keys import Keys
from holdfast.agents.money.budgets import give_up_lapsed
from holdfast.agents.money.records import BudgetsSql
from holdfast.agents.people.people import People
from holdfast.agents.providers import ModelCatalog
from holdfast.agents.retention import cleanup as retaining
from holdfast.agents.runs import end
from holdfast.agents.runs.create import AgentName
from holdfast.agents.runs.end import AgentJobs
from holdfast.agents.runs.loop import RunLoop
from holdfast.agents.runs.output import Output
from holdfast.agents.runs.why import why
from holdfast.agents.statements import EventsSql, InboxSql
from holdfast.agents.system_jobs import BATCH, BATCHED, RUNS, TOOLS, system_definition
from holdfast.agents.tenant_policy import TenantPolicy, Uses
from holdfast.agents.toolbox import Preparing, Toolbox
from holdfast.client.core import Core
from holdfast.client.intake import Runtime
from holdfast.clock import Ports
from holdfast.durations import microseconds
from holdfast.errors import UsageError
from holdfast.kernel.database import Database, Operation, Transaction
from holdfast.kernel.rows import Route
from holdfast.reasons import Reason
from holdfast.settings import Settings
from holdfast.workers.layer import Chore, Layer

# Leftovers: what agents leave behind in the store and nobody will ask for again.


_USES_US = 400 * 86_400_000_000  # how long what was spent in a period is kept


async def prune(tx: Transaction, settings: Settings) -> int:
    """Forget batches that ended long ago, messages and readers of old, and what was spent in periods long over."""
    age_us = microseconds(settings.batch_retention)
    pruned = await prune_batches(tx, age_us)
    await give_up_lapsed(tx)
    await tx.run(BudgetsSql.prune_uses, age_us=_USES_US)
    await tx.run(InboxSql.prune_steers, age_us=age_us)
    await tx.run(EventsSql.prune_readers)
    return pruned


CHORE = Chore(lambda settings: settings.cleanup_interval, prune)


# The layer of agents: everything that workers do for agents, in one place. See `workers.layer`.


class AgentLayer(AgentJobs, Layer):
    """Agents, as workers know them."""

    slots = (RUNS, BATCHED, TOOLS)

    def __init__(
        self,
        keys: Keys,
        serving: ServedAgents,
        *,
        announced: Callable[[], str],
        notify: Callable[[], bool],
        output_cap: Callable[[], int],
    ) -> None:
        super().__init__(announced, notify, output_cap)
        self._keys = keys
        self._serving = serving
        self.chores: Sequence[Chore] = (
            end.CHORE,
            CHORE,
            steps.CHORE,
            lanes.chore(),
            retaining.CHORE,
            *queries.CHORES,
        )
        self.hints: Mapping[str, Callable[[str], None]] = {"run": _left_to_readers}
        self.preparing: list[Callable[[Transaction], Awaitable[Any]]] = []  # each in a transaction of its own

    async def prepare(self, database: Database) -> None:
        for operation in self.preparing:
            await database.transact(operation)

    async def adopt(self, database: Database, routes: Sequence[Route]) -> None:
        await self._serving.adopt(database, routes)

    def withheld(self) -> Mapping[str, str]:
        return self._keys.withheld()

    async def started(self, capabilities: Collection[str]) -> None:
        await self._keys.attend(capabilities)


def _left_to_readers(runs: str) -> None:
    """Something happened to these runs. Readers of their events listen for themselves; a worker has nothing to do."""


P = ParamSpec("P")
R = TypeVar("R")


class AgentsCore(Core):
    """The core of an app, with all that its agents share."""

    def __init__(self, settings: Settings, ports: Ports, *, embedded: bool = True) -> None:
        super().__init__(settings, ports, embedded=embedded)
        self.book = ModelCatalog(self)
        self.people = People(self)
        self.tools = Toolbox(self, self.people.serve, self._prepare)
        self.defined: dict[str, Any] = {}  # the `Agent`s of this program, by name
        self.declared: dict[AgentName, tuple[Any, object]] = {}  # each with what it was declared by
        self.outputs: dict[str, Output[Any]] = {}  # of those whose answers have a type
        self.policy = TenantPolicy(
            lambda: self.settings,
            lambda: ((name.tenant, made.spec) for name, (made, _) in self.declared.items()),
            lambda: self.ports,
        )
        self.loop = RunLoop(
            self.book,
            lambda: self.settings,
            lambda: self.ports,
            approving=self.tools.approving,
            notify=self.people.notifies,
            reading=self._type_of_answers,
            has_tool=self.tools.has,
            policy=self.policy,
            here=self.here,
        )
        self.play = self.loop.play  # one function for the runs of all agents: definitions are compared by it
        self.compactor = Compactor(self.book, lambda: self.settings, lambda: self.ports)
        self.compacting = compact_definition(self.compactor)
        self.keys = Keys(self.book, self.registry)
        self._streams: weakref.WeakKeyDictionary[Runtime, Streams] = weakref.WeakKeyDictionary()
        self.closing += [self._close_streams, self.loop.close, self.book.close]
        serving = ServedAgents(self.registry, self.loop.play, self.compacting, self.serve_beside, self.keys)
        announced, cap = (lambda: self.settings.announced), (lambda: self.settings.tool_output_cap)
        notify = self.people.notifies
        self.layer = AgentLayer(self.keys, serving, announced=announced, notify=notify, output_cap=cap)
        self.registry.plug_in(self.layer)

    def _prepare(self, operation: Preparing) -> None:
        self.layer.preparing.append(operation)

    def serve_beside(self) -> None:
        """A worker that serves agents also serves their batches and inquiries."""
        if BATCH not in self.registry.definitions:
            jobs = BatchJobs(self.loop, lambda agent: AGENT_KIND + agent in self.registry.definitions)
            self.registry.add(system_definition(BATCH, jobs.play, slots=BATCHED.name))
        self.people.serve()

    def _type_of_answers(self, agent: str, schema: Mapping[str, Any]) -> Output[Any] | None:
        """The type of this program's agent, unless a run was given another one."""
        mine = self.defined.get(agent)
        return self.outputs.get(agent) if mine is not None and mine.spec.output == schema else None

    def streams(self) -> Streams:
        """The readers of this event loop."""
        runtime = self.runtime()
        if runtime not in self._streams:

            async def ask(id: str) -> list[Reason]:
                return await runtime.database.transact(why, id, absent=await runtime.absent_workers())

            self._streams[runtime] = Streams(runtime.database, self.ports, ask, runtime.context)
        return self._streams[runtime]

    async def _close_streams(self) -> None:
        runtime = self.here().runtime
        streams = None if runtime is None else self._streams.pop(runtime, None)
        if streams is not None:
            await streams.close()

    def require_key(self, model: str, kind: str) -> None:
        """`UsageError` when the worker in this process, if it may have one, could not ask this model for a run."""
        embedded = self.binding.embedded
        if embedded and (advice := self.book.advice_on_key(model)) is not None:
            raise UsageError(f"model {model} cannot be called: {advice}")
        if embedded and kind in self.registry.withheld():
            self.keys.note(kind, model)  # it cannot serve them all, but it serves those that bring such a model

    def has_tool(self, name: str) -> bool:
        """Whether this program has the code of a tool."""
        return self.tools.has(name)

    def tool_named(self, name: str) -> ToolSpec:
        """A tool of this program as agents store it."""
        return self.tools.spec(name)

    async def check_allowed(self, tenant: str | None, asked: Uses) -> None:
        """`UsageError` when a tenant names a tool or a model that it may not use."""
        await self.policy.check(tenant, asked, self.runtime().transact)

    async def reasons(self, id: str, *, worker: str | None = None) -> list[Reason]:
        """As of every core, and it knows more of a job that is a run."""
        runtime = self.runtime()
        if worker is not None:
            return await super().reasons(id, worker=worker)
        return await runtime.transact(why, id, absent=await runtime.absent_workers())


class AppPart:
    """Whatever reaches the store through the app."""

    _app: AgentsCore

    async def _transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._app.runtime().transact(operation, *args, **kwargs)
