"""Many runs in batch mode while workers are killed: `python -m tests.chaos.overnight --runs 10000`.

The provider is the simulator, in this process; the workers are processes of their own, one of which is killed with
SIGKILL every few seconds and replaced. In the end every run has its answer, and the bill of the witness is ours.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

from holdfast.models.prices import cost
from holdfast.models.simulator import SimulatedProvider, simulator
from holdfast.settings import Settings
from tests.chaos import agents
from tests.support.postgres import running_cluster

_SETTINGS = {
    "batch_wait": "2s",
    "batch_grace": "3s",
    "batch_poll_interval": "2s",
    "rescue_backoff": "100ms",
    "presence_grace": "200ms",
    "max_concurrent_runs": "50",
}


class Report(NamedTuple):
    runs: int
    answered: int
    seconds: float
    kills: int
    batches: int
    adopted: int
    recorded: int  # turns
    unknown: int  # attempts of unknown outcome
    bought: int  # by the witness
    ours: Decimal
    theirs: Decimal

    def __str__(self) -> str:
        return (
            f"{self.answered:,} of {self.runs:,} runs answered in {self.seconds:.0f} s, {self.kills} workers killed, "
            f"{self.batches} batches, {self.adopted} of them adopted\n"
            f"recorded {self.recorded:,} turns, {self.unknown} attempts of unknown outcome; the witness saw "
            f"{self.bought:,} bought\nour bill {self.ours} USD, the witness's {self.theirs} USD"
        )


class Crew:
    """Worker processes, of which some die."""

    def __init__(self, url: str, provider: str, size: int, folder: Path) -> None:
        self._url, self._provider, self._folder = url, provider, folder
        self._size = size
        self._members: list[asyncio.subprocess.Process] = []
        self.kills = 0

    async def fill(self) -> None:
        self._members = [member for member in self._members if member.returncode is None]
        while len(self._members) < self._size:
            self._members.append(await self._start())

    async def _start(self) -> asyncio.subprocess.Process:
        chosen = {**_SETTINGS, "provider_url": self._provider}
        given = [part for name, value in chosen.items() for part in ("--set", f"{name}={value}")]
        with (self._folder / "workers.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "holdfast", "worker", agents.APP, "--url", self._url, *given),
                env={**os.environ, "ANTHROPIC_API_KEY": "sk-simulated"},
                stdout=log,
                stderr=log,
            )

    async def kill_one(self, chance: random.Random) -> None:
        victim = chance.choice(self._members)
        if victim.returncode is None:
            os.kill(victim.pid, signal.SIGKILL)
            await victim.wait()
            self.kills += 1

    async def stop(self) -> None:
        for member in self._members:
            if member.returncode is None:
                member.terminate()
        for member in self._members:
            await member.wait()


@asynccontextmanager
async def crewed(url: str, provider: SimulatedProvider, size: int, folder: Path) -> AsyncIterator[Crew]:
    crew = Crew(url, provider.url, size, folder)
    await crew.fill()
    try:
        yield crew
    finally:
        await crew.stop()


async def overnight(
    url: str,
    *,
    runs: int,
    folder: Path,
    workers: int = 2,
    pause: float = 3.0,
    batch_seconds: float = 3.0,
    seed: int = 1,
    most_kills: int | None = None,
    limit: float = 3600.0,
    tell: Callable[[str], object] = lambda _: None,
) -> Report:
    """Enqueue so many runs, kill a worker every `pause` seconds until all have ended, and add up."""
    hf, began = agents.hf, time.monotonic()
    hf.settings = Settings(url=url)
    try:
        await hf.migrate()
        async with (
            simulator(batch_seconds=batch_seconds, witness=folder / "provider.jsonl") as provider,
            crewed(url, provider, workers, folder) as crew,
        ):
            killing = asyncio.create_task(_kill(crew, random.Random(seed), pause, most_kills))
            variables = {"witness": str(folder / "tools.txt")}
            for first in range(0, runs, 500):
                prompts = [f"Word {number}" for number in range(first, min(runs, first + 500))]
                await agents.caller.enqueue_many(prompts, answer_within="12h", variables=variables)
            while await _is_open() and time.monotonic() - began < limit:
                for _ in range(10):
                    if not await _is_open():
                        break
                    await asyncio.sleep(1)
                if killing.done():
                    await killing
                tell(f"{time.monotonic() - began:4.0f} s: {await _recorded():,} turns recorded, {crew.kills} kills")
            killing.cancel()
            return await _report(runs, began, crew.kills, provider)
    finally:
        await hf.close()


async def _kill(crew: Crew, chance: random.Random, pause: float, most: int | None) -> None:
    """Kill one worker after the other, and put another in its place."""
    while most is None or crew.kills < most:
        await asyncio.sleep(pause * (0.5 + chance.random()))
        await crew.kill_one(chance)
        await crew.fill()
    await asyncio.get_running_loop().create_future()


async def _recorded() -> int:
    return sum(row.turns for row in await agents.hf.budgets.used())


async def _is_open() -> bool:
    """Whether any run has not ended."""
    for state in ("pending", "batch_submitting", "batch_pending", "batch_processing", "pending_tools", "streaming"):
        if await agents.hf.runs.list(state=state, limit=1):
            return True
    return False


async def _report(runs: int, began: float, kills: int, provider: SimulatedProvider) -> Report:
    hf = agents.hf
    states: Counter[str] = Counter()
    after = None
    while True:
        page = await hf.runs.list(limit=1_000, after=after)
        states.update(f"{row.state}/{row.outcome}" for row in page)
        after = page.next
        if after is None:
            break
    billed = [line for line in provider.lines if line["event"] == "billed"]
    made = await hf.batches.list(limit=10_000)
    (used,) = await hf.budgets.used()
    turns = await _turns()
    return Report(
        runs=runs,
        answered=states["completed/answered"],
        seconds=time.monotonic() - began,
        kills=kills,
        batches=len(provider.batches),
        adopted=sum(1 for row in made if row.unknown and row.provider_id is not None),
        recorded=used.turns,
        unknown=turns,
        bought=len(billed),
        ours=used.cost,
        theirs=sum((cost(line["model"], line["usage"], "batch") for line in billed), Decimal(0)),
    )


async def _turns() -> int:
    """Attempts of turns whose outcome is not known."""
    unknown = 0
    for state in ("completed", "failed", "cancelled"):
        after = None
        while True:
            page = await agents.hf.runs.list(state=state, limit=1_000, after=after)
            for row in page:
                unknown += sum(turn.unknown for turn in await agents.hf.runs[row.id].turns()) if row.turns else 0
            after = page.next
            if after is None:
                break
    return unknown


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.overnight", description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pause", type=float, default=3.0, help="seconds between kills, about")
    parser.add_argument("--on", choices=["sqlite", "postgres"], default="sqlite", help="a fresh database of this kind")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    os.environ.setdefault("ANTHROPIC_API_KEY", "sk-simulated")
    print(f"{given.runs:,} runs in batch mode on {given.on}, seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder, _database(given.on, Path(folder)) as url:
        night = overnight(
            url,
            runs=given.runs,
            folder=Path(folder),
            workers=given.workers,
            pause=given.pause,
            seed=given.seed,
            tell=lambda line: print(line, file=sys.stderr, flush=True),
        )
        report = asyncio.run(night)
    print(report)
    whole = report.answered == report.runs and report.bought == report.recorded and report.ours == report.theirs
    explained = report.recorded <= report.bought <= report.recorded + report.unknown
    print("every run has its answer, and the bills are equal" if whole else "the bills differ", end="")
    print("" if whole or not explained else ", by attempts that are explained")
    return 0 if whole or (report.answered == report.runs and explained) else 1


@contextmanager
def _database(kind: str, folder: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{folder}/overnight.db"
        return
    with running_cluster() as cluster:
        yield cluster.create_database("overnight")
        cluster.drop_database("overnight")


if __name__ == "__main__":
    sys.exit(main())
