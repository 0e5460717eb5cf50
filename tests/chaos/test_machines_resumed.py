"""`holdfast machine run`, killed by kill -9 at every stored step, and `holdfast machine resume` right after it.

No other worker lives meanwhile. Each hook is called between two stored steps, so a kill in each hook is one at each.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.facades.test_leases import patiently
from tests.machines.conftest import WriteMachine, write
from tests.support.commands import PATIENCE, Said, environment, holdfast, start

__all__ = ["write"]

HOOKS = """
import os, signal, time

class Dying:
    def _called(self, what):
        with open(os.environ["LOG"], "a") as log:
            log.write(what + "\\n")
        if len(open(os.environ["LOG"]).readlines()) == int(os.environ["DIES_AT"]):
            os.kill(os.getpid(), signal.SIGKILL)
        if len(open(os.environ["LOG"]).readlines()) == int(os.environ["WAITS_AT"]):
            while not os.path.exists("go"):
                time.sleep(0.02)

    def on_machine_start(self, context):
        self._called("machine_start")

    def on_state_enter(self, state, context):
        self._called(f"enter {state}")

    def on_action(self, action, context):
        self._called(f"action {action} {context.get('item', '')}")
        return {"by": action}

    def on_state_exit(self, state, context, output):
        self._called(f"exit {state}")

    def on_machine_end(self, context, output):
        self._called("machine_end")
"""
STATES = """
start: {action: first, output_to_context: {by: "{{ output.by }}"}, transitions: [{to: each}]}
each: {foreach: "{{ range(2) }}", action: item, transitions: [{to: below}]}
below: {machine: child, output_to_context: {child: "{{ output.by }}"}, transitions: [{to: done}]}
done: {type: final, output: {by: context.by, child: context.child}}
"""
CHILD = """
start: {action: deep, output_to_context: {by: "{{ output.by }}"}, transitions: [{to: done}]}
done: {type: final, output: {by: context.by}}
"""
CALLS = 20
OUTPUT = {"by": "first", "child": "deep"}


class Project:
    """A folder with the machine and its hooks, in which commands are typed."""

    def __init__(self, folder: Path, url: str, write: WriteMachine) -> None:
        write("child", CHILD)
        write("m", STATES)
        (folder / "dying.py").write_text(HOOKS)
        self.folder, self.log, self._url = folder, folder / "log", url
        self.settings = {"HOLDFAST_PRESENCE_QUIET": "200ms"}

    def command(self, *words: str, dies_at: int = 0, waits_at: int = 0) -> tuple[list[str], dict[str, str]]:
        about = {"LOG": str(self.log), "DIES_AT": str(dies_at), "WAITS_AT": str(waits_at)}
        typed = ["machine", *words, "--hooks", "dying:Dying", "--url", self._url]
        return typed, environment(**self.settings, **about)

    def type(self, *words: str, dies_at: int = 0) -> Said:
        typed, env = self.command(*words, dies_at=dies_at)
        return holdfast(*typed, cwd=self.folder, env=env)

    @contextlib.contextmanager
    def kept_at(self, call: int) -> Iterator[None]:
        """While a process that runs the machine lives, and is kept in this call of its hooks. Then it continues."""
        typed, env = self.command("run", "m.yml", "--execution-id", "one", waits_at=call)
        process = start("-m", "holdfast", *typed, cwd=self.folder, env=env, stdout=subprocess.DEVNULL)
        try:
            patiently(lambda: len(self.calls()) >= call)
            yield
            self.log.with_name("go").touch()
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            process.wait(PATIENCE)

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def project(tmp_path: Path, url: str, write: WriteMachine) -> Project:
    return Project(tmp_path, url, write)


def test_hooks_are_called_between_all_stored_steps(project: Project) -> None:
    assert project.type("run", "m.yml", "--execution-id", "one").json == OUTPUT
    assert len(project.calls()) == CALLS, project.calls()


@pytest.mark.chaos
@pytest.mark.sample(3)
@pytest.mark.parametrize("dies_at", [call for first in range(1, 6) for call in range(first, CALLS + 1, 5)])
def test_an_execution_is_resumed_right_after_kill_9(project: Project, dies_at: int) -> None:
    killed = project.type("run", "m.yml", "--execution-id", "one", dies_at=dies_at)
    assert killed.code == -signal.SIGKILL, killed
    assert project.type("resume", "one").json == OUTPUT
    assert len(project.calls()) == CALLS + 1, "one call is made again: that which its process died in"
    calls = Counter(call for call in project.calls() if call.startswith("action"))
    assert calls - Counter({project.calls()[dies_at - 1]: 1}) <= Counter(set(calls)), calls


@pytest.mark.chaos
def test_an_execution_is_resumed_with_a_new_file_right_after_kill_9(project: Project, write: WriteMachine) -> None:
    assert project.type("run", "m.yml", "--execution-id", "one", dies_at=4).code == -signal.SIGKILL
    write("m", STATES.replace("child: context.child", "new: 1"))
    assert project.type("resume", "one", "--new", "m.yml").json == {"by": "first", "new": 1}


@pytest.mark.chaos
def test_an_execution_that_a_living_process_plays_is_not_resumed(project: Project) -> None:
    with project.kept_at(3):
        assert "is running in another process" in project.type("resume", "one").refused(2)
        assert "Nothing was changed" in project.type("resume", "one", "--new", "m.yml").refused(2)
    assert project.type("resume", "one").json == OUTPUT
    assert len(project.calls()) == CALLS, "nothing was done twice"


@pytest.mark.long
@pytest.mark.chaos
def test_where_the_store_cannot_tell_who_lives_leases_do(project: Project, dialect: str) -> None:
    """As behind a pooler: who renews its lease lives, and that of a dead process ends. In a file it can always tell."""
    project.settings = {"HOLDFAST_PRESENCE_QUIET": "1h", "HOLDFAST_LEASE_TTL": "3s", "HOLDFAST_HEARTBEAT": "1s"}
    with project.kept_at(3):
        refused = project.type("resume", "one")
        assert refused.code == 2
        assert "is running in another process" in refused.err.splitlines()[-1]
        assert ("waiting to see" in refused.err) == (dialect == "postgres")
    project.log.unlink()
    assert project.type("run", "m.yml", "--execution-id", "two", dies_at=4).code == -signal.SIGKILL
    assert project.type("resume", "two").json == OUTPUT
