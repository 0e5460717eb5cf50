"""Gateways and workers of Redis clients are killed while they work: every job is done, and counts once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.values.jobs import JobRecord
from tests.conftest import Place
from tests.support.commands import environment, holdfast
from tests.support.redis import free_port

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
        self._url, self._stack = url, stack
        self.ports = [free_port() for _ in range(2)]
        self.keys = {f"unix-{n}": self._key(f"unix-{n}") for n in range(WORKERS)}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def _key(self, name: str) -> str:
        return str(holdfast("resp", "keys", "add", name, "--url", self._url).out.strip())

    def start_gateway(self, number: int) -> None:
        bind = f"127.0.0.1:{self.ports[number]}"
        self._start(f"gateway-{number}", "resp", "--bind", bind, "--dead-after", "3s", "--url", self._url)

    def start_worker(self, name: str) -> None:
        port = self.ports[int(name.rpartition("-")[2]) % 2]
        command = ("agw", "--connect", f"127.0.0.1:{port}", "--id", name, "--tools", "printf,sleep", "--max-jobs", "4")
        self._start(name, *command, HOLDFAST_AGW_KEY=self.keys[name])

    def _start(self, name: str, *words: str, **env: str) -> None:
        command = [sys.executable, "-m", "holdfast", *words, "--log-level", "error"]
        process = subprocess.Popen(command, env={**environment(), **env}, stdout=subprocess.DEVNULL)
        self.running[name] = process
        self._stack.callback(_end, process)

    def kill(self, name: str) -> None:
        self.running[name].send_signal(signal.SIGKILL)
        self.running[name].wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def submitted(url: str, count: int, tmp_path: Any) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(PLAN))
    for start in range(0, count, 100):
        inputs = tmp_path / f"inputs-{start}.jsonl"
        inputs.write_text("".join(f'{{"n": {n}}}\n' for n in range(start, min(count, start + 100))))
        said = holdfast("action", "submit", str(plan), str(inputs), "--id", f"a{start}", "--url", url)
        assert said.code == 0, said


@pytest.mark.chaos
@pytest.mark.parametrize("count", [60, pytest.param(1_000, marks=pytest.mark.long)])
async def test_agx_19_agx_20_agx_21_killed_gateways_and_workers_lose_no_job(
    place: Place, tmp_path: Any, count: int
) -> None:
    chance = random.Random(7)
    with ExitStack() as stack:
        fleet = Fleet(place.url, stack)
        for number in range(2):
            fleet.start_gateway(number)
        for name in fleet.keys:
            fleet.start_worker(name)
        submitted(place.url, count, tmp_path)
        hf = Holdfast(place.url, embedded=False)
        victims = ["gateway-0", "unix-0", "gateway-1", "unix-1", "unix-2"]
        ended: Sequence[JobRecord] = ()
        done = 0
        async with hf:
            while done < count:
                ended = await hf.jobs.list(state="succeeded", limit=count)
                if len(ended) > done and victims and len(ended) > count * (5 - len(victims)) // 8:
                    victim = victims.pop(0)
                    fleet.kill(victim)
                    if victim.startswith("gateway"):
                        fleet.start_gateway(int(victim[-1]))
                    elif chance.random() < 0.5:
                        fleet.start_worker(victim)
                done = len(ended)
            outcomes = [Counter(each.outcome for each in await hf.jobs.attempts(job.id)) for job in ended]
        assert not victims
    assert {each["succeeded"] for each in outcomes} == {1}
    assert {name for each in outcomes for name in each} <= {"succeeded", "lost", "released", "retried"}
