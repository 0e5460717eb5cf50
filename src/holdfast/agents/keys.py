"""Keys: which agents a worker leaves to others, because it could not ask their models.

What a worker lacks is registered beside what it can do, under names that no job requires. So `why` can say that a run
waits for a key, and not only for a worker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from holdfast.agents.batches.mode import limit_left
from holdfast.agents.compaction.automatic import COMPACT
from holdfast.agents.definition import AGENT_KIND, AgentSpec
from holdfast.agents.fallback import understood
from holdfast.agents.money.limits import limits_of
from holdfast.agents.providers import ModelCatalog
from holdfast.agents.rows import LoadedRun, RunRow
from holdfast.agents.statements import RunsSql
from holdfast.agents.system_jobs import BATCH
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction
from holdfast.kernel.states import WorkerState
from holdfast.kernel.waiting import own_channel
from holdfast.kernel.why import AwaitsSignal
from holdfast.kernel.workers import list_workers
from holdfast.models.registry import key_of
from holdfast.outcomes import Park
from holdfast.reasons import Gate, Reason
from holdfast.workers.definitions import LACKS, Registry

log = logging.getLogger("holdfast.agents")

_KEY = own_channel("key ")
_LEAST_US, _MOST_US = 5_000_000, 300_000_000


class Keys:
    """What the agents of this program need of a provider, and what of that is missing here."""

    def __init__(self, book: ModelCatalog, registry: Registry) -> None:
        self._book = book
        self._registry = registry
        self._models: dict[str, str] = {}  # by the kind of the agent
        self._left: dict[str, str] = {}  # stored agents that this program would serve, each with what is missing
        self._reported: dict[str, str] = {}  # what was reported already, by the kind of the agent
        self._attended = False

    def note(self, kind: str, model: str) -> None:
        """This program serves such an agent, whose runs ask this model."""
        self._models[kind] = model

    def withheld(self) -> Mapping[str, str]:
        """Kinds of jobs that this program has and a worker here must not take, each with what it lacks."""
        served = {kind: model for kind, model in self._models.items() if kind in self._registry.definitions}
        found = {kind: lack for kind, model in served.items() if (lack := self._book.lack(model)) is not None}
        if found and len(found) == len(served):  # nobody here could submit a batch or write a summary either
            beside = [kind for kind in (BATCH, COMPACT) if kind in self._registry.definitions]
            found |= dict.fromkeys(beside, next(iter(found.values())))
        return self._left | found

    def reported(self, withheld: Mapping[str, str]) -> None:
        """What these kinds lack was reported already: no warning repeats it."""
        self._reported |= withheld

    def may_adopt(self, spec: AgentSpec) -> bool:
        """Whether its model can be asked here; what is missing is reported once, when the worker starts or later."""
        lack = self._book.lack_of_stored(spec.model)
        if lack is None:
            self._left.pop(spec.kind, None)
            self._reported.pop(spec.kind, None)
        elif self._left.get(spec.kind) != lack:
            self._left[spec.kind] = lack
            if self._attended:
                self._warn({spec.kind: lack})
        return lack is None

    async def attend(self, capabilities: Collection[str]) -> None:
        """A worker has started, with these capabilities: say what it lacks, and make its models ready."""
        self._attended = True
        self._warn({kind: lack for kind, lack in self.withheld().items() if LACKS + kind in capabilities})
        await self._book.warm({model for kind, model in self._models.items() if kind in capabilities})

    def _warn(self, withheld: Mapping[str, str]) -> None:
        news = {kind: lack for kind, lack in withheld.items() if self._reported.get(kind) != lack}
        self.reported(news)
        for lack, names in agents_lacking(news).items():
            agents = ", ".join(map(repr, names))
            said = "agents %s are left to other workers: this worker cannot call their models: %s"
            log.warning(said, agents, lack)


def agents_lacking(withheld: Mapping[str, str]) -> dict[str, list[str]]:
    """By what is missing, the agents that are left to other workers for want of it."""
    lacks: dict[str, list[str]] = {}
    for kind, lack in withheld.items():
        if kind.startswith(AGENT_KIND):
            lacks.setdefault(lack, []).append(kind.removeprefix(AGENT_KIND))
    return lacks


def handed_back(run: LoadedRun, spec: AgentSpec, model: str, chance: Callable[[], float]) -> Park:
    """The worker that has the run cannot ask its model: another may, soon or, the longer nobody did, later."""
    wait = min(_MOST_US, max(_LEAST_US, (run.now - run.created_at) // 2))
    wait = min(round(wait * (1 + 0.1 * chance())), limit_left(run, limits_of(run, spec)) or _MOST_US * 2)
    return Park(f"{_KEY}{model}", f"{wait}us")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLacksKey(Reason):
    """The worker that had the run last has no key for its model: the run waits for another one."""

    gate = Gate.KEY

    model: str

    @property
    def sentence(self) -> str:
        return (
            f"the worker that claimed it last has no key for model {self.model}; a worker with a key may take it: "
            f"set {key_of(self.model)} where the workers run"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoKey(Reason):
    """These workers have the agent, and none of the live ones can ask its model."""

    gate = Gate.KEY

    model: str
    workers: Sequence[str]

    @property
    def sentence(self) -> str:
        some = ", ".join(self.workers[:3]) + (" …" if len(self.workers) > 3 else "")
        return (
            f"no live worker has a key for model {self.model}: set {key_of(self.model)} where the workers run, or "
            f"install what they lack, as the log of each says ({some})"
        )


async def missing(
    tx: Transaction, run: RunRow, reasons: Sequence[Reason], absent: Collection[int] = ()
) -> list[Reason]:
    """What `why` says in place of these reasons where the run waits for a key."""
    for reason in reasons:
        if isinstance(reason, AwaitsSignal) and reason.channel.startswith(_KEY):
            return [WorkerLacksKey(model=await _model_of(tx, run), until=reason.until)]
    if not any(reason.gate is Gate.NO_WORKER for reason in reasons):
        return []
    there = await list_workers(tx, all=False, limit=10_000, absent=absent)
    live = [row for row in there if not row.silent]
    kind = f"{LACKS}{AGENT_KIND}{run.agent_name}"
    lacking = [row.id for row in live if row.status == WorkerState.ACTIVE and kind in codec.decode(row.capabilities)]
    return [NoKey(model=await _model_of(tx, run), workers=lacking)] if lacking else []


async def _model_of(tx: Transaction, run: RunRow) -> str:
    loaded = await tx.one(RunsSql.load_run, job=run.job)
    if loaded is None or (read := understood(loaded.definition, run.options)) is None:
        return "of its agent"
    spec, options = read
    return spec.model_for(options.get("model"), loaded.fallback)
