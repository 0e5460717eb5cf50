"""Gateways, workers and databases of Redis clients are killed while they work: each job is done, and counts once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.clock import SystemClock
from holdfast.errors import Unavailable
from holdfast.values.jobs import JobRecord
from tests.conftest import Place
from tests.support.commands import environment, holdfast, start
from tests.support.postgres import Server
from tests.support.redis import free_port
from tests.support.warm import WarmProcess

PLAN = {
    "plan_id": "work",
    "tasks": [
        {"task_number": 1, "command": "printf", "args": ["%s", "{{input.n}}"]},
        {"task_number": 2, "command": "sleep", "args": ["0.05"]},
    ],
}
WORKERS = 4  # processes, with four jobs at once each


class Fleet:
    """Processes that are killed and started again, under the same names."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self.url, self._stack = url, stack
        self._chance = random.Random(7)
        self.ports = [free_port() for _ in range(2)]
        self.keys = {f"unix-{n}": self._key(f"unix-{n}") for n in range(WORKERS)}
        self.running: dict[str, WarmProcess] = {}

    def _key(self, name: str) -> str:
        return str(holdfast("resp", "keys", "add", name, "--url", self.url).out.strip())

    def start_gateway(self, number: int) -> None:
        bind = f"127.0.0.1:{self.ports[number]}"
        self._start(f"gateway-{number}", "resp", "--bind", bind, "--dead-after", "3s", "--url", self.url)

    def start_worker(self, name: str) -> None:
        port = self.ports[int(name.rpartition("-")[2]) % 2]
        command = ("agw", "--connect", f"127.0.0.1:{port}", "--id", name, "--tools", "printf,sleep", "--max-jobs", "4")
        self._start(name, *command, HOLDFAST_AGW_KEY=self.keys[name])

    def start(self) -> None:
        for number in range(2):
            self.start_gateway(number)
        for name in self.keys:
            self.start_worker(name)

    def strike(self, name: str) -> None:
        """Kill it. Gateways come back, and workers now and then."""
        self.kill(name)
        if name.startswith("gateway"):
            self.start_gateway(int(name[-1]))
        elif self._chance.random() < 0.5:
            self.start_worker(name)

    def _start(self, name: str, *words: str, **env: str) -> None:
        command = ("-m", "holdfast", *words, "--log-level", "error")
        process = start(*command, env=environment(**env), stdout=subprocess.DEVNULL)
        self.running[name] = process
        self._stack.callback(_end, process)

    def kill(self, name: str) -> None:
        self.running[name].send_signal(signal.SIGKILL)
        self.running[name].wait()


def _end(process: WarmProcess) -> None:
    process.kill()
    process.wait()


def submitted(url: str, count: int, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(PLAN))
    for first in range(0, count, 100):
        inputs = tmp_path / f"inputs-{first}.jsonl"
        inputs.write_text("".join(f'{{"n": {n}}}\n' for n in range(first, min(count, first + 100))))
        said = holdfast("action", "submit", str(plan), str(inputs), "--id", f"a{first}", "--url", url)
        assert said.code == 0, said


@pytest.mark.chaos
@pytest.mark.parametrize("count", [60, pytest.param(1_000, marks=pytest.mark.long)])
async def test_agx_19_agx_20_agx_21_killed_gateways_and_workers_lose_no_job(
    place: Place, tmp_path: Path, count: int
) -> None:
    with ExitStack() as stack:
        fleet = Fleet(place.url, stack)
        victims = ["gateway-0", "unix-0", "gateway-1", "unix-1", "unix-2"]
        await done_though_struck(fleet, tmp_path, count, {name: partial(fleet.strike, name) for name in victims})


@pytest.mark.long
@pytest.mark.chaos
async def test_a_killed_database_loses_no_job_of_a_redis_client(tmp_path: Path) -> None:
    with Server() as server, ExitStack() as stack:
        app = Holdfast(server.create_database("killed"))
        await app.migrate()
        fleet = Fleet(app.settings.url, stack)

        def kill_database() -> None:
            server.kill()
            server.start()

        names = ("database", "unix-0", "database again", "gateway-0", "database at last")
        strikes = {name: kill_database if "database" in name else partial(fleet.strike, name) for name in names}
        await done_though_struck(fleet, tmp_path, 300, strikes)


async def done_though_struck(
    fleet: Fleet, tmp_path: Path, count: int, strikes: Mapping[str, Callable[[], None]]
) -> None:
    """Each strike falls when some more jobs are done. In the end all are, and every attempt has its reason."""
    fleet.start()
    submitted(fleet.url, count, tmp_path)
    hf = Holdfast(fleet.url, embedded=False)
    waiting, begun, done = [*strikes.values()], 0, 0
    ended: Sequence[JobRecord] = ()
    async with hf:
        while done < count:
            with contextlib.suppress(Unavailable):
                ended = await hf.jobs.list(state="succeeded", limit=count)
            if len(ended) > done and waiting and len(ended) > count * (len(strikes) - len(waiting)) // 8:
                begun = begun or SystemClock().wall_us()
                waiting.pop(0)()
            done = len(ended)
            await asyncio.sleep(0.02)  # the machine is for those who do the jobs
        attempts = {job.id: await hf.jobs.attempts(job.id) for job in ended}
    assert not waiting
    assert len(attempts) == count
    for job, each in attempts.items():
        outcomes = Counter(attempt.outcome for attempt in each)
        assert outcomes["succeeded"] == 1, (job, each)
        assert set(outcomes) <= {"succeeded", "lost", "released", "retried"}, (job, each)
        before = [attempt for attempt in each if attempt.ended_at.timestamp() * 1e6 < begun]
        assert {attempt.outcome for attempt in before} <= {"succeeded"}, ("lost before anything was struck", job, each)
