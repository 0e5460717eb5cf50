"""FA-37: triggers start machines, once each, and what one has missed the next tick does."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.app import core_of
from holdfast.cli.triggers import command
from holdfast.errors import UsageError
from holdfast.facades.flatagents import SubprocessInvoker, TickFailed, Triggers, read_triggers
from holdfast.facades.flatagents import work as rows
from holdfast.facades.flatagents.triggers import TRIGGERED
from holdfast.kernel.database import Transaction
from holdfast.kernel.queries import now
from holdfast.machines.api import stored_order
from holdfast.values import moment
from tests.facades.echo_hooks import ECHO, EchoHooks, RecordingHooks
from tests.facades.test_flatagents_machines import SEED, Scene, scene
from tests.facades.test_flatagents_workers import busy_worker, status, told
from tests.facades.test_leases import SHORT, patiently

__all__ = ["scene"]

PRINTED = """
triggers:
  - name: cron_5min
    type: cron
    schedule: "*/5 * * * *"
    machine: parallelization_checker
    input:
      pool_id: papers

  - name: local_subprocess
    type: subprocess
    on: work_added  # event name
    machine: parallelization_checker
"""


def triggers(scene: Scene, text: str) -> Triggers:
    file = scene.folder / "trigger_registry.yml"
    file.write_text(text)
    names = ("parallelization_checker", "job_worker")
    machines = {name: SEED / f"{name}.yml" for name in names}
    hooks = scene.hooks()
    made = Triggers(file, app=scene.app, hooks=hooks, machines={**machines, "actual_job_processor": scene.echo})
    made.hooks = hooks  # type: ignore[attr-defined]
    return made


async def ticked(made: Triggers, scene: Scene, times: int) -> list[list[str]]:
    try:
        return [await made.tick() for _ in range(times)]
    finally:
        await scene.app.close()


def test_fa_37_a_tick_runs_what_is_due_once(scene: Scene) -> None:
    made = triggers(scene, PRINTED.partition("  - name: local")[0].replace("*/5 * * * *", "0 0 1 1 *"))
    assert made.listed[0].due(0) == 0, "the first of January, at midnight"
    assert made.listed[0].due(3 * 86_400_000_000) is None, "a day later it is too late"
    once = triggers(scene, PRINTED.partition("  - name: local")[0].replace("*/5 * * * *", hours_ago(scene, 6)))
    ran = asyncio.run(ticked(once, scene, 3))
    assert [len(each) for each in ran] == [1, 0, 0], "it was due once, six hours ago, and is again tomorrow"
    again = triggers(scene, PRINTED.partition("  - name: local")[0].replace("*/5 * * * *", hours_ago(scene, 7)))
    assert [len(each) for each in asyncio.run(ticked(again, scene, 2))] == [1, 0], "another moment, once too"


def hours_ago(scene: Scene, hours: int) -> str:
    """A schedule that was due then, by the store's clock, and is not again for the rest of a day."""

    async def asked() -> int:
        return await core_of(scene.app).runtime().transact(now)

    at = moment(scene.app.sync(asked())) - timedelta(hours=hours)
    return f"{at.minute} {at.hour} * * *"


def test_fa_37_work_that_nobody_was_told_of_is_found_by_the_next_tick(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = triggers(scene, ADDED)
    scene.pool.push({"n": 1})
    (ran,) = asyncio.run(ticked(made, scene, 1))
    assert len(ran) == 1
    assert len(made.hooks.launched) == 1  # type: ignore[attr-defined]
    made.hooks.launched.clear()  # type: ignore[attr-defined]
    monkeypatch.setattr("holdfast.facades.flatagents.triggers._BOOT_US", 0)
    asyncio.run(ticked(made, scene, 1))
    assert len(made.hooks.launched) == 1, "no process has come for it"  # type: ignore[attr-defined]


def test_a_machine_that_fails_keeps_no_tick_from_the_rest(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    (scene.folder / "failing.yml").write_text(
        'spec: flatmachine\nspec_version: "0.8.3"\ndata:\n  states:\n'
        "    start: {foreach: input.none, machine: failing, transitions: [{to: done}]}\n    done: {type: final}\n"
    )
    both = '  - {name: a, type: cron, schedule: "* * * * *", machine: failing}\n'
    added = triggers(scene, ADDED)
    added.watch(scene.work)
    scene.pool.push({"n": 1})
    monkeypatch.setattr("holdfast.facades.flatagents.triggers._BOOT_US", 0)
    made = triggers(scene, f"triggers:\n{both}{both.replace('name: a', 'name: b')}")
    with pytest.raises(TickFailed, match="ended as failed") as problem:
        asyncio.run(ticked(made, scene, 1))
    assert (len(problem.value.ran), len(problem.value.failed)) == (2, 2)
    assert len(made.hooks.launched) == 1, "the process of the push is started again"  # type: ignore[attr-defined]


ADDED = "triggers:" + PRINTED.partition("pool_id: papers\n")[2]


def triggered(scene: Scene) -> list[dict[str, Any]]:
    """The inputs of the executions that pushes have triggered, as they are stored."""
    jobs = scene.app.sync(scene.app.jobs.list(queue=TRIGGERED))
    return [scene.app.sync(stored_order(core_of(scene.app), job.id))[0].input for job in jobs]


def test_fa_37_a_push_fires_what_it_triggers_in_its_own_transaction(scene: Scene) -> None:
    made = triggers(scene, ADDED + "    input: {max_workers: 3}\n")
    made.watch(scene.work)
    scene.pool.push({"n": 1})
    assert triggered(scene) == [{"pool_id": "papers", "max_workers": 3}], "the pool is that of the event"
    assert len(made.hooks.launched) == 1, "a process is started for it"  # type: ignore[attr-defined]


def test_fa_37_a_push_that_is_rolled_back_fires_nothing(scene: Scene) -> None:
    made = triggers(scene, ADDED)
    scene.pool.push({"n": 1})
    route = rows.route_of("papers")
    job = scene.pool._new({"n": 2}, 3)

    async def half(tx: Transaction) -> None:
        await rows.push(tx, [job], route, made.fired("papers", str(job.id)))
        raise ArithmeticError("before its commit")

    with pytest.raises(ArithmeticError):
        scene.work._store.call(scene.work._store.transact(half))
    assert (scene.pool.size(), triggered(scene)) == (1, [])


def test_fa_37_a_trigger_that_names_a_pool_hears_of_no_other(scene: Scene) -> None:
    made = triggers(scene, ADDED + "    input: {pool_id: books}\n")
    made.watch(scene.work)
    scene.pool.push({"n": 1})
    scene.work.pool("books").push({"n": 2})
    assert triggered(scene) == [{"pool_id": "books"}]


def test_fa_37_the_next_tick_starts_the_process_that_a_push_has_lost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = triggers(scene, ADDED)
    made.watch(scene.work)
    scene.pool.push({"n": 1})
    (lost,) = made.hooks.launched  # type: ignore[attr-defined]
    monkeypatch.setattr("holdfast.facades.flatagents.triggers._BOOT_US", 0)
    made.hooks.launched.clear()  # type: ignore[attr-defined]
    asyncio.run(ticked(made, scene, 1))
    assert lost in made.hooks.launched  # type: ignore[attr-defined]


@pytest.mark.long
def test_fa_37_a_push_has_its_item_worked_off_by_processes_alone(scene: Scene) -> None:
    file = scene.folder / "trigger_registry.yml"
    file.write_text(ADDED)
    machines = {name: SEED / f"{name}.yml" for name in ("parallelization_checker", "job_worker")}
    hooks = EchoHooks(scene.config)
    made = Triggers(file, app=scene.app, hooks=hooks, machines={**machines, "actual_job_processor": scene.echo})
    made.watch(scene.work)
    item_id = scene.pool.push({"n": 1})
    patiently(lambda: scene.pool.get(item_id).status == "done")
    patiently(lambda: not scene.registry.list(status="active"))
    states = {job.state for job in scene.app.sync(scene.app.jobs.list())}
    assert states == {"succeeded"}, "the checker, the worker, its processor and the item"


@pytest.mark.long
def test_fa_37_a_tick_continues_the_execution_of_a_worker_that_was_killed(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.config = replace(scene.config, heartbeat_interval=SHORT / 2)
    gate = tmp_path / "go"
    item_id = scene.pool.push({"n": 1, "until": str(gate)})
    worker = busy_worker(scene, EchoHooks(scene.config))
    told(worker, signal.SIGKILL)
    gate.touch()
    patiently(lambda: bool(scene.registry.list(stale_threshold_seconds=SHORT)))
    file = scene.folder / "trigger_registry.yml"
    file.write_text("triggers: []")
    monkeypatch.setattr("holdfast.facades.flatagents.triggers._BOOT_US", 0)
    asyncio.run(ticked(Triggers(file, app=scene.app, hooks=EchoHooks(scene.config)), scene, 1))
    patiently(lambda: scene.pool.get(item_id).status == "done")
    assert scene.pool.get(item_id).attempts == 1, "its worker came back before anybody gave it up"
    patiently(lambda: status(scene, worker) == "terminated")
    after = scene.registry.get(worker.worker_id)
    assert after is not None
    assert after.pid != worker.pid, "it is where its process is"


@pytest.mark.long
def test_a_launcher_that_is_killed_has_launched_once_and_the_next_tick_starts_the_processes(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`foreach` and `launch` with real processes: the launcher dies between the commit and their start."""
    log, url = tmp_path / "log", scene.app.settings.url
    for n in range(2):
        scene.pool.push({"n": n, "log": str(log)})
    bind = {"job_worker": str(SEED / "job_worker.yml"), "actual_job_processor": str(scene.echo)}
    dying = "tests.facades.echo_hooks:DyingHooks"
    invoker = SubprocessInvoker(dying, url=url, backends=scene.config.absolute(), bind=bind)
    checker, given = str(SEED / "parallelization_checker.yml"), {"pool_id": "papers", "max_workers": 2}

    def launched() -> list[str]:
        return sorted(job.id for job in scene.app.sync(scene.app.jobs.list(kind="machine:job_worker")))

    invoker.launch(checker, given, execution_id="the checker")
    patiently(lambda: len(launched()) == 2)
    first = launched()
    invoker.launch(checker, given, execution_id="the checker")
    file = scene.folder / "trigger_registry.yml"
    file.write_text("triggers: []")
    monkeypatch.setattr("holdfast.facades.flatagents.triggers._BOOT_US", 0)
    asyncio.run(ticked(Triggers(file, app=scene.app, hooks=EchoHooks(scene.config)), scene, 1))
    patiently(lambda: len(scene.pool.items("done")) == 2)
    patiently(lambda: not scene.registry.list(status="active"))
    assert sorted(log.read_text().split()) == ["0", "1"], "each item was worked on once"
    assert launched() == first, "played again, the checker launches nothing new"


def test_a_pool_that_fires_no_triggers_is_refused(scene: Scene) -> None:
    with pytest.raises(UsageError, match="work_added"):
        triggers(scene, ADDED).watch(object())  # type: ignore[arg-type]


def test_every_mistake_of_a_registry_is_told(tmp_path: Path) -> None:
    file = tmp_path / "trigger_registry.yml"
    file.write_text(PRINTED)
    cron, added = read_triggers(file)
    assert (cron.schedule, cron.input, added.on) == ("*/5 * * * *", {"pool_id": "papers"}, "work_added")
    file.write_text(
        "triggers:\n  - {name: a, type: crn, machin: x}\n  - {name: b, type: cron, machine: m, on: never}\n"
        "  - {name: b, type: subprocess, machine: m, input: [1]}\n"
    )
    with pytest.raises(UsageError) as problem:
        read_triggers(file)
    for said in (
        "'machin' is no key",
        "no 'machine'",
        "'crn'",
        "no 'schedule'",
        "'never'",
        "no 'on'",
        "no mapping",
        "2 triggers",
    ):
        assert said in str(problem.value)


def crontab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A crontab of the test's own, which keeps what it is given in this file; and a registry of triggers."""
    table, program = tmp_path / "table", tmp_path / "crontab"
    program.write_text(f'#!/bin/sh\nif [ "$1" = -l ]; then cat {table}; else cat > {table}; fi\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "trigger_registry.yml").write_text(PRINTED)
    monkeypatch.chdir(tmp_path)
    table.touch()
    return table


def test_cron_is_told_once_and_told_to_forget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = crontab(tmp_path, monkeypatch)
    table.write_text("0 0 * * * other\n")
    run = CliRunner().invoke
    for _ in range(2):
        options = ["--hooks", "shop:Hooks", "--bind", "a=b.yml", "--url", "sqlite:///x.db"]
        assert (
            run(command, ["install", *options]).output
            == "2 triggers of trigger_registry.yml: cron looks every minute\n"
        )
    first, line = table.read_text().splitlines()
    assert first == "0 0 * * * other"
    assert "holdfast triggers tick" in line.replace("-m ", "")
    assert line.partition("trigger_registry.yml")[2].startswith(
        " --hooks shop:Hooks --bind a=b.yml --url sqlite:///x.db"
    )
    assert run(command, ["remove"]).exit_code == 0
    assert table.read_text() == "0 0 * * * other\n"


def test_a_tick_on_the_command_line(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    triggers(scene, PRINTED.partition("  - name: local")[0])
    for name in ("parallelization_checker", "job_worker"):
        (scene.folder / f"{name}.yml").write_text((SEED / f"{name}.yml").read_text())
    (scene.folder / "actual_job_processor.yml").write_text(ECHO)
    monkeypatch.chdir(scene.folder)
    monkeypatch.setenv("FLATAGENTS_BACKENDS", json.dumps(scene.config.absolute()))
    hooks = ["--hooks", "tests.facades.echo_hooks:RecordingHooks"]
    said = CliRunner().invoke(command, ["tick", *hooks, "--url", scene.app.settings.url])
    assert said.output == '{"spawned": 10}\n', "the formula of the document; nothing waits, so nothing is started"


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"HOLDFAST_URL": "sqlite:///there.db"}, ["--url", "sqlite:///there.db"]),
        ({"HOLDFAST_APP": "shop:hf"}, ["--app", "shop:hf", "--url", "sqlite:///shop.db"]),
        ({}, ["--url", "sqlite:///.holdfast/holdfast.db"]),
    ],
)
def test_cron_is_told_what_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: dict[str, str], words: list[str]
) -> None:
    """It has none of the variables with which the command was typed."""
    table = crontab(tmp_path, monkeypatch)
    (tmp_path / "shop.py").write_text("from holdfast import Holdfast\n\nhf = Holdfast('sqlite:///shop.db')\n")
    monkeypatch.setenv("FLATAGENTS_BACKENDS", '{"work_path": "a b.db"}')
    for name in ("HOLDFAST_URL", "HOLDFAST_APP"):
        monkeypatch.delenv(name, raising=False)
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    assert CliRunner().invoke(command, ["install"]).exit_code == 0
    (line,) = table.read_text().splitlines()
    told = shlex.split(line.partition("&&")[2])
    assert told[0] == 'FLATAGENTS_BACKENDS={"work_path": "a b.db"}'
    assert told[told.index(str(tmp_path / "trigger_registry.yml")) + 1 : told.index("#")] == words


def test_a_tick_uses_the_backends_that_its_machines_name(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(scene.folder)
    named = json.dumps({"settings": {"backends": scene.config.absolute()}})[1:-1]
    checker = (SEED / "parallelization_checker.yml").read_text().replace("  context:\n", f"  {named}\n  context:\n", 1)
    (scene.folder / "parallelization_checker.yml").write_text(checker)
    (scene.folder / "trigger_registry.yml").write_text(
        "triggers:\n  - {name: web, type: webhook, machine: parallelization_checker}\n"
    )
    hooks, machines = RecordingHooks(), {"job_worker": SEED / "job_worker.yml", "actual_job_processor": scene.echo}
    made = Triggers("trigger_registry.yml", app=scene.app, hooks=hooks, machines=machines)
    scene.pool.push({"n": 1})
    before = scene.hooks()
    scene.run("parallelization_checker", before, max_workers=1)
    monkeypatch.setattr("holdfast.facades.flatagents.triggers._BOOT_US", 0)
    asyncio.run(ticked(made, scene, 1))
    assert hooks.launched == before.launched != []
    assert not (scene.folder / "data").exists(), "nobody has used the default place"
