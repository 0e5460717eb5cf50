"""A lab for tests that are not async: the same lab, on an event loop of its own on a background thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from holdfast.agents.api.run import Run
from holdfast.agents.money.api import Budget, Policy
from holdfast.agents.values import Inquiry
from holdfast.app import Holdfast
from holdfast.client.jobs import Job, JobFunction
from holdfast.durations import Duration
from holdfast.errors import UsageError
from holdfast.models.request_view import RequestView
from holdfast.models.script import Script
from holdfast.testing.agents import Asker
from holdfast.testing.bought import Rebought
from holdfast.testing.clock import LabClock
from holdfast.testing.crashes import Crash
from holdfast.testing.lab import Lab, lab
from holdfast.threads import LoopThread

P = ParamSpec("P")
R = TypeVar("R")
Call = Callable[[Coroutine[Any, Any, Any]], Any]


class SyncClock:
    """The clock of a sync lab: `lab.clock.advance("1h")`, `lab.clock.now()`."""

    def __init__(self, clock: LabClock, call: Call) -> None:
        self._clock = clock
        self._call = call

    def now(self) -> datetime:
        """The time, as the database and the workers of this lab see it."""
        return self._clock.now()

    def advance(self, by: Duration) -> None:
        """Let time pass. A job that runs meanwhile keeps its lease."""
        self._call(self._clock.advance(by))


class SyncLab:
    """`Lab` without `await`. Use your app by its calls that end in `_sync`, and by `hf.sync`."""

    def __init__(self, lab: AbstractAsyncContextManager[Lab]) -> None:
        """`lab` is entered and left on the thread of this one."""
        if _has_a_loop():
            raise UsageError("this test is async: open its lab with `lab = await holdfast.use(hf)`.")
        self._entered = lab
        self._lab: Lab | None = None
        self._thread = LoopThread(self._leave)
        try:
            self._lab = self._thread.run(self._enter())
        except BaseException:
            self._thread.stop()
            raise
        self.clock = SyncClock(self._lab.clock, self._thread.run)

    @property
    def inner(self) -> Lab:
        """The lab itself, which lives on another thread."""
        assert self._lab is not None
        return self._lab

    @property
    def app(self) -> Holdfast:
        return self.inner.app

    @property
    def url(self) -> str:
        """The lab's database."""
        return self.inner.url

    @property
    def crashes(self) -> Sequence[Crash]:
        """Where workers of this lab were killed so far."""
        return self.inner.crashes

    @property
    def asked(self) -> list[RequestView]:
        """What models were asked, in order."""
        return self.inner.asked

    @property
    def rebought(self) -> list[Rebought]:
        """Turns that were bought more often than the records and unknown outcomes explain; it should be empty."""
        return self.inner.rebought

    def drain(self, *, patience: Duration = "30s") -> None:
        """Run the app's jobs on a real worker until nothing can be claimed at this time; see `Lab.drain`."""
        __tracebackhide__ = True
        self._thread.run(self.inner.drain(patience=patience))

    def crash(self, *, before: str | None = None, after: str | None = None, nth: int = 1) -> None:
        """Kill the worker right before, or right after, the n-th commit of that name from now on."""
        self.inner.crash(before=before, after=after, nth=nth)

    def enqueued(self, job: JobFunction[P, R]) -> list[dict[str, Any]]:
        """The arguments of every such job that was ever enqueued in this lab, in order."""
        return self.inner.enqueued(job)

    def assert_enqueued(self, job: JobFunction[P, R], /, **arguments: Any) -> Job[R]:
        """Fail unless such a job was enqueued, with these arguments among others; returns the newest that was."""
        __tracebackhide__ = True
        return self.inner.assert_enqueued(job, **arguments)

    def calls(self, tool: str) -> list[dict[str, Any]]:
        """What models called this tool, or this agent, with, in order."""
        return self.inner.calls(tool)

    def inquiries(self, run: Asker | None = None) -> list[Inquiry]:
        """What people are asked now, the oldest first."""
        return self.inner.inquiries(run)

    def approve(self, run: Asker, *, input: dict[str, Any] | None = None, by: str = "") -> Inquiry:
        """Approve the call or the run that a person is asked about. Then drain."""
        return self._thread.run(self.inner.approve(run, input=input, by=by))

    def deny(self, run: Asker, message: str = "", *, by: str = "") -> Inquiry:
        """Deny it, and tell the model why."""
        return self._thread.run(self.inner.deny(run, message, by=by))

    def answer(self, run: Asker, answer: Any, *, by: str = "") -> Inquiry:
        """Answer the question that a person is asked, or give a call's result in its place."""
        return self._thread.run(self.inner.answer(run, answer, by=by))

    def price(self, usd: str | Decimal) -> None:
        """Let every call of a model cost this, whatever it uses."""
        self.inner.price(usd)

    def budget(
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
        return self._thread.run(
            self.inner.budget(cost, tenant=tenant, session=session, each_tenant=each_tenant, per=per, policy=policy)
        )

    def spent(self, *, tenant: str | None = None) -> Decimal:
        """What models have cost in this lab, in USD: everybody, or one tenant."""
        return self.inner.spent(tenant=tenant)

    def pass_time(self, *runs: Run[Any]) -> None:
        """Drain, and move the clock to whatever is due next, until each run has ended or waits for a person."""
        __tracebackhide__ = True
        self._thread.run(self.inner.pass_time(*runs))

    def record(self, path: str | Path, *runs: Run[Any]) -> None:
        """Write a cassette of these runs and those that they started; without any, of all runs of this lab."""
        self._thread.run(self.inner.record(path, *runs))

    def close(self) -> None:
        """Give the app back as it was, and remove the database."""
        if not self.inner.closed:
            self._thread.stop()

    async def _enter(self) -> Lab:
        return await self._entered.__aenter__()

    async def _leave(self) -> None:
        if self._lab is not None:
            await self._entered.__aexit__(None, None, None)


def _has_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def sync_lab(
    app: Holdfast,
    script: Script | None = None,
    *,
    inline: bool = False,
    now: datetime | None = None,
    database: str = "sqlite",
) -> Iterator[SyncLab]:
    """A lab without the pytest plugin and without `async`; its options are those of `lab`."""
    opened = SyncLab(lab(app, script, inline=inline, now=now, database=database))
    try:
        yield opened
    finally:
        opened.close()
