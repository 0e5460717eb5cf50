"""As `doomed`, for a worker of a machine: `… doomed_machine URL FOLDER OPERATION WHEN NUMBER`."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.machines.api import Machine
from tests.chaos.doomed import arm
from tests.chaos.jobs import note
from tests.support.apps import settings_with


class Witnessed:
    """Notes what it does outside of the store."""

    def __init__(self, witness: Path) -> None:
        self._witness = witness

    def on_action(self, action: str, context: dict[str, Any]) -> dict[str, Any]:
        note(str(self._witness), f"{action} {context.get('item', '')}")
        if action == "breaks":
            raise ValueError("as it should")
        return {}


def declare(hf: Holdfast, folder: Path) -> Machine[dict[str, Any]]:
    return hf.machine(folder / "m.yml", hooks=Witnessed(folder / "witness"))


async def main(url: str, folder: Path, failpoint: tuple[str, str, int]) -> None:
    hf = Holdfast(settings=settings_with(url=url, rescue_backoff="50ms", max_rescues=50), embedded=False)
    declare(hf, folder)
    database = core_of(hf).runtime().database
    armed: Any = arm(database.transact, *failpoint)
    database.transact = armed  # type: ignore[method-assign]
    await hf.work()


if __name__ == "__main__":
    logging.basicConfig(level="INFO")
    given = sys.argv[1:]
    asyncio.run(main(given[0], Path(given[1]), (given[2], given[3], int(given[4]))))
