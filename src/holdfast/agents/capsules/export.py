"""Export: a capsule as a file. It is there whole, or not at all."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from holdfast.agents.capsules.capsules import Contents, as_ended, fill
from holdfast.agents.capsules.seal import sealed
from holdfast.clock import Ports
from holdfast.errors import UsageError
from holdfast.kernel import migrate
from holdfast.kernel.bounds import unbound
from holdfast.kernel.drivers import connect
from holdfast.redaction import Nothing, Redactor
from holdfast.settings import Settings


class Exported(NamedTuple):
    """A capsule that was written: where, of which run, with how much in it, and how many secrets were taken out."""

    path: Path
    run: str
    runs: int
    messages: int
    redactions: int


async def export(
    contents: Contents, path: Path, settings: Settings, ports: Ports, *, redact: Sequence[str] | None
) -> Exported:
    """Write a capsule. `redact`: what else is a secret; None for a copy that nobody else sees."""
    if await asyncio.to_thread(path.exists):
        raise UsageError(f"{path} already exists; choose another file, or remove it first.")
    redactor = Nothing() if redact is None else Redactor(redact)
    closed = sealed(as_ended(contents, ports.clock.wall_us()), redactor)
    try:
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=path.parent, prefix=".capsule-"))
    except OSError as problem:
        raise UsageError(f"{path} cannot be written: {problem.strerror}.") from problem
    try:
        with unbound():  # the file is new: who may only read the store may fill it
            await _write(folder / "run.db", closed, settings, ports)
        await asyncio.to_thread(os.replace, folder / "run.db", path)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder)
    return Exported(path, closed.runs[0].root, len(closed.runs), len(closed.messages), redactor.count)


async def _write(path: Path, contents: Contents, settings: Settings, ports: Ports) -> None:
    url = f"sqlite:///{path}"
    database = connect(url, replace(settings, url=url, direct_url="", pooler=False), ports)
    await database.connect()
    try:
        await migrate.migrate(database, settings.schema)
    finally:
        await database.close()
    database = connect(url, replace(settings, url=url, direct_url="", pooler=False), ports)
    await database.open()
    try:
        await database.transact(fill, contents)
    finally:
        await database.close()
