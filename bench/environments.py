"""An environment of its own for every peer, with pinned versions, made once and kept under .cache/bench."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.contenders import Contender
from bench.places import CACHE, ROOT

_LIMIT = 600


class NotRun(Exception):
    """Something cannot be measured here; the message says why. The others go on."""


def told(problem: Exception) -> str:
    """A failure in one line."""
    return str(problem) if isinstance(problem, NotRun) else f"{type(problem).__name__}: {problem}"


def python_for(contender: Contender) -> Path:
    """The interpreter that has the contender's packages; set up if it is not there yet."""
    if not contender.requires:
        return Path(sys.executable)
    return make_environment(contender.name, contender.requires) / "bin" / "python"


def make_environment(name: str, requires: tuple[str, ...]) -> Path:
    """The folder of an environment with these packages. The stamp is written last: half of one is made anew."""
    folder = CACHE / name
    stamp = folder / ".ready"
    wanted = hashlib.sha256("\n".join([sys.version, *requires]).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    run_command([sys.executable, "-m", "venv", str(folder)])
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run_command([*pip, *requires])
    stamp.write_text(wanted)
    return folder


def run_command(command: list[str]) -> None:
    """Run to the end; `NotRun` with the last line of what it said when it fails."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LIMIT,
            check=False,
            env=clean_environment(),
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise NotRun(f"{command[0]}: {problem}") from problem
    if done.returncode:
        said = [line for line in done.stdout.splitlines() if line.strip()]
        raise NotRun(f"{Path(command[0]).name} ended with {done.returncode}: {said[-1] if said else 'it said nothing'}")


def clean_environment() -> dict[str, str]:
    """Ours, without what would point a contender at another database, package or setting.

    Holdfast is that of this tree, wherever the one in the interpreter's environment stands.
    """
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(
            ("PG", "HOLDFAST_", "PROCRASTINATE_", "CELERY_", "PYTHON", "VIRTUAL_ENV", "XDG_RUNTIME_DIR")
        )
    }
    return {**ours, "PYTHONPATH": str(ROOT / "src")}
