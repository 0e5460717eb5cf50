"""Apps and workers in the test's own process, and patience for what they will do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.settings import Settings
from holdfast.values.jobs import AttemptRecord, JobRecord
from holdfast.values.workers import WorkerRecord
from holdfast.workers.role import Role
from holdfast.workers.worker import Worker

T = TypeVar("T")

PATIENCE = 100.0  # seconds without any progress after which a test gives up; no test depends on being faster


class MakeApp(Protocol):
    def __call__(self, *, embedded: bool = True, **settings: Any) -> Holdfast: ...


def settings_with(**changes: Any) -> Settings:
    """The defaults, except for these; durations as people write them."""
    return Settings().override({name: str(value) for name, value in changes.items()})


@asynccontextmanager
async def working(app: Holdfast, role: Role | None = None) -> AsyncIterator[Worker]:
    """A worker for this app, which leaves at the end."""
    await core_of(app).runtime().open()
    worker = core_of(app).make_worker(role)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


async def eventually(ask: Callable[[], Awaitable[T | None]], progress: Callable[[], object] = lambda: None) -> T:
    """Ask until the answer is yes, or anything else that is true.

    Whenever `progress` says something new, the patience begins anew: a slow machine is no failure.
    """
    seen = progress()
    async with asyncio.timeout(PATIENCE) as patience:
        while not (answer := await ask()):
            if (now := progress()) != seen:
                seen = now
                patience.reschedule(asyncio.get_running_loop().time() + PATIENCE)
            await asyncio.sleep(0.01)  # the answer is in a database, which sets no event
    assert answer is not None
    return answer


async def happens(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE):
        await event.wait()


async def in_state(app: Holdfast, id: str, state: str) -> JobRecord:
    """The job, once it is in this state."""

    async def look() -> JobRecord | None:
        row = await app.jobs.get(id)
        return row if row.state == state else None

    return await eventually(look)


async def outcomes(app: Holdfast, id: str) -> list[str]:
    """How the job's attempts ended, in order."""
    return [attempt.outcome for attempt in await attempts(app, id)]


async def attempts(app: Holdfast, id: str) -> list[AttemptRecord]:
    return list(await app.jobs.attempts(id))


async def the_worker(app: Holdfast) -> WorkerRecord:
    """The one live worker of the store."""
    (row,) = await app.workers.list()
    return row
