"""The processes of a chaos test: started here, signalled and ended by pid, their output kept.

None outlives the test, however that ends: a guard process waits for the test process to close its pipe or die,
and kills what is left, after it has made sure that the pid still belongs to this crew.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.apps import PATIENCE, eventually
from tests.support.commands import start
from tests.support.warm import WarmProcess

ROOT = Path(__file__).parents[2]
APP = "tests.chaos.jobs:hf"
NO_CHANGES: Mapping[str, str] = {}

GUARD = r"""
read -r _
while read -r pid; do
    if { tr '\0' ' ' <"/proc/$pid/cmdline"; cat "/proc/$pid/comm"; } 2>/dev/null | grep -qF "$1"; then
        kill -KILL "$pid"
    fi
done <"$2"
"""


class Member:
    """One process, and what it wrote."""

    def __init__(self, process: WarmProcess, log: Path) -> None:
        self._process = process
        self._log = log
        self.pid = process.pid

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9, and wait until the process is gone."""
        self._process.kill()
        self._process.wait(PATIENCE)

    async def freeze(self) -> None:
        await freeze(self.pid)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    def say(self, line: str) -> None:
        """One line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    async def says(self, text: str) -> str:
        """Wait for `text` in the output; returns the first line that has it."""

        async def heard() -> str | None:
            for line in self.output.splitlines():
                if text in line:
                    return line
            assert self.running, f"ended with {self._process.returncode} before it said {text!r}:\n{self.output}"
            return None

        line = await eventually(heard)
        assert line is not None
        return line

    async def leaves(self) -> int:
        """Wait for the end; returns the exit code."""
        code = await asyncio.to_thread(self._process.wait, PATIENCE)
        self._close()
        return code

    def end(self) -> None:
        if self.running:
            self.kill()
        self._close()

    def _close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()


class Crew:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.mark = f"crew-{secrets.token_hex(4)}"  # what every process is known by
        self._pids = folder / "pids"
        self._pids.touch()
        self._members: list[Member] = []
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "guard", self.mark, self._pids],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def worker(self, url: str, *options: str, app: object = APP, **settings: object) -> Member:
        """`holdfast worker` on an app of these tests."""
        changes = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        return self.start("holdfast", "worker", str(app), "--url", url, "--name", self.mark, *changes, *options)

    def script(self, module: str, *arguments: object) -> Member:
        """A module of this folder, run as a program."""
        return self.start(f"tests.chaos.{module}", *(str(argument) for argument in arguments), self.mark)

    def start(self, module: str, *arguments: str, environment: Mapping[str, str] = NO_CHANGES) -> Member:
        log = self._folder / f"{len(self._members)}-{module}.log"
        if arguments[:1] in {("worker",), ("pool",)}:
            arguments = (*arguments, "--log-level", "info")  # tests wait for what it says
        with log.open("w") as output:
            process = start(
                *("-m", module, *arguments),
                cwd=ROOT,
                env={**_without_settings(os.environ), **environment},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                start_new_session=True,
                title=self.mark,
            )
        self.watch(process.pid)
        member = Member(process, log)
        self._members.append(member)
        return member

    def watch(self, pid: int) -> None:
        """Let nothing outlive the test that a member started in its turn."""
        with self._pids.open("a") as pids:
            pids.write(f"{pid}\n")

    def kill(self, pid: int) -> None:
        """kill -9 for a process that a member started, which must be watched."""
        assert str(pid) in self._pids.read_text().split()
        os.kill(pid, signal.SIGKILL)

    def report(self) -> str:
        """What everybody wrote, for the report of a failed test."""
        return "\n".join(f"--- pid {member.pid}\n{member.output[-4000:]}" for member in self._members)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self._members:
            member.end()
        self._guard.communicate()


def _without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith("HOLDFAST_")}


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has installed a handler for this signal."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, mask = line.partition(":")
        if name == "SigCgt":
            return bool(int(mask, 16) >> (number - 1) & 1)
    return False


async def freeze(pid: int) -> None:
    """SIGSTOP, and wait until the process has stopped, with all its threads: the last may still write for a while."""
    os.kill(pid, signal.SIGSTOP)

    async def is_stopped() -> bool:
        return _threads_do(pid) <= {"T", ""}

    await eventually(is_stopped)


def state_of(pid: int) -> str:
    """The kernel's letter for what a process does: T when it is stopped; "" when it is gone."""
    return _letter(Path(f"/proc/{pid}/stat"))


def _threads_do(pid: int) -> set[str]:
    return {_letter(folder / "stat") for folder in Path(f"/proc/{pid}/task").iterdir()}


def _letter(stat: Path) -> str:
    try:
        text = stat.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return text.rpartition(")")[2].split()[0]
