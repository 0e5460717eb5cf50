"""No secret on a command line, which everybody on the machine can read."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli.dev import running
from holdfast.cli.triggers import command
from holdfast.facades.flatagents import SubprocessInvoker
from holdfast.pools.launchers import Place, Subprocesses
from holdfast.settings import GIVEN_URL
from tests.support.apps import PATIENCE

PASSWORD = "hunter2"
URL = f"postgresql://app:{PASSWORD}@127.0.0.1:1/holdfast"  # nobody listens there


def children(pid: int) -> dict[int, str]:
    """The processes that one has started, each with its command line."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def started(pid: int, words: str) -> dict[int, str]:
    """The children of a process that have become what they are to be."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if found := {child: line for child, line in children(pid).items() if words in line}:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{pid} has started no {words}: {children(pid)}")


def environment(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_bytes().decode()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with an app, and an end for what was started."""
    (tmp_path / "shop.py").write_text("from holdfast import Holdfast\n\nhf = Holdfast()\n\n@hf.job\ndef f(): ...\n")
    (tmp_path / "still.yml").write_text(
        "spec: flatmachine\nspec_version: '0.8.3'\ndata:\n  name: still\n  states:\n"
        "    start: {type: initial, transitions: [{to: end}]}\n    end: {type: final}\n"
    )
    monkeypatch.chdir(tmp_path)
    before = children(os.getpid())
    yield tmp_path
    for pid in children(os.getpid()).keys() - before.keys():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def check(found: dict[int, str], *secrets: str) -> None:
    for pid, line in found.items():
        assert not [each for each in secrets if each in line], line
        with suppress(OSError):  # it may have ended by now
            assert f"{GIVEN_URL}={URL}" in environment(pid)


async def test_the_workers_of_a_pool(program: Path) -> None:
    place = Place(pool="mill", id="mill-0", slots=1, queues=None, capabilities=())
    worker = await Subprocesses("shop:hf", ["--url", URL]).launch(place)
    check(started(os.getpid(), "worker shop:hf"), PASSWORD)
    worker.kill()
    await worker.ended()


@pytest.mark.long
def test_the_workers_of_a_command(program: Path) -> None:
    typed = [sys.executable, "-m", "holdfast", "worker", "shop:hf", "--processes", "2", f"--url={URL}"]
    with subprocess.Popen(typed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=program) as parent:
        try:
            check(started(parent.pid, "--part"), PASSWORD)
        finally:
            for pid in children(parent.pid):
                os.kill(pid, signal.SIGKILL)
            parent.kill()


def test_the_worker_that_restarts_when_code_changes(program: Path) -> None:
    with running([sys.executable, "-m", "holdfast", "worker", "shop:hf", "--leash", "--url", URL]) as child:
        check(started(os.getpid(), "worker shop:hf"), PASSWORD)
        child.kill()
        assert child.stdin is not None
        child.stdin.close()


def test_a_machine_in_a_process_of_its_own(program: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the log says what it was given."""
    caplog.set_level("INFO", logger="holdfast.flatagents")
    SubprocessInvoker(url=URL).launch("still", {"token": "hunter3"})
    check(started(os.getpid(), "holdfast.machines.run"), PASSWORD, "hunter3")
    assert "plays --machine" in caplog.text
    assert not {PASSWORD, "hunter3"} & set(caplog.text.replace('"', " ").split())


def test_the_line_of_cron(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has a password is in a file that only this user reads, and goes with the line."""
    table, cron = program / "table", program / "crontab"
    cron.write_text(f'#!/bin/sh\nif [ "$1" = -l ]; then cat {table}; else cat > {table}; fi\n')
    cron.chmod(0o755)
    table.touch()
    (program / "trigger_registry.yml").write_text(
        "triggers:\n  - {name: a, type: cron, schedule: '* * * * *', machine: still}\n"
    )
    monkeypatch.setenv("PATH", str(program), prepend=":")
    monkeypatch.setenv("FLATAGENTS_BACKENDS", '{"work": "redis://:hunter3@localhost/0"}')
    before = os.umask(0)
    try:
        assert CliRunner().invoke(command, ["install", "--url", URL]).exit_code == 0
    finally:
        os.umask(before)
    (line,) = table.read_text().splitlines()
    assert PASSWORD not in line
    assert "hunter3" not in line
    words = shlex.split(line)
    secrets = Path(words[words.index("--secrets") + 1])
    assert (secrets.stat().st_mode & 0o777, PASSWORD in secrets.read_text()) == (0o600, True)
    monkeypatch.delenv("FLATAGENTS_BACKENDS")
    ticked = CliRunner().invoke(command, words[words.index("tick") : words.index("#")])
    assert "127.0.0.1" in str(ticked.exception), "it asks the database that the file names"
    assert CliRunner().invoke(command, ["remove"]).exit_code == 0
    assert not secrets.exists()
