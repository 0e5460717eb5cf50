"""All scenes, and the cases they make."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from holdfast.kernel.database import Database
from tests.interleaving import (
    scenes_agents,
    scenes_batches,
    scenes_brokers,
    scenes_families,
    scenes_lanes,
    scenes_machines,
    scenes_providers,
    scenes_resp,
    scenes_unique,
    scenes_upkeep,
    scenes_waiting,
)
from tests.interleaving.scene import Scene
from tests.interleaving.stage import Case, Stage, staged

SCENES: dict[str, type[Scene]] = {
    scene.name: scene
    for scene in (
        scenes_lanes.Roomy,
        scenes_lanes.Lapsed,
        scenes_lanes.Narrow,
        scenes_lanes.Paced,
        scenes_lanes.SetBack,
        scenes_lanes.Debounced,
        scenes_lanes.Redeclared,
        scenes_lanes.Alone,
        scenes_unique.Unique,
        scenes_unique.UniqueLater,
        scenes_unique.UniqueLive,
        scenes_unique.Window,
        scenes_unique.Keys,
        scenes_families.Family,
        scenes_families.Childless,
        scenes_families.OnlyChild,
        scenes_families.AskedChild,
        scenes_families.LastChild,
        scenes_families.Generations,
        scenes_families.Ended,
        scenes_waiting.Signals,
        scenes_waiting.Parked,
        scenes_waiting.Zombie,
        scenes_waiting.Lapsing,
        scenes_upkeep.Workers,
        scenes_upkeep.SetBack,
        scenes_upkeep.Duties,
        scenes_upkeep.Schedules,
        scenes_brokers.Brokers,
        scenes_brokers.Takeover,
        scenes_agents.Asking,
        scenes_agents.Beginning,
        scenes_agents.Tools,
        scenes_agents.Approval,
        scenes_agents.Inherited,
        scenes_agents.Zombies,
        scenes_machines.Machines,
        scenes_resp.Gateway,
        scenes_providers.Closed,
        scenes_providers.Reopened,
        scenes_batches.Searching,
    )
}


async def judge_pair(url: str, pair: str, plant: Callable[[Database], None] = lambda database: None) -> None:
    """Try two verbs, the first stopped after each of its statements; `plant` may spoil the database first."""
    name, first, second = pair.split("/")
    async with staged(url, SCENES[name]) as stage:
        assert {first, second} <= set(stage.scene.verbs()), f"there is no pair {pair}"
        places = len(await stage.statements(first))
        plant(stage.database)
        for after in range(1, places + 1):
            await stage.judge(Case(name, first, after, second))


async def cases(stage: Stage, *, every: bool) -> AsyncIterator[Case]:
    """All pairs of a scene's verbs: in both orders and stopped at every place; or in one order and at one place.

    Which ones these are alternates from pair to pair, so that each verb comes first as often as second.
    """
    turn = 0
    names = list(stage.scene.verbs())
    for one, first in enumerate(names):
        places = len(await stage.statements(first))
        for other, second in enumerate(names):
            if every:
                chosen = range(1, places + 1)
            elif (one <= other) is ((one + other) % 2 == 0) and places:
                turn += 1
                chosen = range(turn % places + 1, turn % places + 2)
            else:
                continue
            for after in chosen:
                yield Case(stage.scene.name, first, after, second)
