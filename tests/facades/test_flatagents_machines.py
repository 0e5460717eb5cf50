"""FA-16 to FA-26: the document's three machines, byte for byte, and workers that are processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast import Holdfast
from holdfast.errors import UsageError
from holdfast.facades.flatagents import (
    BackendConfig,
    Backends,
    DistributedWorkerHooks,
    MachineHooks,
    SDKRuntimeWrapper,
    WorkerRegistration,
    create_backends,
    install,
    uninstall,
)
from holdfast.facades.flatagents.environment import BACKENDS
from holdfast.facades.flatagents.registration import HoldfastRegistrationBackend
from holdfast.facades.flatagents.work import HoldfastWorkBackend, HoldfastWorkPool
from tests.facades.echo_hooks import ECHO, EchoHooks, RecordingHooks
from tests.facades.test_leases import SHORT, patiently
from tests.support.commands import environment, python

SEED = Path(__file__).parents[1] / "machines" / "seed"


class Scene:
    """A database with a pool, and the document's machines on it."""

    def __init__(self, url: str, folder: Path) -> None:
        kind = "postgres" if url.startswith("postgres") else "sqlite"
        self.config = BackendConfig(kind, kind, registration_path=url, work_path=url)
        self.app = Holdfast(url)
        self.folder = folder
        self.echo = folder / "echo_processor.yml"
        self.echo.write_text(ECHO)
        registry, work = create_backends(self.config)
        assert isinstance(registry, HoldfastRegistrationBackend)
        assert isinstance(work, HoldfastWorkBackend)
        self.registry, self.work = registry, work

    @property
    def pool(self) -> HoldfastWorkPool:
        return self.work.pool("papers")

    def run(self, machine: str | Path, hooks: Any, **input: Any) -> Any:
        path = SEED / f"{machine}.yml" if isinstance(machine, str) else machine
        made = self.app.machine(path, hooks=hooks, machines={"actual_job_processor": self.echo})
        return made.run_sync({"pool_id": "papers", **input})

    def hooks(self) -> RecordingHooks:
        return RecordingHooks(self.config)

    def close(self) -> None:
        self.app.sync.close()
        self.registry.close()


@pytest.fixture
def scene(url: str, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(url, tmp_path)
    yield made
    made.close()


def printed(scene: Scene) -> MachineHooks:
    """The class that the document prints, unedited."""
    names: dict[str, Any] = {"MachineHooks": MachineHooks}
    exec((SEED / "hooks.txt").read_text(), names)
    hooks: MachineHooks = names["DistributedWorkerHooks"](scene.config)
    return hooks


def test_the_machines_are_those_of_the_document() -> None:
    for name in ("parallelization_checker", "job_worker", "stale_worker_reaper"):
        text = (SEED / f"{name}.yml").read_text()
        assert text.startswith('spec: flatmachine\nspec_version: "0.8.3"\n')
        assert f"name: {name}" in text


def test_fa_16_heartbeats_continue_during_one_long_state(scene: Scene) -> None:
    text = (SEED / "job_worker.yml").read_text().replace("heartbeat_interval: 30", "heartbeat_interval: 0.05")
    worker = scene.folder / "job_worker.yml"
    worker.write_text(text)
    gate = scene.folder / "go"
    scene.pool.push({"until": str(gate)})
    made = scene.app.machine(worker, hooks=EchoHooks(scene.config), machines={"actual_job_processor": scene.echo})
    execution = made.enqueue_sync({"pool_id": "papers"})
    scene.app.sync(scene.app.ensure_worker())
    beats: set[str] = set()

    def heard() -> bool:
        beats.update(each.last_heartbeat for each in scene.registry.list(status="active"))
        return len(beats) >= 10

    patiently(heard)
    assert scene.pool.claimed() == 1
    gate.touch()
    result = scene.app.sync(execution.result())
    assert result["result"] == {"echoed": {"until": str(gate)}}


class Counting:
    """A registry of the program's own, which counts what it is told."""

    def __init__(self, registry: HoldfastRegistrationBackend) -> None:
        self._registry = registry
        self.beats: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)

    def heartbeat(self, worker_id: str, metadata: dict[str, Any] | None = None) -> None:
        self._registry.heartbeat(worker_id, metadata)
        self.beats[worker_id] += 1


def test_fa_16_heartbeats_come_as_often_as_the_machine_says(scene: Scene) -> None:
    """As often as those of a witness, who sends one after each interval by hand: a slow machine slows down both."""
    interval = 0.1
    worker, gate = scene.folder / "job_worker.yml", scene.folder / "go"
    worker.write_text(
        (SEED / "job_worker.yml").read_text().replace("heartbeat_interval: 30", f"heartbeat_interval: {interval}")
    )
    scene.pool.push({"until": str(gate)})
    registry = Counting(scene.registry)
    backends: Any = Backends(cast(Any, registry), scene.work)  # it has the rest by __getattr__
    hooks = EchoHooks(backends)
    made = scene.app.machine(worker, hooks=hooks, machines={"actual_job_processor": scene.echo})
    execution = made.enqueue_sync({"pool_id": "papers"})
    scene.app.sync(scene.app.ensure_worker())
    patiently(lambda: scene.pool.claimed() == 1)
    registry.register(WorkerRegistration("witness"))
    before = registry.beats[execution.id]
    while registry.beats["witness"] < 30:
        threading.Event().wait(interval)
        registry.heartbeat("witness")
    beats = registry.beats[execution.id] - before
    gate.touch()
    scene.app.sync(execution.result())
    assert beats >= 15, "at least one in two intervals, after which it would be stale"


def test_fa_17_a_worker_that_ends_is_terminated_and_never_lost(scene: Scene) -> None:
    scene.pool.push({"n": 1, "fail": True}, {"max_retries": 1})
    bad = scene.run("job_worker", EchoHooks(scene.config))
    assert bad["result"] is None
    (worker,) = scene.registry.list()
    assert (worker.status, worker.pool_id, worker.pid) == ("terminated", "papers", os.getpid())
    (item,) = scene.pool.items("poisoned")
    assert item.error == "job 1 is bad"


@pytest.mark.long
def test_fa_18_the_item_of_a_killed_worker_goes_back_to_its_pool(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item_id = scene.pool.push({"until": str(tmp_path / "never")})
    hooks = EchoHooks(scene.config)
    assert scene.run("parallelization_checker", hooks, max_workers=1) == {"spawned": 1}
    patiently(lambda: scene.pool.claimed() == 1)
    (worker,) = scene.registry.list(status="active")
    assert worker.pid is not None
    assert worker.current_task_id == item_id
    os.kill(worker.pid, signal.SIGKILL)
    patiently(lambda: bool(scene.registry.list(stale_threshold_seconds=SHORT)))
    assert scene.run("stale_worker_reaper", hooks, stale_threshold_seconds=SHORT) == {"reaped_count": 1}
    lost = scene.registry.get(worker.worker_id)
    assert lost is not None
    assert lost.status == "lost"
    assert (scene.pool.get(item_id).status, scene.pool.get(item_id).attempts) == ("pending", 1)


def test_fa_19_no_more_workers_start_than_the_cap(scene: Scene) -> None:
    for n in range(10):
        scene.pool.push({"n": n})
    hooks = scene.hooks()
    assert scene.run("parallelization_checker", hooks, max_workers=3) == {"spawned": 10}, "as it is printed"
    assert len(set(hooks.launched)) == 3
    scene.run("parallelization_checker", hooks, max_workers=3)
    assert len(hooks.launched) == 3, "those that were launched count, before they are there"


def test_fa_20_busy_workers_leave_room_for_those_that_are_needed(scene: Scene) -> None:
    for n in range(6):
        scene.pool.push({"n": n})
    for n in range(3):
        scene.registry.register(WorkerRegistration(f"w{n}", pool_id="papers"))
        assert scene.pool.claim(f"w{n}")
    hooks = scene.hooks()
    scene.run("parallelization_checker", hooks, max_workers=10)
    assert len(hooks.launched) == 3
    assert hooks.calculate_spawn({"pool_id": "papers", "max_workers": 10}) == {"workers_to_spawn": 3}


def test_fa_21_nothing_starts_for_an_empty_pool_or_above_the_cap(scene: Scene) -> None:
    hooks = scene.hooks()
    scene.run("parallelization_checker", hooks)
    assert hooks.launched == []
    for n in range(4):
        scene.registry.register(WorkerRegistration(f"w{n}", pool_id="papers"))
        scene.pool.push({"n": n})
    scene.run("parallelization_checker", hooks, max_workers=2)
    assert hooks.launched == []
    assert hooks.calculate_spawn({"pool_id": "papers", "max_workers": 2}) == {"workers_to_spawn": 0}


def test_fa_22_two_checkers_together_launch_no_more_than_one(scene: Scene) -> None:
    for n in range(10):
        scene.pool.push({"n": n})
    hooks = scene.hooks()
    checker = scene.app.machine(
        SEED / "parallelization_checker.yml", hooks=hooks, machines={"actual_job_processor": scene.echo}
    )

    async def both() -> None:
        given = {"pool_id": "papers", "max_workers": 3}
        await asyncio.gather(*(checker.run(given) for _ in range(4)))

    scene.app.sync(both())
    assert len(set(hooks.launched)) == 3


def test_fa_23_the_printed_hooks_run_the_checker_and_the_worker(scene: Scene) -> None:
    item_id = scene.pool.push({"paper": 7})
    hooks = printed(scene)
    started: list[str] = []
    hooks.on_launched = lambda ids, queue, url: started.extend(ids)  # type: ignore[method-assign,assignment]
    assert scene.run("parallelization_checker", hooks, max_workers=3) == {"spawned": 3}
    assert len(started) == 1, "there is work for one"
    scene.echo.write_text(ECHO.replace("      action: echo\n", "").replace("{{ context.echoed }}", "{{ context.job }}"))
    done = scene.run("job_worker", hooks)
    assert done == {"job_id": item_id, "result": {"echoed": {"paper": 7}}}
    item = scene.pool.get(item_id)
    assert (item.status, item.result) == ("done", {"echoed": {"paper": 7}})


def test_fa_23_the_reaper_marks_releases_and_counts(scene: Scene) -> None:
    scene.registry.register(WorkerRegistration("silent", pool_id="papers"))
    scene.pool.push(1)
    assert scene.pool.claim("silent")
    patiently(lambda: bool(scene.registry.list(stale_threshold_seconds=SHORT)))
    hooks = DistributedWorkerHooks(scene.config)
    assert scene.run("stale_worker_reaper", hooks, stale_threshold_seconds=SHORT) == {"reaped_count": 1}
    assert scene.run("stale_worker_reaper", hooks, stale_threshold_seconds=SHORT) == {"reaped_count": 0}
    assert scene.pool.size() == 1


def test_fa_24_a_worker_handles_one_item_and_exits(scene: Scene) -> None:
    first, _ = scene.pool.push({"n": 1}), scene.pool.push({"n": 2})
    hooks = EchoHooks(scene.config)
    assert scene.run("job_worker", hooks)["job_id"] == first
    assert scene.pool.size() == 1
    scene.run("job_worker", hooks)
    assert scene.run("job_worker", hooks) == {"status": "no_work_available"}
    assert scene.registry.list(status="active") == []


@pytest.mark.long
def test_fa_25_the_documents_plan_with_real_processes(scene: Scene, tmp_path: Path) -> None:
    log = tmp_path / "log"
    for n in range(10):
        scene.pool.push({"n": n, "log": str(log)})
    hooks = EchoHooks(scene.config)

    def finished() -> bool:
        if not scene.registry.list(status="active"):
            scene.run("parallelization_checker", hooks, max_workers=3)
        return len(scene.pool.items("done")) == 10

    patiently(finished)
    assert sorted(map(int, log.read_text().split())) == list(range(10)), "each was processed once"
    patiently(lambda: not scene.registry.list(status="active"))


def test_fa_26_a_job_that_always_fails_is_poisoned_with_its_error(scene: Scene) -> None:
    item_id = scene.pool.push({"n": 9, "fail": True})
    for _ in range(4):
        scene.run("job_worker", EchoHooks(scene.config))
    (item,) = scene.pool.items("poisoned")
    assert (item.id, item.attempts, item.error) == (item_id, 3, "job 9 is bad")


def test_programs_find_the_names_of_the_document(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    install()
    try:
        import flatagents.distributed  # type: ignore[import-not-found]
        from flatagents import WorkBackend

        assert isinstance(scene.work, WorkBackend)
        assert flatagents.distributed.DistributedWorkerHooks is DistributedWorkerHooks
        install()
    finally:
        uninstall()
    monkeypatch.setitem(__import__("sys").modules, "flatagents", os)
    with pytest.raises(UsageError, match="here already"):
        install()


LAUNCHES = """
import json, subprocess, sys
from holdfast.facades.flatagents import install

install()
words = ["--machine", "job_worker", "--input", json.dumps({"pool_id": "papers"}), "--execution-id", "one"]
sys.exit(subprocess.Popen([sys.executable, "-m", "flatagents.run", *words]).wait())
"""


def test_a_program_launches_machines_as_the_document_does(scene: Scene) -> None:
    """`launch_machine` of the document, byte for byte, in a process that has called `install`."""
    (scene.folder / "config").mkdir()
    (scene.folder / "config" / "job_worker.yml").write_text((SEED / "job_worker.yml").read_text())
    (scene.folder / "config" / "actual_job_processor.yml").write_text(
        'spec: flatmachine\nspec_version: "0.8.3"\n'
        "data: {states: {start: {type: final, output: {echoed: input.job}}}}\n"
    )
    (scene.folder / "launches.py").write_text(LAUNCHES)
    id = scene.pool.push({"n": 1})
    env = environment(HOLDFAST_URL=scene.app.settings.url, **{BACKENDS: json.dumps(scene.config.absolute())})
    said = python("launches.py", cwd=scene.folder, env=env)
    assert said.code == 0, said
    assert json.loads(said.out) == {"job_id": id, "result": {"echoed": {"n": 1}}}
    (scene.folder / "launches.py").write_text(LAUNCHES.replace("job_worker", "job_wrker"))
    assert "there is no machine 'job_wrker'" in python("launches.py", cwd=scene.folder, env=env).err


def test_what_is_in_memory_cannot_be_launched() -> None:
    runtime = SDKRuntimeWrapper.from_config({"registration": "memory", "work": "memory"})
    assert runtime.hooks().work_backend is runtime.work_backend
    with pytest.raises(UsageError, match="memory"):
        DistributedWorkerHooks({"registration": "memory", "work": "memory"}).invoker.play(["x"], "q", "u")
    runtime.registration_backend.close()  # type: ignore[attr-defined]
