"""Agents in a lab: what their models were asked, what people are asked, what it all costs, and time for batches.

What a test asks is answered without `await`, so that it cannot be forgotten; what a test does is awaited.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from holdfast.agents import listings, queries
from holdfast.agents.api.run import Run
from holdfast.agents.capsules.cassettes import record_runs, save
from holdfast.agents.definition import AGENT_KIND, TOOL_KIND, nano_of
from holdfast.agents.events.reader import ENDED
from holdfast.agents.money.api import Budget, Policy, TimeSpan, usage_of_all
from holdfast.agents.people.rulings import list_inquiries
from holdfast.agents.values import Inquiry, inquiry_of
from holdfast.app import Holdfast, core_of
from holdfast.clock import Ports
from holdfast.durations import Duration
from holdfast.errors import BadSetting, UsageError
from holdfast.kernel import codec
from holdfast.kernel.database import Database
from holdfast.kernel.states import State
from holdfast.models.protocol import Wire
from holdfast.models.request_view import RequestView
from holdfast.models.script import Script, ScriptedTurn
from holdfast.models.scripted import ScriptedModel
from holdfast.models.spool import MemoryShelf
from holdfast.models.steps import Unexpected
from holdfast.testing import bought, enqueued
from holdfast.testing.bought import Rebought, turn_of
from holdfast.testing.clock import LabClock
from holdfast.testing.crashes import CrashPlan
from holdfast.testing.crew import LabCrew, Stuck
from holdfast.testing.enqueued import Question

# What a test asks the store of people and of money.


_MOST = 10_000


async def open_inquiries(database: Database, run: str | None) -> list[Inquiry]:
    """What people are asked by anybody, or by a run and all below it; `run` may be an inquiry or a call, too."""
    rows = await database.transact(list_inquiries, state="open", limit=_MOST)
    if run is None:
        return [inquiry_of(row) for row in rows]
    tree = await _tree(database, run)
    return [inquiry_of(row) for row in rows if row.run in tree or run in (row.id, row.call)]


async def _tree(database: Database, run: str) -> set[str]:
    found, new = {run}, [run]
    while new:
        below = await database.transact(listings.list_runs, parent=new.pop(), limit=_MOST)
        found |= {row.id for row in below}
        new += [row.id for row in below]
    return found


async def spent(database: Database, tenant: str | None) -> Decimal:
    rows = await database.transact(usage_of_all, (), TimeSpan(0, queries.LAST), tenant)
    return sum((Decimal(row.cost_nano) for row in rows), Decimal(0)) / 1_000_000_000


def described(inquiry: Inquiry) -> str:
    """An inquiry in a line."""
    if inquiry.call is not None:
        return f"{inquiry.kind} of {inquiry.call.name}({codec.encode(inquiry.call.input, what='', cap=1 << 26)})"
    return f"{inquiry.kind}: {inquiry.data.get('question') or inquiry.data.get('reason') or inquiry.name}"


# The model of a lab: it plays the script, and remembers what it was asked and what did not fit.
#
# Its batches are in memory, beside the lab's workers: they outlive any of them, as those of a provider do.


class LabModel(ScriptedModel):
    """Answers for every model of an app. `agent_of` says which agent a run is of."""

    def __init__(self, script: Script, *, ports: Ports, agent_of: Callable[[str], str]) -> None:
        super().__init__(script, ports=ports, batches=MemoryShelf())
        self.asked: list[RequestView] = []
        self._agent_of = agent_of
        self._misfits: list[str] = []

    def turn(self, body: Wire, call: str) -> ScriptedTurn:
        run, number = turn_of(call) or (call.partition("/")[0], 0)
        heard = RequestView(body, run, number, self._agent_of(run))
        self.asked.append(heard)
        try:
            return self._script.for_agent(heard.agent).turn(body)
        except Unexpected as problem:
            whose = f"agent {heard.agent} (run {run}, turn {number})" if heard.agent else f"call {call}"
            self._misfits.append(f"the model of {whose} was asked something that its script does not expect: {problem}")
            raise

    def require_expected(self) -> None:
        """`AssertionError`, once, when a request did not fit what the script expects."""
        __tracebackhide__ = True
        misfits, self._misfits = self._misfits, []
        if misfits:
            more = f"\n\n{len(misfits) - 1} more did not fit." if len(misfits) > 1 else ""
            raise AssertionError(misfits[0] + more)


R = TypeVar("R")
Asker = Run[Any] | Inquiry | str
"""A run, an inquiry, or the id of either or of a call."""

_MOST_STEPS = 1_000  # of the clock, until a run has ended
_WITH_SCRIPT = "open the lab with a script."


class AgentsInLab(ABC):
    """The part of a lab that is about agents."""

    app: Holdfast
    clock: LabClock
    plan: CrashPlan
    _ports: Ports
    _crew: LabCrew
    _model: LabModel | None

    @property
    def asked(self) -> list[RequestView]:
        """What models were asked, in order: `lab.asked[0].text`, `.results`, `.tools`, `.system`, `.body`."""
        return list(self._own_model("what models were asked").asked)

    def calls(self, tool: str) -> list[dict[str, Any]]:
        """What models called this tool, or this agent, with, in order: as they wrote it, and whatever became of it."""
        kinds = core_of(self.app).registry.definitions
        if TOOL_KIND + tool not in kinds and AGENT_KIND + tool not in kinds:
            raise UsageError(f"the app of this lab has no tool and no agent {tool!r}.")
        return self.look(partial(bought.calls_of, tool=tool))

    @property
    def rebought(self) -> list[Rebought]:
        """Turns that were bought more often than the records and unknown outcomes explain; it should be empty.

        The witness is the lab's own model, so the lab must have a script.
        """
        lines = list(self._own_model("what was bought").witness.lines)
        return self.look(partial(bought.rebought, witness=lines))

    def inquiries(self, run: Asker | None = None) -> list[Inquiry]:
        """The open inquiries, the oldest first: all of them, or those of a run and of the runs below it."""
        return self.look(partial(open_inquiries, run=None if run is None else _id(run)))

    async def approve(self, run: Asker, *, input: dict[str, Any] | None = None, by: str = "") -> Inquiry:
        """Approve the call or the run that a person is asked about. Then drain.

        `run` is the run if it asks just one thing, else the inquiry, or the id of either or of the call.
        """
        return await self._decided(self.app.approve(self._open_inquiry(run), input=input, by=by))

    async def deny(self, run: Asker, message: str = "", *, by: str = "") -> Inquiry:
        """Deny it, and tell the model why."""
        return await self._decided(self.app.deny(self._open_inquiry(run), message=message, by=by))

    async def answer(self, run: Asker, answer: Any, *, by: str = "") -> Inquiry:
        """Answer the question that a person is asked, or give a call's result in its place."""
        return await self._decided(self.app.answer(self._open_inquiry(run), answer, by=by))

    def price(self, usd: str | Decimal) -> None:
        """Until the lab closes, make every call of a model cost this, whatever it uses; in a batch, half of it."""
        if not isinstance(usd, str | Decimal):
            raise BadSetting(f'money is written as text, "{usd}", never as a float.')
        core_of(self.app).book.per_call = Decimal(nano_of(str(usd))) / 1_000_000_000

    async def budget(
        self,
        cost: str | Decimal,
        *,
        tenant: str | None = None,
        session: Any = None,
        each_tenant: bool = False,
        per: Duration | None = None,
        policy: Policy = "end",
    ) -> Budget:
        """`hf.budgets.set`: what a tenant, a session, each tenant or everybody may spend."""
        return await self.app.budgets.set(
            cost, tenant=tenant, session=session, each_tenant=each_tenant, per=per, policy=policy
        )

    def spent(self, *, tenant: str | None = None) -> Decimal:
        """What models have cost in this lab, in USD: everybody, or one tenant."""
        return self.look(partial(spent, tenant=tenant))

    async def pass_time(self, *runs: Run[Any]) -> None:
        """Drain, and move the clock to whatever is due next, until each run has ended or waits for a person.

        So batches are made, end and are collected, and pauses pass. Raises `Stuck` when nothing is due any more.
        """
        if not runs:
            raise UsageError("say which runs are to end: await lab.pass_time(run).")
        self._begin_drain()
        for _ in range(_MOST_STEPS):
            await self._drain(last=False)
            if all([await self._has_ended_or_asks(run) for run in runs]):
                self.plan.require_met()
                return
            await self._advance_to_next()
        raise Stuck(f"the clock was moved {_MOST_STEPS:,} times, and {_standing(runs)}.")

    async def record(self, path: str | Path, *runs: Run[Any]) -> None:
        """Write a cassette of these runs and those that they started; without any, of all runs of this lab."""
        ids = [run.id for run in runs] or [row.id for row in reversed(await self._all_runs()) if row.parent is None]
        if not ids:
            raise UsageError("there is no run to record in this lab yet.")
        await save(await core_of(self.app).runtime().transact(record_runs, ids), path)

    async def _all_runs(self) -> list[Any]:
        return await bought.every_run(core_of(self.app).runtime().database)

    async def _has_ended_or_asks(self, run: Run[Any]) -> bool:
        if (await run.refresh()).state in ENDED:
            return True
        return bool(await open_inquiries(core_of(self.app).runtime().database, run.id))

    async def _advance_to_next(self) -> None:
        now = self.clock.wall_us()
        rows = await enqueued.read_jobs(core_of(self.app).runtime().database)
        waits = [row.due_at for row in rows if row.state in (State.SCHEDULED, State.WAITING) and row.due_at is not None]
        if not waits:
            raise Stuck("nothing is due at any time: the test itself must provide what a run waits for.")
        await self.clock.advance(f"{max(1, min(waits) - now)}us")

    def _open_inquiry(self, thing: Asker) -> str:
        """The one open inquiry that a run, an inquiry or an id means."""
        if isinstance(thing, Inquiry):
            return thing.id
        found = self.inquiries(thing)
        if len(found) == 1:
            return found[0].id
        if not found and isinstance(thing, str):
            return thing  # of a call, or of an inquiry that is decided: the app says what about it
        if not found:
            raise UsageError(f"nothing is asked of a person by {thing!r}. Drain first; `await run.why()` says more.")
        listed = "".join(f"\n  {each.id}: {described(each)}" for each in found)
        raise UsageError(
            f"{len(found)} things are asked of a person by {thing!r}; give one of lab.inquiries():{listed}"
        )

    async def _decided(self, deciding: Any) -> Inquiry:
        inquiry = cast(Inquiry, await deciding)
        await self.accepted([])  # inline, what follows runs now
        await self._refresh_handles()
        return inquiry

    def _own_model(self, what: str) -> LabModel:
        if self._model is None:
            raise UsageError(f"{what} is known only to the lab's own model: {_WITH_SCRIPT}")
        return self._model

    def _make_model(self, script: Script) -> LabModel:
        return LabModel(script, ports=self._ports, agent_of=lambda run: self._crew.seen.agents.get(run, ""))

    def _bind_models(self, undo: ExitStack) -> None:
        book = core_of(self.app).book
        for name in ("substitute", "shelf", "per_call"):
            undo.callback(setattr, book, name, getattr(book, name))
        book.shelf = MemoryShelf()
        if self._model is not None:
            book.substitute = self._model

    def _require_expected(self) -> None:
        __tracebackhide__ = True
        if self._model is not None:
            self._model.require_expected()

    @abstractmethod
    def _begin_drain(self) -> None: ...

    @abstractmethod
    async def _drain(self, patience: Duration = "30s", *, last: bool = True) -> None: ...

    @abstractmethod
    async def accepted(self, ids: Sequence[Any]) -> None: ...

    @abstractmethod
    async def _refresh_handles(self) -> None: ...

    @abstractmethod
    def look(self, question: Question[R]) -> R: ...


def _id(thing: Asker) -> str:
    return thing if isinstance(thing, str) else thing.id


def _standing(runs: Sequence[Run[Any]]) -> str:
    return ", ".join(f"run {run.id} is {run.state}" for run in runs)
