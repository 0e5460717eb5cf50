"""`make interleave`: one operation stopped after each of its statements while another runs, over all pairs of verbs.

Before that, a session sleeps on each row that can be held, and nobody may wait for it who has nothing to do with it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from holdfast.clock import Ports
from holdfast.kernel.drivers.postgres import PostgresDatabase
from holdfast.kernel.migrate import migrate
from holdfast.settings import Settings
from tests.interleaving import liveness
from tests.interleaving.liveness import Everything
from tests.interleaving.scenes import SCENES, cases
from tests.interleaving.stage import Case, Wrong, staged
from tests.support.postgres import Cluster, running_cluster


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interleaving", description=__doc__)
    parser.add_argument("--all", action="store_true", help="stop after each statement, not after one of each pair's")
    parser.add_argument("--scene", choices=sorted(SCENES), action="append", help="only this one; may be repeated")
    parser.add_argument("--replay", metavar="CASE", help="one case, as a failure names it: scene/first@n/second")
    asked = parser.parse_args()
    with running_cluster() as cluster:
        if asked.replay:
            return asyncio.run(replay(cluster, Case.parse(asked.replay)))
        names = asked.scene or list(SCENES)
        waits = 0 if asked.scene else asyncio.run(sleep_on_rows(cluster, every=asked.all))
        wrong = sum(asyncio.run(play(cluster, name, every=asked.all)) for name in names) + waits
    print(f"{wrong} cases are wrong" if wrong else "nothing is wrong")
    return 1 if wrong else 0


async def replay(cluster: Cluster, case: Case) -> int:
    url = await database(cluster, case.scene)
    async with staged(url, SCENES[case.scene]) as stage:
        print("statements of the first:", ", ".join(await stage.statements(case.first)))
        try:
            await stage.judge(case)
        except Wrong as wrong:
            print(wrong)
            return 1
    print(f"{case}: nothing is wrong")
    return 0


async def play(cluster: Cluster, name: str, *, every: bool) -> int:
    begun, done, wrong = time.monotonic(), 0, 0
    async with staged(await database(cluster, name), SCENES[name]) as stage:
        async for case in cases(stage, every=every):
            done += 1
            try:
                await stage.judge(case)
            except Wrong as problem:
                wrong += 1
                print(problem)
            if sys.stderr.isatty():
                print(f"\r{name}: {done} cases ", end="", file=sys.stderr)
    print(f"{name}: {done} cases in {time.monotonic() - begun:.1f} s, {wrong} wrong", flush=True)
    return wrong


async def sleep_on_rows(cluster: Cluster, *, every: bool) -> int:
    """The table of `liveness`: who waits for a row that somebody else holds."""
    begun, waits = time.monotonic(), 0
    async with staged(await database(cluster, Everything.name), Everything) as stage:
        async for problem in liveness.play(stage, every=every):
            waits += 1
            print(problem)
    print(
        f"{len(liveness.HOLDS)} rows were held in {time.monotonic() - begun:.1f} s, {waits} operations waited",
        flush=True,
    )
    return waits


async def database(cluster: Cluster, scene: str) -> str:
    name = "interleaving_" + scene.replace("-", "_")
    await asyncio.to_thread(cluster.drop_database, name)
    url = await asyncio.to_thread(cluster.create_database, name)
    settings = Settings()
    await migrate(PostgresDatabase(url, settings, Ports()), settings.schema)
    return url


if __name__ == "__main__":
    sys.exit(main())
