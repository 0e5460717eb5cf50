"""A PostgreSQL store that is set back to the start of its scene for every case, and two operations on it at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import asyncpg

from holdfast.agents.runs.end import AgentJobs
from holdfast.errors import HoldfastError
from holdfast.kernel.claim import claim
from holdfast.kernel.database import Database
from holdfast.kernel.lanes import claim_in_lanes, open_lanes
from holdfast.machines.layer import MachineLayer
from tests.interleaving.fleet import Fleet
from tests.interleaving.known import MEANT
from tests.interleaving.pausing import Call, Gate, through
from tests.interleaving.scene import Scene, skips
from tests.interleaving.sight import Names, Sight, differences, leases_counted, look_at, plain, together, unnamed
from tests.support.places import assert_well_placed
from tests.support.stores import Store, postgres_store

_TABLES = "select tablename from pg_tables where schemaname = 'holdfast' and tablename <> 'schema' order by 1"
_SEQUENCES = "select sequencename from pg_sequences where schemaname = 'holdfast'"


class Case(NamedTuple):
    """One operation stopped after so many statements, and the one that runs meanwhile."""

    scene: str
    first: str
    after: int
    second: str

    def __str__(self) -> str:
        return f"{self.scene}/{self.first}@{self.after}/{self.second}"

    @property
    def pair(self) -> str:
        return f"{self.scene}/{self.first}/{self.second}"

    @staticmethod
    def parse(text: str) -> Case:
        scene, first, second = text.split("/")
        verb, _, after = first.partition("@")
        return Case(scene, verb, int(after), second)


class History(NamedTuple):
    """What calls answered, and what can be seen after them."""

    answers: dict[str, Any]
    sight: Sight

    def unlike(self, found: History) -> list[str]:
        return differences(self.answers, found.answers) + differences(self.sight, found.sight)

    def unnamed(self) -> History:
        return History({name: leases_counted(answer) for name, answer in self.answers.items()}, unnamed(self.sight))


class Broken(NamedTuple):
    """What an operation never answers with."""

    problem: Exception


class Wrong(AssertionError):
    """Two operations did together what they never do one after the other."""


class Stage:
    def __init__(self, store: Store, observer: Any, scene: type[Scene]) -> None:
        self._store = store
        self.observer = observer
        self.scene = scene(store)
        self._names = Names()
        self._start = 0
        self._script = ""
        self._serial: dict[tuple[str, ...], History] = {}
        self._statements: dict[str, list[str]] = {}

    @property
    def database(self) -> Database:
        return self._store.database

    async def build(self) -> None:
        await self.scene.build()
        await self._store.do(look_at, self._names, self.scene.look)
        self._start = self._store.clock.us
        await self._keep()

    async def statements(self, verb: str) -> list[str]:
        """The statements of a verb that runs alone, in their order."""
        if verb not in self._statements:
            await self.set_back()
            gate = Gate()
            await self._answer(self.scene.call(verb), gate)
            self._statements[verb] = gate.statements
        return self._statements[verb]

    async def judge(self, case: Case, *, briefly: bool = False) -> None:
        """Raise `Wrong` if the case ends as no order of the two would, or if something never ends.

        `briefly`: what looks as after one of the orders is not played to its end, where nothing is out of sight.
        """
        found, blocked, order = await self._interleaved(case)
        hides = self.scene.limit is not None or self.scene.channels
        wrong = [] if hides or not briefly else await self._compare(case, found, blocked)
        if not wrong and not hides and briefly:
            return
        if wrong:
            found, blocked, order = await self._interleaved(case)
        fleet = Fleet(self.scene)
        for said, answer in order:
            await fleet.heard(said, answer)
        await fleet.rest()
        wrong = fleet.problems or wrong or await self._compare(case, found, blocked)
        if wrong and not fleet.problems:
            wrong = [] if (case.first, case.second) in MEANT else await self._compare_again(case, wrong)
        if wrong:
            raise Wrong(self._told(case, blocked, wrong))

    async def _interleaved(self, case: Case) -> tuple[History, bool, list[tuple[Call, Any]]]:
        """What came of it, whether the second had to wait, and both with their answers as they ended."""
        await self.set_back()
        first, second = self.scene.call(case.first), self.scene.call(case.second)
        stopped, rival = Gate(case.after), Gate()
        one = asyncio.create_task(self._answer(first, stopped))
        arrived = asyncio.create_task(stopped.reached.wait())
        await asyncio.wait([one, arrived], return_when=asyncio.FIRST_COMPLETED)
        if not stopped.reached.is_set():
            arrived.cancel()
            raise Wrong(
                f"{case}: it has only {len(stopped.statements)} statements, {stopped.statements}: {await one!r}"
            )
        two = asyncio.create_task(self._answer(second, rival))
        blocked = await self._ended_or_blocked(two, rival)
        stopped.opened.set()
        answers = {"first": await one, "second": await two}
        for name, gate in (("first", stopped), ("second", rival)):
            if isinstance(answers[name], Broken):
                raise Wrong(self._told(case, blocked, [f"the {name} broke: {answers[name].problem!r}"]))
            if gate.begun > 1:
                raise Wrong(self._told(case, blocked, [f"the {name} was ended by the database and begun again"]))
        for name, verb in (("first", case.first), ("second", case.second)):
            if self.scene.heard_of_the_dead(verb, answers[name]):
                raise Wrong(self._told(case, blocked, [f"{verb} was answered with {answers[name]!r}"]))
        try:
            await assert_well_placed(self.observer.fetch)
        except AssertionError as problem:
            raise Wrong(self._told(case, blocked, [str(problem)])) from problem
        order = [(first, answers["first"]), (second, answers["second"])]
        return await self._history(answers), blocked, order if blocked else order[::-1]

    async def _ended_or_blocked(self, task: asyncio.Task[Any], gate: Gate) -> bool:
        while not task.done():
            if gate.pid and await self.observer.fetchval("select cardinality(pg_blocking_pids($1)) > 0", gate.pid):
                return True
            await asyncio.sleep(0)
        return False

    async def _compare(self, case: Case, found: History, blocked: bool) -> list[str]:
        """Differences from both orders; none, if it was one of them. The likely order is tried first."""
        told: list[str] = []
        for swapped in (False, True) if blocked else (True, False):
            serial = await self._in_order(case, swapped=swapped)
            unequal = serial.unlike(found)
            if not unequal:
                return []
            told += [f"{'second, first' if swapped else 'first, second'}: {each}" for each in unequal]
        return told

    async def _compare_again(self, case: Case, wrong: list[str]) -> list[str]:
        """What skips locked rows is called again: then it must have done all that it does in one of the orders."""
        calls = {"first": self.scene.call(case.first), "second": self.scene.call(case.second)}
        again = [name for name, said in calls.items() if skips(said.operation)]
        if not again:
            return wrong
        found, _, _ = await self._interleaved(case)
        later = await self._repeated(found, calls, again)
        told: list[str] = []
        claims = any(said.operation in (claim, claim_in_lanes) for said in calls.values())
        for swapped in (False, True):
            serial = await self._in_order(case, swapped=swapped, again=again)
            unequal = serial.unlike(later)
            # A claim passes over what is locked and takes the next in line: as many, but not the same.
            if not unequal or (claims and not serial.unnamed().unlike(later.unnamed())):
                return []
            told += [f"called again, {'second, first' if swapped else 'first, second'}: {each}" for each in unequal]
        return wrong + told

    async def _in_order(self, case: Case, *, swapped: bool, again: Sequence[str] = ()) -> History:
        key = (case.first, case.second, "swapped" if swapped else "", *again)
        if key not in self._serial:
            await self.set_back()
            calls = {"first": self.scene.call(case.first), "second": self.scene.call(case.second)}
            answers = {}
            for name in ("second", "first") if swapped else ("first", "second"):
                answers[name] = await self._answer(calls[name], Gate())
            history = await self._history(answers)
            self._serial[key] = await self._repeated(history, calls, again) if again else history
        return self._serial[key]

    async def _repeated(self, history: History, calls: dict[str, Call], again: Sequence[str]) -> History:
        """More than once, because what one of them skipped at first may be what the other needs."""
        answers = dict(history.answers)
        for name in [*again] * 3:
            answers[name] = together(answers[name], plain(await self._answer(calls[name], Gate()), self._names))
            if calls[name].operation is open_lanes:
                answers[name] = "some"  # how often it looks at a lane is no promise
        await self._look_at_lanes()
        return History(answers, await self._store.do(look_at, self._names, self.scene.look))

    async def _history(self, answers: dict[str, Any]) -> History:
        await self._look_at_lanes()
        sight = await self._store.do(look_at, self._names, self.scene.look)
        return History({name: plain(answer, self._names) for name, answer in answers.items()}, sight)

    async def _look_at_lanes(self) -> None:
        """As the next look does: an ending that found its lane held leaves a note, and a claim that reads one has the
        lane looked at."""
        if self.scene.limit is not None:
            await self._store.do(open_lanes, limit=100)

    async def _answer(self, said: Call, gate: Gate) -> Any:
        try:
            return await self._store.do(through(gate, said))
        except HoldfastError as refused:
            return refused
        except Exception as broken:  # noqa: BLE001  no contract names it: the case is wrong, and the next is tried
            return Broken(broken)

    def _told(self, case: Case, blocked: bool, wrong: list[str]) -> str:
        how = "waited for the first" if blocked else "ended while the first stood still"
        lines = "\n  ".join(wrong[:40])
        return f"{case}: the second {how}\n  {lines}\nreplay: python -m tests.interleaving --replay '{case}'"

    # The start of a scene, kept in a schema of its own. It copies whatever tables there are.

    async def _keep(self) -> None:
        query = self.observer.fetch
        await self.observer.execute("drop schema if exists kept cascade; create schema kept")
        tables = [row[0] for row in await query(_TABLES)]
        script = [f"delete from holdfast.{table}" for table in tables]
        for table in tables:
            if await self.observer.fetchval(f"select exists (select 1 from holdfast.{table})"):
                await self.observer.execute(f"create unlogged table kept.{table} as table holdfast.{table}")
                script.append(f"insert into holdfast.{table} overriding system value select * from kept.{table}")
        for (sequence,) in await query(_SEQUENCES):
            last, called = await self.observer.fetchrow(f"select last_value, is_called from holdfast.{sequence}")
            script.append(f"select setval('holdfast.{sequence}', {last}, {called})")
        self._script = "; ".join(script)

    async def set_back(self) -> None:
        self._store.clock.us = self._start
        await self.observer.execute(self._script)


@asynccontextmanager
async def staged(url: str, scene: type[Scene]) -> AsyncIterator[Stage]:
    """The database behind `url` must be empty and migrated."""
    observer = await asyncpg.connect(url)
    try:
        name = await observer.fetchval("select current_database()")
        with suppress(asyncpg.InsufficientPrivilegeError):  # then a deadlock takes a second to be noticed
            await observer.execute(f'alter database "{name}" set deadlock_timeout = 20')
        async with postgres_store(url, url, profile="fast", layers=[AgentJobs(), MachineLayer()]) as store:
            stage = Stage(store, observer, scene)
            await stage.build()
            yield stage
    finally:
        await observer.close()
