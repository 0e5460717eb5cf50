"""Workers that are processes: what the registry and the pool show when they are stopped, killed, or fail."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import RunFailed
from holdfast.facades.flatagents import (
    BackendConfig,
    Backends,
    DistributedWorkerHooks,
    SDKRuntimeWrapper,
    SubprocessInvoker,
    Triggers,
    WorkerFilter,
    WorkerRecord,
    WorkerRegistration,
    create_backends,
)
from holdfast.facades.flatagents.environment import BACKENDS
from holdfast.facades.flatagents.redis_backends import RedisWorkPool
from holdfast.facades.flatagents.work import HoldfastWorkPool
from tests.facades.echo_hooks import ECHO, EchoHooks, StoppingHooks
from tests.facades.test_flatagents_machines import Scene, scene
from tests.facades.test_leases import SHORT, patiently
from tests.support.apps import PATIENCE
from tests.support.commands import environment, program

__all__ = ["scene"]


def status(scene: Scene, worker: WorkerRecord) -> str:
    found = scene.registry.get(worker.worker_id)
    assert found is not None
    return found.status


def busy_worker(scene: Scene, hooks: EchoHooks) -> WorkerRecord:
    """A process that the checker has launched, in the middle of an item."""
    scene.run("parallelization_checker", hooks, max_workers=1)
    patiently(lambda: scene.pool.claimed() == 1)
    (worker,) = scene.registry.list(status="active")
    return worker


def is_there(pid: int | None) -> bool:
    assert pid is not None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def told(worker: WorkerRecord, number: signal.Signals) -> None:
    assert worker.pid is not None
    os.kill(worker.pid, number)


def test_sigterm_makes_a_busy_worker_terminating_and_then_terminated(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "may stop"
    monkeypatch.setenv("ECHO_MAY_STOP", str(gate))
    item_id = scene.pool.push({"until": str(tmp_path / "never")})
    worker = busy_worker(scene, StoppingHooks(scene.config))
    assert worker.current_task_id == item_id
    told(worker, signal.SIGTERM)
    patiently(lambda: status(scene, worker) == "terminating")
    assert scene.pool.get(item_id).claimed_by == worker.worker_id
    gate.touch()
    patiently(lambda: status(scene, worker) == "terminated")
    patiently(lambda: not is_there(worker.pid))
    item = scene.pool.get(item_id)
    assert (item.status, item.attempts, item.claimed_by) == ("pending", 0, None), (
        "told to stop, it handed the item back"
    )
    assert scene.registry.list(status="lost") == []
    after = scene.hooks()
    scene.run("parallelization_checker", after, max_workers=1)
    assert len(after.launched) == 1, "it has left its place to another"
    assert scene.app.sync(scene.app.jobs.get(worker.worker_id)).state == "cancelled"


def test_a_worker_that_was_killed_and_reaped_leaves_its_place_to_another(scene: Scene, tmp_path: Path) -> None:
    scene.pool.push({"until": str(tmp_path / "never")})
    hooks = EchoHooks(scene.config)
    worker = busy_worker(scene, hooks)
    told(worker, signal.SIGKILL)
    after = scene.hooks()
    scene.run("parallelization_checker", after, max_workers=1)
    assert after.launched == [], "nobody has given it up"
    patiently(lambda: bool(scene.registry.list(stale_threshold_seconds=SHORT)))
    scene.run("stale_worker_reaper", hooks, stale_threshold_seconds=SHORT)
    scene.run("parallelization_checker", after, max_workers=1)
    assert len(after.launched) == 1


FAILS = """
spec: flatmachine
spec_version: "0.8.3"
data:
  name: fails
  settings: {heartbeat_interval: 30}
  context: {pool_id: "{{ input.pool_id }}"}
  states:
    start:
      action: claim_job
      output_to_context: {job: "{{ output.job }}", job_id: "{{ output.job_id }}"}
      transitions: [{to: next}]
    next: {action: echo, transitions: [{to: done}]}
    done: {type: final}
"""


def test_an_error_exit_is_terminated_and_gives_the_item_back(scene: Scene) -> None:
    item_id = scene.pool.push({"n": 1, "fail": True})
    file = scene.folder / "fails.yml"
    file.write_text(FAILS)
    hooks = EchoHooks(scene.config)
    id = hooks.invoker.launch(str(file), {"pool_id": "papers"})
    patiently(lambda: bool(scene.registry.list(status="terminated")))
    (worker,) = scene.registry.list()
    assert (worker.worker_id, worker.current_task_id) == (id, None)
    assert (scene.pool.get(item_id).status, scene.pool.get(item_id).attempts) == ("pending", 1), "a try that failed"


SPAWNS = """
spec: flatmachine
spec_version: "0.8.3"
data:
  name: spawns
  context: {pool_id: papers, max_workers: 3, workers_to_spawn: 10, worker_config_path: "{{ input.worker }}"}
  states:
    start:
      action: spawn_workers
      output_to_context: {spawned: "{{ output.spawned }}", refused: "{{ output.refused }}"}
      transitions: [{to: done}]
    done: {type: final, output: {spawned: context.spawned, refused: context.refused}}
"""


def test_spawned_workers_are_as_many_as_may_live(scene: Scene) -> None:
    spawns, worker, hooks = scene.folder / "spawns.yml", scene.folder / "fails.yml", scene.hooks()
    spawns.write_text(SPAWNS)
    worker.write_text(FAILS)
    for n in range(10):
        scene.pool.push({"n": n})
    machine = scene.app.machine(spawns, hooks=hooks)

    async def four() -> list[Any]:
        return [*await asyncio.gather(*(machine.run({"worker": str(worker)}) for _ in range(4)))]

    answers = scene.app.sync(four())
    assert sum(each["spawned"] for each in answers) == len(set(hooks.launched)) == 3
    assert all(each["spawned"] + each["refused"] == 10 for each in answers)
    rows = [scene.app.sync(scene.app.jobs.get(id)) for id in hooks.launched]
    assert {(row.state, row.queue) for row in rows} == {("pending", "own_process.flatagents.papers")}


SHOP = """
import os

from holdfast import Holdfast
from holdfast.facades.flatagents import DistributedWorkerHooks
from holdfast.models.script import Script, say

hf = Holdfast(os.environ["SHOP_URL"])
hf.agent("critic", model="scripted:critic", queue="critics")
hf.script("critic", Script(say("good")))
hf.machine("launcher.yml", hooks=DistributedWorkerHooks)
"""
LAUNCHER = """
spec: flatmachine
spec_version: "0.8.3"
data:
  name: launcher
  context: {pool_id: papers, max_workers: 1}
  states:
    start: {launch: asker, transitions: [{to: done}]}
    done: {type: final}
"""
ASKER = """
spec: flatmachine
spec_version: "0.8.3"
data:
  name: asker
  states:
    start:
      agent: critic
      input: {text: Is it good?}
      output_to_context: {said: "{{ output.text }}"}
      transitions: [{to: done}]
    done: {type: final, output: {said: context.said}}
"""


@pytest.mark.long
def test_a_launched_process_finds_the_agents_of_the_program_that_launched_it(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = scene.app.settings.url
    for name, text in (("shop.py", SHOP), ("launcher.yml", LAUNCHER), ("asker.yml", ASKER)):
        (tmp_path / name).write_text(text)
    scene.pool.push({"n": 1})
    env = environment(SHOP_URL=url, **{BACKENDS: json.dumps(scene.config.absolute())})
    command = ("-m", "holdfast.machines.run", "--machine", "launcher.yml", "--app", "shop:hf")
    assert program(*command, env=env).code == 0

    def answers() -> list[Any]:
        rows = scene.app.sync(scene.app.jobs.list(kind="machine:asker"))
        return [scene.app.sync(scene.app.jobs[row.id].result()) for row in rows if row.state == "succeeded"]

    patiently(lambda: answers() == [{"said": "good"}])


def test_a_launched_process_has_the_backends_that_the_program_made(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scene.echo.write_text(ECHO.replace("      action: echo\n", "").replace("{{ context.echoed }}", "{{ context.job }}"))
    item_id = scene.pool.push({"n": 1})
    hooks = SDKRuntimeWrapper.from_config(scene.config).hooks()
    scene.run("parallelization_checker", hooks, max_workers=1)
    patiently(lambda: scene.pool.get(item_id).status == "done")
    assert not (tmp_path / "data").exists(), "nobody has used the default place"


class OwnWork:
    """A `WorkBackend` of a program's own, which no configuration names."""

    def __init__(self, pool: HoldfastWorkPool) -> None:
        self._pool = pool

    def pool(self, name: str) -> HoldfastWorkPool:
        return self._pool


class OwnHooks(DistributedWorkerHooks):
    def __init__(self, scene: Scene) -> None:
        super().__init__(Backends(scene.registry, OwnWork(scene.pool)))


def test_backends_that_no_process_can_make_again_are_refused_before_anything_is_launched(scene: Scene) -> None:
    scene.pool.push({"n": 1})
    with pytest.raises(RunFailed, match="a class of hooks that makes them"):
        scene.run("parallelization_checker", DistributedWorkerHooks(Backends(scene.registry, OwnWork(scene.pool))))
    assert scene.app.sync(scene.app.jobs.list(kind="machine:job_worker")).items == []
    assert OwnHooks(scene).invoker.command([])[3:] == ["--hooks", f"{__name__}:OwnHooks"]


def test_the_invoker_of_a_runtime_starts_what_its_machines_launch(scene: Scene) -> None:
    class Recorded(SubprocessInvoker):
        def play(self, execution_ids: Any, queue: str, url: str) -> None:
            played.extend(execution_ids)

    played: list[str] = []
    scene.pool.push({"n": 1})
    made = create_backends(scene.config)
    runtime = SDKRuntimeWrapper(made.registration, made.work, invoker=Recorded())
    scene.run("parallelization_checker", runtime.hooks(), max_workers=1)
    assert len(played) == 1


def test_hooks_of_a_script_are_found_by_the_name_of_its_file(scene: Scene, tmp_path: Path) -> None:
    script = tmp_path / "checking.py"
    script.write_text(
        "from holdfast.facades.flatagents import DistributedWorkerHooks\n\n\n"
        "class Hooks(DistributedWorkerHooks):\n    pass\n\n\n"
        "if __name__ == '__main__':\n    print(*Hooks().invoker.command([])[3:])\n"
    )
    env = environment(**{BACKENDS: json.dumps(scene.config.absolute())})
    assert program(str(script), env=env) == (0, "--hooks checking:Hooks\n", "")


def test_a_spawner_that_dies_before_it_starts_its_workers_is_repaired_by_a_tick(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its crash is between the admission, which is stored, and the start of the processes."""
    spawns, worker = scene.folder / "spawns.yml", scene.folder / "fails.yml"
    spawns.write_text(SPAWNS)
    worker.write_text(FAILS)
    for n in range(10):
        scene.pool.push({"n": n})
    dying = SubprocessInvoker(
        "tests.facades.echo_hooks:DyingHooks", url=scene.app.settings.url, backends=scene.config.absolute()
    )

    def spawned() -> list[str]:
        return sorted(job.id for job in scene.app.sync(scene.app.jobs.list(kind="machine:fails")))

    dying.launch(str(spawns), {"worker": str(worker)}, execution_id="spawner")
    patiently(lambda: len(spawned()) == 3)
    first, hooks = spawned(), scene.hooks()
    said = scene.run(spawns, hooks, worker=str(worker))
    assert (said, hooks.launched) == ({"spawned": 0, "refused": 10}, []), "those that were admitted have their places"
    (scene.folder / "trigger_registry.yml").write_text("triggers: []")
    monkeypatch.setattr("holdfast.facades.flatagents.triggers._BOOT_US", 0)
    made = Triggers(scene.folder / "trigger_registry.yml", app=scene.app, hooks=hooks)
    scene.app.sync(made.tick())
    assert (sorted(hooks.launched), spawned()) == (first, first), "the tick starts those, and no others"


def test_a_process_that_cannot_begin_is_told_of(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    SubprocessInvoker("nowhere:Hooks", url=scene.app.settings.url).play(["it"], "own_process.x", "")
    patiently(lambda: "has ended with 2; to see why" in caplog.text)
    assert "--execution-id it --queue own_process.x --hooks nowhere:Hooks" in caplog.text


@pytest.mark.parametrize(
    ("hooks", "elsewhere", "why"),
    [
        ("nowhere:Hooks", None, "nowhere"),
        pytest.param(
            "tests.facades.echo_hooks:EchoHooks",
            "sqlite:////proc/nowhere/at.db",
            "/proc/nowhere",
            marks=pytest.mark.long,
        ),
    ],
)
def test_the_line_that_shows_why_a_process_could_not_begin_needs_no_input(
    scene: Scene, caplog: pytest.LogCaptureFixture, hooks: str, elsewhere: str | None, why: str
) -> None:
    """It has the hooks and waits for nothing. Nothing is started by it."""
    (scene.folder / "fails.yml").write_text(FAILS)
    invoker = SubprocessInvoker(hooks, url=elsewhere or scene.app.settings.url)
    invoker.launch(str(scene.folder / "fails.yml"), {"n": 1})
    patiently(lambda: "has ended with 2; to see why" in caplog.text)
    (line,) = re.findall(r"run it yourself, without its input: (.*)", caplog.text)
    silent, kept = os.pipe()
    ran = subprocess.run(
        ["sh", "-c", line],
        env=environment(HOLDFAST_URL=elsewhere or scene.app.settings.url),
        check=False,
        stdin=silent,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    os.close(silent)
    os.close(kept)
    assert (ran.returncode, why in ran.stderr) == (2, True), ran.stderr
    assert scene.app.sync(scene.app.jobs.list(kind="machine:fails")) == []


def test_a_processor_that_floods_fails_its_job_and_not_its_worker(scene: Scene) -> None:
    item_id = scene.pool.push({"flood": 2 * scene.app.settings.result_cap})
    assert scene.run("job_worker", EchoHooks(scene.config)) == {"job_id": item_id, "result": None}
    item = scene.pool.get(item_id)
    assert (item.status, item.attempts) == ("pending", 1)
    assert "over the cap of 1,048,576" in (item.error or "")
    assert [worker.status for worker in scene.registry.list()] == ["terminated"]


LOSES = FAILS.replace("name: fails", "name: loses").replace(
    "    next: {action: echo, transitions: [{to: done}]}\n    done: {type: final}\n",
    "    next: {wait_for: go, transitions: [{to: complete}]}\n"
    "    complete: {action: complete_job, transitions: [{to: done}]}\n"
    "    done: {type: final, output: {late: context.late}}\n",
)


@pytest.mark.parametrize("lost", [True, False])
def test_a_worker_that_continues_elsewhere_completes_its_item_or_learns_its_loss(scene: Scene, lost: bool) -> None:
    """The claim is in its checkpoint, so it claims nothing again; which claim that was, its id says."""
    file = scene.folder / "loses.yml"
    file.write_text(LOSES)
    item_id = scene.pool.push({"n": 1})
    execution = scene.app.machine(file, hooks=EchoHooks(scene.config)).enqueue_sync({"pool_id": "papers"})
    scene.app.sync(scene.app.ensure_worker())
    patiently(lambda: scene.app.sync(execution.refresh()).state == "waiting")
    if lost:
        scene.registry.update_status(execution.id, "lost")
        assert scene.pool.release_by_worker(execution.id) == 1
        assert scene.pool.claim("another")
        assert scene.pool.complete(item_id, "right")
    scene.app.machine(file, hooks=EchoHooks(scene.config))  # as a process that knows nothing of the claim
    scene.app.sync(scene.app.signal("go"))
    assert scene.app.sync(execution.result()) == {"late": lost}
    assert (scene.pool.get(item_id).status, scene.pool.get(item_id).result) == ("done", "right" if lost else None)


def test_a_worker_belongs_to_the_pool_that_its_machine_names(scene: Scene) -> None:
    file = scene.folder / "fails.yml"
    file.write_text(FAILS.replace("heartbeat_interval: 30", "heartbeat_interval: 30, worker_pool: fast"))
    scene.pool.push({"n": 1})
    scene.run(file, EchoHooks(scene.config))
    assert [worker.pool_id for worker in scene.registry.list()] == ["fast"]


def test_the_three_machines_work_on_redis(scene: Scene, redis_url: str) -> None:
    """Their executions are in the store of the app, workers and items on the server; one worker is a process."""
    config = BackendConfig("redis", "redis", registration_path=redis_url, work_path=redis_url)
    registry, work = create_backends(config)
    pool, hooks = work.pool("papers"), EchoHooks(config)
    assert isinstance(pool, RedisWorkPool)
    good, bad = pool.push({"n": 1}), pool.push({"n": 2, "fail": True}, {"max_retries": 2})
    scene.run("parallelization_checker", hooks, max_workers=1)
    patiently(lambda: pool.get(good).status == "done")
    patiently(lambda: [each.status for each in registry.list()] == ["terminated"])
    assert scene.run("job_worker", hooks) == {"job_id": bad, "result": None}
    registry.register(WorkerRegistration("silent", pool_id="papers"))
    assert pool.claim("silent")
    patiently(lambda: bool(registry.list(WorkerFilter(stale_threshold_seconds=SHORT))))
    assert scene.run("stale_worker_reaper", hooks, stale_threshold_seconds=SHORT) == {"reaped_count": 1}
    assert (pool.get(bad).status, pool.get(bad).error) == ("poisoned", "job 2 is bad")
    assert scene.run("job_worker", hooks) == {"status": "no_work_available"}
    assert sorted(each.status for each in registry.list()) == ["lost", "terminated", "terminated", "terminated"]


def test_an_action_that_is_probably_misspelt_is_told_of(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    hooks = EchoHooks(scene.config)
    assert hooks.on_action("claim_jobb", {"pool_id": "papers"}) == {"pool_id": "papers"}
    assert "there is no action 'claim_jobb'. Did you mean 'claim_job'?" in caplog.text
    caplog.clear()
    hooks.on_action("validate_job", {})
    assert not caplog.text
