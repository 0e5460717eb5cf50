"""Processes that play an execution find the program: its agents, its hooks, and the store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast import Holdfast
from holdfast.cli.machine import command
from holdfast.machines import run
from holdfast.machines.api import execution_job
from tests.machines.conftest import WriteMachine
from tests.support.commands import environment, holdfast, program

SHOP = """
from pathlib import Path

from holdfast import Holdfast
from holdfast.models.script import Script, say

hf = Holdfast("sqlite:///elsewhere.db")
hf.agent("critic", model="scripted:critic", queue="critics")
hf.script("critic", Script(*[say("good")] * 9))


class Hooks:
    def on_action(self, action, context):
        return {"by": "the program's hooks"}


if Path("shop.yml").exists():
    hf.machine("shop.yml", hooks=Hooks)
"""
STATES = """
start: {action: look, transitions: [{to: ask}]}
ask:
  agent: critic
  input: {text: Is it good?}
  output_to_context: {said: "{{ output.text }}"}
  transitions: [{to: done}]
done: {type: final, output: {said: context.said, by: context.by}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def played(*words: str | Path, **env: str) -> Any:
    said = program("-m", run.__name__, *map(str, words), env=environment(**env))
    return said.json if said.code == 0 else said.err


@pytest.mark.parametrize("by", ["--app", "HOLDFAST_APP"])
def test_a_process_finds_the_agents_and_hooks_of_the_program(folder: Path, write: WriteMachine, by: str) -> None:
    file = write("shop", STATES)
    named, env = (["--app", "shop:hf"], {}) if by == "--app" else ([], {by: "shop"})
    said = played("--machine", file, "--url", f"sqlite:///{folder}/store.db", *named, **env)
    assert said == {"said": "good", "by": "the program's hooks"}
    assert not (folder / "elsewhere.db").exists()


def test_without_a_program_the_agent_is_not_there(folder: Path, write: WriteMachine) -> None:
    write("shop", STATES)
    said = played("--machine", folder / "shop.yml", "--hooks", "shop:Hooks", "--url", f"sqlite:///{folder}/store.db")
    assert "this program has no agent 'critic'" in said


@pytest.mark.parametrize("app", ["json:dumps", "nowhere:hf", "json:nothing", "json"])
def test_what_is_no_app_is_refused(write: WriteMachine, app: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = write("echo", "start: {type: final}")
    assert run.main(["--machine", str(file), "--app", app]) == 2
    assert f"{app!r}" in capsys.readouterr().err


def test_an_agent_that_nobody_has_defined_yet_is_a_warning(
    hf: Holdfast, write: WriteMachine, caplog: pytest.LogCaptureFixture
) -> None:
    hf.agent("critic", model="scripted:critic")
    hf.machine(write("m", "start: {agent: critik, transitions: [{to: done}]}\ndone: {type: final}"))
    assert "no agent 'critik' yet. Did you mean 'critic'?" in caplog.text


def typed(*words: str | Path) -> Any:
    said = holdfast("machine", *map(str, words))
    return said.json if said.code == 0 else said.out + said.err


def test_run_and_resume_have_the_hooks_and_agents_of_the_program(folder: Path, write: WriteMachine) -> None:
    file, url = write("shop", STATES), f"sqlite:///{folder}/store.db"
    assert typed("run", file, "--app", "shop:hf", "--url", url) == {"said": "good", "by": "the program's hooks"}
    waits = STATES.replace("transitions: [{to: ask}]", "transitions: [{to: wait}]")
    write("shop", waits + "wait: {wait_for: go, transitions: [{to: ask}]}\n")
    assert "waits for a signal" in typed("run", file, "--execution-id", "one", "--app", "shop:hf", "--url", url)
    asyncio.run(signalled(url, "go"))
    id = execution_job("one")
    assert typed("resume", id, "--app", "shop:hf", "--url", url) == {"said": "good", "by": "the program's hooks"}
    assert not (folder / "elsewhere.db").exists()


async def signalled(url: str, channel: str) -> None:
    async with Holdfast(url, embedded=False) as app:
        await app.signal(channel)


def test_check_looks_for_agents_in_the_program_that_is_named(folder: Path, write: WriteMachine) -> None:
    file = write("other", STATES.replace("agent: critic", "agent: critik"))
    alone = CliRunner().invoke(command, ["check", str(file)])
    assert (alone.exit_code, f"{file}:9:14: warning: agent 'critik' is not in this file" in alone.stdout) == (0, True)
    said = typed("check", file, "--app", "shop:hf")
    assert said == f"{file}:9:14: there is no agent in this program called 'critik'. Did you mean 'critic'?\n"
    write("other", STATES, data="agents: {critic: critik}")
    assert "called 'critik'" in typed("check", file, "--app", "shop:hf"), "a name that the file gives to it"
