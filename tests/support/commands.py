"""The `holdfast` command as a person runs it: a process, its words, its exit code."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tests.support.warm import WarmProcess, begin

PROGRAMS_IMPORT = ("tests.support.preloaded",)
PYTHON_READS = ("PYTHONPATH", "PYTHONWARNINGS", "PYTHONUNBUFFERED")
PATIENCE = 250.0  # seconds after which a command counts as hung; no test depends on being faster


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        assert self.code == 0, self
        return self.out.splitlines()

    def refused(self, code: int) -> str:
        """The one line that says what is wrong and what to do."""
        assert self.code == code, self
        assert "Traceback" not in self.err, self
        (line,) = self.err.splitlines()
        assert line.startswith("holdfast: "), self
        return line.removeprefix("holdfast: ")


def environment(**changes: str) -> dict[str, str]:
    """Ours, without what would set Holdfast up in another way."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return {**kept, **changes}


def run(command: list[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Said:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=dict(env or environment()),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def python(*words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Said:
    return run([sys.executable, *words], cwd=cwd, env=env)


def start(*words: str, env: Mapping[str, str] | None = None, **options: Any) -> WarmProcess:
    """`subprocess.Popen` of Python with a file, or `-m` and a module, in a process that was warmed up."""
    return begin(*words, preload=PROGRAMS_IMPORT, env=env or environment(), **options)


def program(*words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, typed: str = "") -> Said:
    """What a process of `start` has said, once it has ended. It reads what is typed."""
    reads = subprocess.PIPE if typed else subprocess.DEVNULL
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start(*words, cwd=cwd, env=env, stdin=reads, stdout=out, stderr=err)
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError), process.stdin as stdin:  # it may have ended, and read nothing
                stdin.write(typed.encode())
        try:
            return Said(process.wait(PATIENCE), *(_read(file) for file in (out, err)))
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def holdfast(*words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, typed: str = "") -> Said:
    """`python -m holdfast` in a process that was warmed up, unless the environment sets Python itself up."""
    chosen = dict(env or environment())
    if any(chosen.get(name) != os.environ.get(name) for name in PYTHON_READS):
        assert not typed
        return cold_holdfast(*words, cwd=cwd, env=chosen)
    return program("-m", "holdfast", *words, cwd=cwd, env=chosen, typed=typed)


def cold_holdfast(*words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Said:
    """The same from its very start; for tests of that start."""
    return python("-m", "holdfast", *words, cwd=cwd, env=env)


def _read(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode()
