"""The guide to `holdfast serve`, followed by its letter: its files written, its commands typed, its curl run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.apps import PATIENCE
from tests.support.commands import environment
from tests.support.snippets import blocks

GUIDE = Path(__file__).parents[2] / "docs" / "serving.md"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class Shell:
    """Where a reader types. What is started behind `&` runs until the shell is left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        own = Path(sys.executable).parent
        self._environment = environment(PATH=f"{own}:{os.environ['PATH']}")
        self._said: list[str] = []  # variables, which every later command has
        self._running: list[subprocess.Popen[str]] = []

    def type(self, command: str) -> str:
        typed = command.replace("localhost:8000", f"localhost:{self._port}")
        if typed.startswith("pip install"):
            return ""  # `make try-wheel` does
        if typed.endswith(" &"):
            return self._start(typed.removesuffix(" &"))
        if typed.startswith(("auth=", "json=", "export ")):
            self._said.append(typed)
            return ""
        script = "\n".join([*self._said, typed.replace("curl ", "curl --silent --show-error --fail-with-body ", 1)])
        done = subprocess.run(
            ["bash", "-euc", script],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def _start(self, command: str) -> str:
        where = f" --bind 127.0.0.1:{self._port}" if " serve" in command else ""
        script = "\n".join([*self._said, f"exec {command}{where}"])
        process = subprocess.Popen(
            ["bash", "-euc", script], cwd=self._folder, env=self._environment, stdout=subprocess.PIPE, text=True
        )
        self._running.append(process)
        if " serve" in command:
            assert process.stdout is not None
            return process.stdout.readline()
        return ""

    def leave(self) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.communicate(timeout=PATIENCE)


@contextmanager
def shell(folder: Path) -> Iterator[Shell]:
    opened = Shell(folder)
    try:
        yield opened
    finally:
        opened.leave()


def commands(part: str) -> list[str]:
    typed = [block.text for block in blocks(part) if block.language == "sh"]
    return [line for text in typed for line in text.replace("\\\n", "").splitlines()]


@pytest.mark.long
@pytest.mark.slow
def test_a_new_user_follows_the_guide_with_curl(tmp_path: Path) -> None:
    page = GUIDE.read_text()
    part = page[page.index("## A server of its own") : page.index("To listen on an address")]
    (program,) = [block.text for block in blocks(part) if block.text.startswith("# app.py")]
    (tmp_path / "app.py").write_text(program)
    found: dict[str, str] = {}
    answers: dict[str, str] = {}
    with shell(tmp_path) as opened:
        for command in commands(part):
            for name, value in found.items():
                command = command.replace(name, value)  # noqa: PLW2901  as a reader does who types it
            answers[command] = answer = opened.type(command)
            if command.endswith("/inquiries"):
                answer = asked(opened, command)
            found |= noted(answer)
        (again,) = [command for command in answers if "Idempotency-Key" in command]
        assert json.loads(opened.type(again))["id"] == found["RUN"]
    told = list(answers.values())
    assert json.loads(told[-2])["text"] == "Your order A1 is refunded."
    assert told[-1].rstrip().partition("event: run_ended")[1]
    assert any('"name":"ci"' in each for each in told)


def asked(opened: Shell, command: str) -> str:
    """The answer once there is something to approve: a reader types it again."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if json.loads(answer := opened.type(command))["items"]:
            return answer
    raise AssertionError("nobody asks")


def noted(answer: str) -> dict[str, str]:
    """The ids that a reader writes down from an answer, by what the guide calls them."""
    try:
        said: Any = json.loads(answer)
    except ValueError:
        return {}
    if "agent_name" in said:
        return {"RUN": said["id"]}
    if said.get("items") and "digest" in said["items"][0]:
        return {"INQUIRY": said["items"][0]["id"], "DIGEST": said["items"][0]["digest"]}
    return {}
