"""The labs of one test: what the pytest plugin's fixture gives, and closes when the test has ended."""

from __future__ import annotations

import asyncio
import difflib
import pprint
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

from holdfast.agents import queries
from holdfast.app import Holdfast
from holdfast.errors import UsageError
from holdfast.kernel import codec
from holdfast.kernel.database import Database
from holdfast.models.script import Script
from holdfast.testing.bought import every_run
from holdfast.testing.crashes import Commit, Crash, CrashPlan
from holdfast.testing.databases import Databases
from holdfast.testing.lab import Lab
from holdfast.testing.sync_lab import SyncLab

# Comparing what came of a test's body with and without a crash.


T = TypeVar("T")


class Outcomes(Generic[T]):
    """What a body returned, or, if that is nothing, how the runs of its lab ended."""

    def __init__(self, returned: T, lab: Lab) -> None:
        self.returned = returned
        self.came: Any = lab.look(_ends) if returned is None else returned


def check_same(first: Outcomes[Any], now: Outcomes[Any]) -> None:
    """`AssertionError`, with the difference, when a crash made one."""
    __tracebackhide__ = True
    if first.came != now.came:
        lines = difflib.ndiff(pprint.pformat(first.came).splitlines(), pprint.pformat(now.came).splitlines())
        raise AssertionError("\n".join(["a crash changes what comes out (- without it, + with it):", *lines]))


def check_bought(lab: Lab, *, scripted: bool) -> None:
    """`AssertionError` when an answer that was recorded was bought again."""
    __tracebackhide__ = True
    if scripted and (found := lab.rebought):
        lines = [
            f"  run {each.run}, turn {each.turn}: bought {each.bought} times, {each.recorded} recorded, "
            f"{each.unknown} of unknown outcome"
            for each in found
        ]
        raise AssertionError("\n".join(["an answer was bought more often than can be explained:", *lines]))


async def _ends(database: Database) -> list[tuple[Any, ...]]:
    """How every run ended and what it called; in an order that does not depend on when."""
    found: list[tuple[Any, ...]] = []
    for run in await every_run(database):
        calls = await database.transact(queries.list_calls, run.id)
        called = [(call.name, call.input, call.state) for call in calls]
        text = (codec.decode(run.output) or {}).get("text")
        found.append((run.agent_name, run.input, run.state, run.outcome, text, called))
    return sorted(found, key=repr)


class Circumstances(NamedTuple):
    """What a lab is opened with, beside the app and the crashes to come."""

    script: Script | None = None
    inline: bool = False
    now: datetime | None = None


class Labs:
    """Opens labs on fresh databases: `lab = await holdfast.use(hf)`."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._open: dict[Lab, asyncio.Task[None]] = {}
        self._sync: list[SyncLab] = []
        self._crash_runs: list[CrashRuns] = []

    async def use(
        self, app: Holdfast, script: Script | None = None, *, inline: bool = False, now: datetime | None = None
    ) -> Lab:
        """Bind `app` to a fresh database until the test ends.

        A `script` answers for every model of the app. With `inline`, enqueuing a job or a run runs it to its end. `now`
        is the time at which the clock stands, by default this moment.
        """
        return await self.open_lab(app, CrashPlan(), Circumstances(script, inline, now))

    def use_sync(
        self, app: Holdfast, script: Script | None = None, *, inline: bool = False, now: datetime | None = None
    ) -> SyncLab:
        """`use` for a test that is not async: `lab = holdfast.use_sync(hf)`, then `lab.drain()` without `await`."""
        lab = SyncLab(self._opened(app, Circumstances(script, inline, now)))
        self._sync.append(lab)
        return lab

    @asynccontextmanager
    async def _opened(self, app: Holdfast, given: Circumstances) -> AsyncIterator[Lab]:
        lab = await Lab.open(app, self._databases, CrashPlan(), **given._asdict())
        try:
            yield lab
        finally:
            await lab.close()

    def crash_everywhere(
        self,
        app: Holdfast,
        script: Script | None = None,
        *,
        at_most: int | None = None,
        inline: bool = False,
        now: datetime | None = None,
    ) -> AsyncIterator[Lab]:
        """Run the body once without a crash, then once for every place at which a worker can be killed.

        `async for lab in holdfast.crash_everywhere(hf):` gives a fresh lab each time. The places are right before and
        right after every commit that a worker made in the first run; `at_most` takes an even sample of them, and
        another place for one that its run did not reach.
        """
        runs = CrashRuns(self, app, Circumstances(script, inline, now), at_most=at_most)
        self._crash_runs.append(runs)
        return runs

    async def survives(
        self,
        app: Holdfast,
        body: Callable[[Lab], Awaitable[T]],
        script: Script | None = None,
        *,
        at_most: int | None = None,
        inline: bool = False,
        now: datetime | None = None,
    ) -> T:
        """Assert that `body` comes out the same, and buys nothing twice, wherever a worker is killed.

        `body` is given a lab, enqueues, drains, decides what people decide, and returns what must be the same in every
        run; if it returns nothing, that is how every run ended and what it called. The runs are those of
        `crash_everywhere`; a failure says at which crash. Returns what `body` returned without a crash.
        """
        runs = CrashRuns(self, app, Circumstances(script, inline, now), at_most=at_most)
        first: Outcomes[T] | None = None
        try:
            async for lab in runs:
                came = Outcomes(await body(lab), lab)
                first = first or came
                check_same(first, came)
                check_bought(lab, scripted=script is not None)
        except BaseException as problem:
            problem.add_note(runs.note())
            raise
        assert first is not None, "there is always a run without a crash"
        return first.returned

    def notes(self) -> list[str]:
        """What a failure should say beside itself."""
        return [note for runs in self._crash_runs if (note := runs.note())]

    async def open_lab(self, app: Holdfast, plan: CrashPlan, given: Circumstances) -> Lab:
        lab = await Lab.open(app, self._databases, plan, **given._asdict())
        self._open[lab] = asyncio.create_task(_close_with_the_loop(lab), name="holdfast lab", context=Context())
        await asyncio.sleep(0)  # a task that is cancelled before its first step never runs
        return lab

    async def close_lab(self, lab: Lab) -> None:
        await lab.close()
        self._open.pop(lab).cancel()

    def close(self) -> None:
        """Called when the test is over, and perhaps its event loop too, which then has closed the labs."""
        for lab, keeper in self._open.items():
            if lab.closed:
                continue
            if lab.loop.is_closed() or lab.loop.is_running():
                lab.abandon()
            else:
                keeper.cancel()
                lab.loop.run_until_complete(asyncio.wait({keeper}))
        self._open.clear()
        for sync_lab in self._sync:
            sync_lab.close()
        self._sync.clear()


class CrashRuns:
    """The runs of one `crash_everywhere`, and which of them it is now."""

    def __init__(self, labs: Labs, app: Holdfast, given: Circumstances, *, at_most: int | None) -> None:
        if at_most is not None and at_most < 1:
            raise UsageError(f"at_most must be at least 1; got {at_most}.")
        self._labs = labs
        self._app = app
        self._at_most = at_most
        self._given = given
        self._lab: Lab | None = None
        self._crashes: list[Crash] | None = None  # unknown before the first run has ended
        self._spare: list[Crash] = []  # places outside of the sample, those first that every run reaches
        self._done = 0

    def __aiter__(self) -> AsyncIterator[Lab]:
        return self

    async def __anext__(self) -> Lab:
        if self._lab is not None:
            await self._labs.close_lab(self._lab)
            if self._crashes is None:
                self._crashes = around(self._lab.plan.commits, self._at_most)
                left = set(around(self._lab.plan.commits, None)) - set(self._crashes)
                self._spare = sorted(left, key=lambda crash: (crash.nth, str(crash)))
            else:
                if self._crashes[self._done] not in self._lab.crashes and self._spare:
                    self._crashes.append(self._spare.pop(0))  # how often a worker commits some things is chance
                self._done += 1
            self._lab = None
        plan = CrashPlan()
        if self._crashes is not None:
            if self._done == len(self._crashes):
                raise StopAsyncIteration
            plan = CrashPlan(self._crashes[self._done])
        self._lab = await self._labs.open_lab(self._app, plan, self._given)
        return self._lab

    def note(self) -> str:
        """Which run this is, while there is one."""
        if self._lab is None:
            return ""
        if self._crashes is None:
            return "holdfast: this was the run without a crash, the first of crash_everywhere."
        crash, of = self._crashes[self._done], f"(crash {self._done + 1} of {len(self._crashes)})"
        if crash in self._lab.crashes:
            return f"holdfast: in this run the worker was killed {crash} {of}."
        return f"holdfast: in this run the worker should have been killed {crash}, and did not reach that {of}."


def around(commits: list[Commit], at_most: int | None) -> list[Crash]:
    """Both sides of every commit, or an even sample of them."""
    if not commits:
        raise UsageError("crash_everywhere found no commit to crash at: its body must enqueue something and drain.")
    crashes = [crash for commit in commits for crash in (Crash("before", *commit), Crash("after", *commit))]
    if at_most is None or at_most >= len(crashes):
        return crashes
    if at_most == 1:
        return [crashes[len(crashes) // 2]]
    step = (len(crashes) - 1) / (at_most - 1)
    return [crashes[round(number * step)] for number in range(at_most)]


async def _close_with_the_loop(lab: Lab) -> None:
    # A fixture that is not async cannot await. But the code that ends an event loop cancels its tasks and waits for
    # them.
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await lab.close()
