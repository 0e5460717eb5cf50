"""As `doomed`, for a worker of agents: `… doomed_agents URL WITNESS OPERATION WHEN NUMBER [NAME=VALUE …]`."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

from holdfast.app import core_of
from tests.chaos.agents import hf
from tests.chaos.doomed import arm
from tests.support.apps import settings_with


async def main(url: str, failpoint: tuple[str, str, int], settings: dict[str, Any]) -> None:
    hf.settings = settings_with(
        url=url, concurrency=3, prefetch=0, rescue_backoff="50ms", max_rescues=50, max_rescue_attempts=50, **settings
    )
    database = core_of(hf).runtime().database
    armed: Any = arm(database.transact, *failpoint)
    database.transact = armed  # type: ignore[method-assign]
    await hf.work()


if __name__ == "__main__":
    logging.basicConfig(level="INFO")
    url, witness, operation, when, number, *more = sys.argv[1:]
    given = dict(each.split("=", 1) for each in more if "=" in each)
    asyncio.run(main(url, (operation, when, int(number)), {"script_witness": witness, **given}))
