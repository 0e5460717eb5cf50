"""One program, from its seed to its verdict."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from random import Random
from typing import Any, NamedTuple

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.clock import Ports
from holdfast.models.simulator import simulator
from holdfast.settings import Settings
from holdfast.testing.clock import LabClock
from holdfast.testing.databases import Databases
from tests.agents.fuzz.cast import Answers, Seen, Troupe
from tests.agents.fuzz.client import Client
from tests.agents.fuzz.judge import Judge
from tests.agents.fuzz.program import APPS, POOR, Program, draw
from tests.agents.fuzz.stage import Hand, Time, staged

SETTINGS: dict[str, Any] = {
    "profile": "fast",
    "lease_ttl": "2m",
    "worker_ttl": "2m",
    "heartbeat": "30s",
    "poll_interval": "20ms",
    "sweep_interval": "20ms",
    "route_refresh": "20ms",  # new routes are told by their time, and here time stands still
    "batch_wait": "1s",
    "batch_grace": "5s",
    "batch_poll_interval": "5s",
    "stream_interval": "10ms",
    "provider_patience": "10m",
}


class Story(NamedTuple):
    """What one program came to."""

    program: Program
    outcomes: Counter[str]
    refusals: list[str]
    deaths: list[str]
    seen: Counter[str]  # what there is to see


class Failed(AssertionError):
    """A program that broke a promise, with how to play it again."""


async def play(seed: int, databases: Databases, *, size: int = 14, kind: str = "") -> Story:
    """Play the program of this seed and judge it; `Failed` when a promise was broken."""
    program = draw(seed, size)
    try:
        return await _play(program, databases)
    except Exception as problem:
        replay = f"HOLDFAST_FUZZ_SEED={seed} python -m pytest tests/agents/test_fuzz.py -k 'short and {kind}'"
        raise Failed(f"seed {seed} on {kind}: {problem}\nto play it again: {replay}\n{program}") from problem


async def _play(program: Program, databases: Databases) -> Story:
    clock, seen = LabClock(), Seen()
    time = Time(clock)
    async with simulator(
        seed=program.seed,
        rules=program.rules,
        script=Answers(program.seed),
        ports=Ports(clock),
        batch_seconds=3,
    ) as provider:
        settings = Settings(provider_url=provider.url).override(SETTINGS)
        database = await databases.make(settings)
        with ExitStack() as stack:
            stack.enter_context(clock.followed_by(database))
            stack.enter_context(clock.followed_by(time))
            await database.follow(clock.wall_us())
            ports = {name: Ports(clock, Random(f"{name} {program.seed}")) for name in APPS}
            apps = {name: Holdfast(database.url, settings=settings, embedded=False, ports=ports[name]) for name in APPS}
            troupes = {name: Troupe(name, app, seen, program.seed) for name, app in apps.items()}
            try:
                for each in troupes.values():
                    await core_of(each.app).runtime().open()
                app = troupes[APPS[0]].app
                await app.budgets.set(POOR, tenant="poor")
                hands = [
                    Hand(each.app, ports[name], time, iter(program.dooms[name]), seen.begun)
                    for name, each in troupes.items()
                ]
                async with staged(database.url, time, hands) as stage:
                    client = Client(program, stage, troupes)
                    await client.play()
                    await client.finish()
                    judge = Judge(app, provider, client, stage, seen)
                    await judge.judge()
                    outcomes = Counter(f"{row.state}/{row.outcome or row.error_type}" for row in judge.rows.values())
                    deaths = [death for hand in hands for death in hand.deaths]
                    sights = await judge.sights() + _killed(deaths)
                    await judge.judge_what_is_left()
                    return Story(program, outcomes, client.refusals, deaths, sights)
            finally:
                for each in troupes.values():
                    await each.app.close()
                await database.remove()


def _killed(deaths: list[str]) -> Counter[str]:
    return Counter({"a worker killed": len(deaths)}) if deaths else Counter()
