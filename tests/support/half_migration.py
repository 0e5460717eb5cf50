"""The next release as it migrates a database, stops after so many statements of the last step, and waits to be killed.

`python -m tests.support.half_migration URL VERSION STATEMENTS`; it says `half-way` when it stands there.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.clock import Ports
from holdfast.kernel import migrate
from holdfast.kernel.database import Guard
from holdfast.kernel.drivers import connect
from holdfast.settings import Settings
from tests.support import next_release


class Halting(list[str]):
    """Statements after so many of which nothing more happens."""

    def __init__(self, statements: Sequence[str], after: int) -> None:
        super().__init__(statements)
        self._after = after

    def __iter__(self) -> Iterator[str]:
        for number, statement in enumerate([*super().__iter__()]):
            if number == self._after:
                self._halt()
            yield statement
        if self._after >= len(self):
            self._halt()

    def _halt(self) -> None:
        print("half-way", flush=True)
        sys.stdin.read()


async def main(url: str, version: int, after: int) -> None:
    database: Any = connect(url, Settings(url=url), Ports())
    await database.connect()
    script = database.script

    async def halted(statements: Sequence[str], *, at: int | None, guard: Guard | None = None) -> bool:
        last = at is not None and abs(version - at) == 1
        return bool(await script(Halting(statements, after) if last else statements, at=at, guard=guard))

    database.script = halted
    await migrate.migrate(database, "holdfast", version)


if __name__ == "__main__":
    migrate.migrations = next_release.migrations  # type: ignore[assignment]  # this process is that release
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
