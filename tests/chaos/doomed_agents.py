"""As `doomed`, for a worker of agents: `python -m tests.chaos.doomed_agents URL WITNESS OPERATION WHEN NUMBER`."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

from tests.chaos.agents import hf
from tests.chaos.doomed import arm
from tests.support.apps import settings_with


async def main(url: str, witness: str, name: str, when: str, number: int) -> None:
    hf.url = url
    hf.settings = settings_with(
        concurrency=3,
        prefetch=0,
        rescue_backoff="50ms",
        max_rescues=50,
        max_rescue_attempts=50,
        script_witness=witness,
    )
    database = hf.runtime().database
    armed: Any = arm(database.transact, name, when, number)
    database.transact = armed  # type: ignore[method-assign]
    await hf.work()


if __name__ == "__main__":
    logging.basicConfig(level="INFO")
    url, witness, operation, when, number = sys.argv[1:6]
    asyncio.run(main(url, witness, operation, when, int(number)))
