"""Redis clients of other languages, at the versions that `examples/resp` pins. They are installed once, in .cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.environments import NotRun
from bench.places import ROOT

EXAMPLES = ROOT / "examples" / "resp"
CHECKS = ROOT / "tests" / "resp" / "clients"
_CACHE = ROOT / ".cache" / "stock_clients"
_LIMIT = 900


def with_node(program: Path) -> list[str]:
    """How to run a program that uses ioredis; `NotRun` where it cannot be had."""
    folder = _made("node", ["package.json", "package-lock.json"], ["npm", "ci", "--ignore-scripts", "--no-audit"])
    own = folder / str(os.getpid())  # node looks for its modules above it
    own.mkdir(exist_ok=True)
    return [_found("node"), str(shutil.copy(program, own / program.name))]


def with_go(program: Path) -> list[str]:
    """How to run a program that uses go-redis; it is built first. `NotRun` where it cannot be."""
    build = ["go", "build", "-buildvcs=false", "-mod=readonly", "-o", "program", program.name]
    return [str(_made("go", ["go.mod", "go.sum", program], build) / "program")]


def _made(language: str, files: Sequence[str | Path], command: list[str]) -> Path:
    """A folder with these files in which this command has run. Of two who make it at once, one is first."""
    named = [EXAMPLES / file for file in files]
    digest = hashlib.sha256(b"\0".join([*(file.read_bytes() for file in named), " ".join(command).encode()]))
    folder = _CACHE / f"{language}-{digest.hexdigest()[:16]}"
    if not folder.is_dir():
        _CACHE.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=_CACHE))
        try:
            for file in named:
                shutil.copy(file, fresh)
            _run(command, fresh)
            with contextlib.suppress(OSError):  # another has made it meanwhile
                fresh.rename(folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return folder


def _run(command: list[str], folder: Path) -> None:
    """`NotRun` with the last line of what it said when it fails."""
    command[0] = _found(command[0])
    env = {**os.environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    try:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=_LIMIT, check=False)
    except subprocess.TimeoutExpired as problem:
        raise NotRun(str(problem)) from problem
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise NotRun(f"{Path(command[0]).name}: {said[-1] if said else done.returncode}")


def _found(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise NotRun(f"there is no {program} on PATH")
    return path
