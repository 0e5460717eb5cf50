"""FA-37: triggers start machines, once each, and what one has missed the next tick does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli.triggers import command
from holdfast.errors import UsageError
from holdfast.facades.flatagents import Triggers, read_triggers
from tests.facades.echo_hooks import ECHO
from tests.facades.test_flatagents_machines import SEED, Scene, scene

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
    often = triggers(scene, PRINTED.partition("  - name: local")[0])
    for n in range(2):
        scene.pool.push({"n": n})
    ran = asyncio.run(ticked(often, scene, 2))
    assert len(ran[0]) == 1
    assert len(ran[1]) <= 1, "only if five minutes have begun between the two"


def test_fa_37_work_that_nobody_was_told_of_is_found_by_the_next_tick(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = triggers(scene, "triggers:" + PRINTED.partition("pool_id: papers\n")[2])
    scene.pool.push({"n": 1})
    (ran,) = asyncio.run(ticked(made, scene, 1))
    assert len(ran) == 1
    assert len(made.hooks.launched) == 1  # type: ignore[attr-defined]
    made.hooks.launched.clear()  # type: ignore[attr-defined]
    monkeypatch.setattr("holdfast.facades.flatagents.triggers._BOOT_US", 0)
    asyncio.run(ticked(made, scene, 1))
    assert len(made.hooks.launched) == 1, "no process has come for it"  # type: ignore[attr-defined]


def test_fa_37_a_push_tells_the_pool(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    made = triggers(scene, PRINTED)
    told: list[str] = []
    monkeypatch.setattr(made, "work_added", told.append)
    made.watch(scene.work)
    scene.pool.push({"n": 1})
    assert told == ["papers"]


def test_every_mistake_of_a_registry_is_told(tmp_path: Path) -> None:
    file = tmp_path / "trigger_registry.yml"
    file.write_text(PRINTED)
    cron, added = read_triggers(file)
    assert (cron.schedule, cron.input, added.on) == ("*/5 * * * *", {"pool_id": "papers"}, "work_added")
    file.write_text(
        "triggers:\n  - {name: a, type: crn, machin: x}\n  - {name: b, type: cron, machine: m, on: never}\n"
    )
    with pytest.raises(UsageError) as problem:
        read_triggers(file)
    for said in ("'machin' is no key", "no 'machine'", "'crn'", "no 'schedule'", "'never'"):
        assert said in str(problem.value)


def test_cron_is_told_once_and_told_to_forget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a crontab of the test's own, which keeps what it is given in a file."""
    table, program = tmp_path / "table", tmp_path / "crontab"
    program.write_text(f'#!/bin/sh\nif [ "$1" = -l ]; then cat {table}; else cat > {table}; fi\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    table.write_text("0 0 * * * other\n")
    (tmp_path / "trigger_registry.yml").write_text(PRINTED)
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke
    for _ in range(2):
        assert run(command, ["install"]).output == "2 triggers of trigger_registry.yml: cron looks every minute\n"
    first, line = table.read_text().splitlines()
    assert first == "0 0 * * * other"
    assert "holdfast triggers tick" in line.replace("-m ", "")
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
