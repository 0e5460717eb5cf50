"""Crashes: where a worker is killed, and a death that no `finally` notices.

A worker's tasks all carry its `WorkerLife`. When that is over, none of them runs another step: they stay where they
are, as in a process that was killed, until they are buried at the end of the lab. Python cannot drop a suspended
coroutine without running its `finally` blocks, so they do run then: after the test's body, with a store that refuses
everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context, ContextVar
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

from holdfast.errors import UsageError
from holdfast.kernel.leases import beat

R = TypeVar("R")
When = Literal["before", "after"]


class Killed(BaseException):
    """Ends what cannot be left suspended: a thread, or a task outside of the worker that was killed."""


@dataclass(frozen=True, slots=True)
class Crash:
    """Where a worker is killed: right before the n-th commit of this name, or right after it, with its answer lost."""

    when: When
    commit: str
    nth: int

    def __str__(self) -> str:
        return f"{self.when} {self.commit} {self.nth}"


class Commit(NamedTuple):
    name: str
    nth: int


@dataclass(slots=True)
class DemandedCrash:
    """A crash that a test asked for: at the n-th commit of a name, or of one that begins with it, from now on."""

    when: When
    name: str
    nth: int
    at: Commit | None = None  # known once it is reached

    def count(self, commit: Commit) -> None:
        if commit.name == self.name or commit.name.startswith(f"{self.name}_"):
            self.nth -= 1
            if self.nth == 0:
                self.at = commit


class CrashPlan:
    """Which crashes are to come in one lab, which have come, and what its workers have committed."""

    def __init__(self, *crashes: Crash) -> None:
        self.commits: list[Commit] = []
        self.crashes: list[Crash] = []
        self._to_come = list(crashes)
        self._demanded: list[DemandedCrash] = []
        self._counts: Counter[str] = Counter()

    @property
    def to_come(self) -> bool:
        return bool(self._to_come or self._demanded)

    def demand(self, when: When, name: str, nth: int) -> None:
        """A crash at the n-th such commit from now on; the next drain must reach it."""
        if nth < 1:
            raise UsageError(f"nth counts from 1, not {nth}.")
        self._demanded.append(DemandedCrash(when, name, nth))

    def require_met(self) -> None:
        """Raise `UsageError` if a crash that was demanded has not come: the test would prove nothing."""
        missed, self._demanded = self._demanded, []
        for demand in missed:
            seen = ", ".join(dict.fromkeys(name for name, _ in self.commits)) or "nothing"
            raise UsageError(
                f"the worker never reached {demand.name!r}, so was not killed {demand.when} it. It committed: {seen}."
            )

    def reach(self, operation: Callable[..., Any]) -> Commit | None:
        """A worker is about to commit this. None for a heartbeat: when it comes is chance."""
        if operation is beat:
            return None
        name = operation.__name__
        self._counts[name] += 1
        commit = Commit(name, self._counts[name])
        self.commits.append(commit)
        for demand in self._demanded:
            demand.count(commit)
        return commit

    def strikes(self, when: When, commit: Commit | None) -> bool:
        """Is this where the worker dies? Then it is noted, and will not be again."""
        if commit is None:
            return False
        crash = Crash(when, *commit)
        demands = [demand for demand in self._demanded if (demand.when, demand.at) == (when, commit)]
        if crash not in self._to_come and not demands:
            return False
        self._to_come = [other for other in self._to_come if other != crash]
        self._demanded = [demand for demand in self._demanded if demand not in demands]
        self.crashes.append(crash)
        return True


class WorkerLife:
    """One worker's time on earth. Whatever is started in its context ends with it."""

    def __init__(self) -> None:
        self.over = False
        self.buried = False
        self.tasks: list[asyncio.Task[Any]] = []
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def spawn(self, work: Coroutine[Any, Any, R], *, name: str) -> asyncio.Task[R]:
        context = Context()
        context.run(_LIFE.set, self)
        return asyncio.create_task(work, name=name, context=context)

    def end(self) -> None:
        """Kill it, here and now."""
        self.over = True
        if not self.ended.done():
            self.ended.set_result(None)

    async def rest(self) -> NoReturn:
        """Never come back."""
        if _LIFE.get(None) is not self:
            raise Killed("the worker was killed by its test")
        await self._loop.create_future()
        raise AssertionError("the dead do not continue")

    async def bury(self) -> None:
        """Dispose of every task, and of those that their `finally` blocks start."""
        self.buried = True
        with mortal_tasks():
            while pending := [task for task in self.tasks if not task.done()]:
                for task in pending:
                    task.cancel()
                await asyncio.wait(pending)
        self.tasks.clear()


_LIFE: ContextVar[WorkerLife] = ContextVar("holdfast_life")


def in_a_worker() -> bool:
    """Is this code part of a lab's worker, such as a handler?"""
    return _LIFE.get(None) is not None


async def outlive(work: Coroutine[Any, Any, R]) -> R:
    """Do something that must not stop halfway when the worker is killed that asks for it, because others share it."""
    if not in_a_worker():
        return await work
    return await asyncio.create_task(work, context=Context())


class KillableCoroutine(Coroutine[Any, Any, Any]):
    """A coroutine that stops between two steps once its life is over."""

    def __init__(self, inner: Coroutine[Any, Any, Any], life: WorkerLife) -> None:
        self._inner = inner
        self._life = life

    def send(self, value: Any) -> Any:
        return self._suspend() if self._life.over else self._inner.send(value)

    def throw(self, *problem: Any) -> Any:
        return self._suspend() if self._life.over else self._inner.throw(*problem)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Any:
        return self._inner.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # where it is suspended, for code that prints a task

    def _suspend(self) -> Any:
        if self._life.buried:
            self._dispose()
            raise asyncio.CancelledError
        # What `await future` yields to the task: it waits for what never comes.
        return asyncio.get_running_loop().create_future().__await__().send(None)

    def _dispose(self) -> None:
        heard = logging.root.manager.disable
        logging.disable()  # what the dead complain of is of no interest
        try:
            for _ in range(100):  # a `finally` that awaits survives a close; most do not survive many
                with contextlib.suppress(BaseException):
                    self._inner.close()
                    break
        finally:
            logging.disable(heard)


@contextlib.contextmanager
def mortal_tasks() -> Iterator[None]:
    """Until the block ends, every task that is started inside a life ends with it."""
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()

    def make(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        context: Context | None = options.get("context")
        life = _LIFE.get(None) if context is None else context.get(_LIFE)
        if life is not None:
            coro = KillableCoroutine(coro, life)
        task = before(loop, coro, **options) if before else asyncio.Task(coro, loop=loop, **options)
        if life is not None:
            life.tasks.append(task)  # type: ignore[arg-type]
        return task

    loop.set_task_factory(make)
    try:
        yield
    finally:
        if loop.get_task_factory() is make:
            loop.set_task_factory(before)
