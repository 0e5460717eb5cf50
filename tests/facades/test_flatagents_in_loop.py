"""The document's single-process mode: a trigger of the type in_loop, and no process but this one."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import core_of
from holdfast.errors import UsageError
from holdfast.facades.flatagents import Triggers, read_triggers
from holdfast.kernel.enqueue import enqueue
from tests.facades.echo_hooks import EchoHooks
from tests.facades.test_flatagents_machines import SEED, Scene, scene
from tests.facades.test_leases import patiently
from tests.support.apps import eventually

__all__ = ["scene"]

IN_LOOP = """
triggers:
  - {name: here, type: in_loop, on: work_added, machine: parallelization_checker, input: {max_workers: 3}}
"""


class HereHooks(EchoHooks):
    """They note in which process their processor worked, and refuse to start another."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.pids: list[int] = []

    @property
    def invoker(self) -> Any:
        raise AssertionError("a process is started")

    def on_action(self, action: str, context: dict[str, Any]) -> Any:
        if action == "echo":
            self.pids.append(os.getpid())
        return super().on_action(action, context)


class LoopHooks(HereHooks):
    """They note in which event loop an action is."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.loops: set[asyncio.AbstractEventLoop] = set()

    async def on_action(self, action: str, context: dict[str, Any]) -> Any:
        self.loops.add(asyncio.get_running_loop())
        return super().on_action(action, context)


def triggers(scene: Scene, kind: type[HereHooks] = HereHooks) -> tuple[Triggers, Any]:
    file = scene.folder / "trigger_registry.yml"
    file.write_text(IN_LOOP)
    machines: dict[str, str | Path] = {name: SEED / f"{name}.yml" for name in ("parallelization_checker", "job_worker")}
    hooks = kind(scene.config)
    machines["actual_job_processor"] = scene.echo
    return Triggers(file, app=scene.app, hooks=hooks, machines=machines), hooks


def workers_are_gone(scene: Scene) -> bool:
    found = scene.registry.list()
    return bool(found) and all(each.status == "terminated" and each.pid == os.getpid() for each in found)


def test_a_push_has_its_item_worked_off_in_this_process(scene: Scene) -> None:
    made, hooks = triggers(scene)
    made.watch(scene.work)
    ids = [scene.pool.push({"n": n}) for n in range(3)]
    patiently(lambda: [scene.pool.get(id).status for id in ids] == ["done"] * 3)
    patiently(lambda: workers_are_gone(scene))
    assert hooks.pids == [os.getpid()] * 3, "each item once"


def test_a_push_does_not_wait_for_the_machine(scene: Scene) -> None:
    made, _ = triggers(scene)
    made.watch(scene.work)
    gate = scene.folder / "go"
    id = scene.pool.push({"n": 1, "until": str(gate)})
    patiently(lambda: scene.pool.get(id).status == "claimed")
    assert scene.pool.push({"n": 2}), "a push is taken in while a machine works"
    gate.touch()
    patiently(lambda: scene.pool.get(id).status == "done")


def test_async_code_plays_the_machines_in_its_own_loop(scene: Scene) -> None:
    async def main() -> None:
        async with scene.app:
            made, hooks = triggers(scene, LoopHooks)
            made.watch(scene.work)
            id = await scene.pool.push_async({"n": 1})

            async def done() -> bool:
                return (await scene.pool.get_async(id)).status == "done"

            await eventually(done)
            assert hooks.loops == {asyncio.get_running_loop()}
        await scene.work.aclose()

    asyncio.run(main())


def test_what_a_process_left_undone_the_next_tick_does(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The push was in a process that ended before its machine was played."""
    made, _ = triggers(scene)
    id = scene.pool.push({"n": 1})
    fired = made.fired("papers", id)
    jobs, routes = map(list, zip(*fired, strict=True))

    async def left() -> None:
        await core_of(scene.app).runtime().transact(enqueue, jobs, routes)

    scene.app.sync(left())
    monkeypatch.setattr("holdfast.facades.flatagents.triggers._BOOT_US", 0)
    asyncio.run(tick(made, scene))
    assert scene.pool.get(id).status == "done"
    states = {job.state for job in scene.app.sync(scene.app.jobs.list())}
    assert states == {"succeeded"}, "no checker is left over"


async def tick(made: Triggers, scene: Scene) -> None:
    try:
        await made.tick()
    finally:
        await scene.app.close()


def test_work_that_nobody_was_told_of_is_done_in_the_process_of_the_tick(scene: Scene) -> None:
    made, hooks = triggers(scene)
    id = scene.pool.push({"n": 1})
    asyncio.run(tick(made, scene))
    assert scene.pool.get(id).status == "done"
    assert hooks.pids == [os.getpid()]


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("type: webhook, on: work_added", "'on' is for the type subprocess or in_loop, not webhook"),
        ("type: lambda, on: work_added", "'on' is for the type subprocess or in_loop, not lambda"),
        ("type: cron, schedule: '* * * * *', on: work_added", "'on' is for the type subprocess or in_loop, not cron"),
        ("type: in_loop, schedule: '* * * * *'", "'schedule' is for the type cron, not in_loop"),
    ],
)
def test_a_key_that_does_not_fit_the_type_is_refused(tmp_path: Path, keys: str, problem: str) -> None:
    file = tmp_path / "trigger_registry.yml"
    file.write_text(f"triggers:\n  - {{name: a, machine: m, {keys}}}\n")
    with pytest.raises(UsageError, match=problem):
        read_triggers(file)


def test_the_type_may_have_the_hyphen_of_the_document(tmp_path: Path) -> None:
    file = tmp_path / "trigger_registry.yml"
    file.write_text("triggers:\n  - {name: a, machine: m, type: in-loop, on: work_added}\n")
    assert read_triggers(file)[0].type == "in_loop"
