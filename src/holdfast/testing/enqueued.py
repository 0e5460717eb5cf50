"""What was enqueued, as the store has it, for a test that asks without awaiting.

An `assert_enqueued` that had to be awaited would pass whenever the `await` is forgotten. So the question is asked on a
thread with an event loop of its own, and the test's loop stands still meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from holdfast.clock import Ports
from holdfast.errors import UsageError
from holdfast.kernel import codec, queries
from holdfast.kernel.database import Database
from holdfast.kernel.drivers import connect
from holdfast.kernel.rows import JobRow
from holdfast.settings import Settings
from holdfast.workers.definitions import Definition

R = TypeVar("R")
Question = Callable[[Database], Coroutine[Any, Any, R]]

_PAGE = 1_000
_SHOWN = 20


def ask_store(url: str, settings: Settings, ports: Ports, question: Question[R]) -> R:
    """The store's answer, on a connection and a thread of its own."""

    async def asking() -> R:
        database = connect(url, settings, ports)
        await database.open()
        try:
            return await question(database)
        finally:
            await database.close()

    with ThreadPoolExecutor(1, "holdfast-lab") as thread:
        return thread.submit(asyncio.run, asking()).result()


async def read_jobs(database: Database) -> list[JobRow]:
    """Every job in the store, in the order in which they were accepted."""
    rows: list[JobRow] = []
    before = queries.NEWEST
    while page := await database.transact(queries.list_jobs, before=before, limit=_PAGE):
        rows += page
        before = page[-1].seq
    return rows[::-1]


def arguments_of(row: JobRow, definition: Definition) -> dict[str, Any]:
    """A job's arguments as its handler gets them."""
    return definition.signature.decode(codec.decode(row.payload))


def matches(row: JobRow, definition: Definition, wanted: Mapping[str, Any]) -> bool:
    """Does the job have these arguments, among others? They may be written as the handler gets them or as JSON."""
    if row.kind != definition.kind:
        return False
    typed, stored = arguments_of(row, definition), codec.decode(row.payload)
    return all(typed[name] == value or stored[name] == value for name, value in wanted.items())


def check_names(definition: Definition, wanted: Mapping[str, Any]) -> None:
    for name in wanted:
        if not definition.signature.has(name):
            raise UsageError(f"job {definition.kind!r} has no argument {name!r}.")


def listed(rows: Sequence[JobRow]) -> str:
    """What is there instead, one job to a line."""
    if not rows:
        return "Nothing was."
    lines = [f"  {row.kind}({_written(row)}), {row.state}" for row in rows[:_SHOWN]]
    if len(rows) > _SHOWN:
        lines.append(f"  and {len(rows) - _SHOWN} more")
    return "\n".join(["These were:", *lines])


def called(definition: Definition, wanted: Mapping[str, Any]) -> str:
    return f"{definition.kind}({', '.join(f'{name}={value!r}' for name, value in wanted.items())})"


def _written(row: JobRow) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in codec.decode(row.payload).items())
