"""The `holdfast` command as a person runs it: a process, its words, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE = 100.0  # seconds after which a command counts as hung; no test depends on being faster


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


def holdfast(*words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Said:
    return python("-m", "holdfast", *words, cwd=cwd, env=env)
