"""`holdfast dev`: a worker in a child process that starts again whenever a Python file here changes.

The child is a worker like any other and is drained, with a short grace. It holds a pipe to us: when we die, it drains.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from holdfast.cli.target import app_option, require_app
from holdfast.pools.launchers import without_url
from holdfast.settings import environment_with

_LOOK = 0.5
_GRACE = "2s"
_LONGEST_GOODBYE = 10.0
_IGNORED = frozenset({".git", ".hg", ".venv", "venv", ".tox", ".nox", "__pycache__", "node_modules", ".holdfast"})


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("target", metavar="[MODULE:APP]", required=False)
@click.argument("options", metavar="[WORKER OPTIONS]...", nargs=-1, type=click.UNPROCESSED)
@app_option
def command(target: str | None, options: tuple[str, ...]) -> None:
    """Run a worker for MODULE:APP, and restart it when a .py file in this folder changes; Ctrl-C stops it.

    Arguments after MODULE:APP are passed to `holdfast worker`. Without MODULE:APP, --app, HOLDFAST_APP or
    pyproject.toml names the app.
    """
    given = target or ""
    if given.startswith("-"):  # an option of the worker, and no app before it
        given, options = "", (given, *options)
    found = require_app(None, given)
    named = ["--app", found.app] if found.named_by == "--app" else []  # else the worker finds it in the same place
    for number in (signal.SIGTERM, signal.SIGINT):  # the latter may have been ignored by a shell
        signal.signal(number, _interrupt)
    worker = [sys.executable, "-m", "holdfast", "worker", *named, "--leash", "--set", f"drain_grace={_GRACE}", *options]
    folder = found.folder
    with contextlib.suppress(_StopSignal):
        while True:
            seen = stamps(folder)
            with running(worker) as child:
                click.echo(f"worker {child.pid} runs {found.app}; it restarts when the code changes")
                changed = _watch(folder, seen, child)
            click.echo(f"{changed} changed")
    click.echo("stopped")


class _StopSignal(KeyboardInterrupt):
    """A signal asked us to stop."""


def _interrupt(number: int, _: object) -> None:
    raise _StopSignal(number)


def _watch(folder: Path, seen: dict[Path, float], child: subprocess.Popen[bytes]) -> Path:
    """Until a file changes; which one, seen from here."""
    said = False
    while True:
        time.sleep(_LOOK)
        now = stamps(folder)
        for path in [*now, *seen]:
            if now.get(path) != seen.get(path):
                return path.relative_to(folder)
        if child.poll() is not None and not said:
            said = True
            click.echo(f"the worker ended with {child.returncode}; it restarts when the code changes")


def stamps(folder: Path) -> dict[Path, float]:
    """When each Python file under a folder was last changed."""
    found: dict[Path, float] = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _IGNORED]
        for name in files:
            if name.endswith(".py"):
                with contextlib.suppress(OSError):  # it has just been moved away
                    found[Path(place, name)] = Path(place, name).stat().st_mtime
    return found


@contextlib.contextmanager
def running(worker: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A worker in a session of its own, so that a Ctrl-C is ours to pass on; gone at the end."""
    shown, url = without_url(worker)
    child = subprocess.Popen(shown, stdin=subprocess.PIPE, start_new_session=True, env=environment_with(url))
    try:
        yield child
    except _StopSignal as stopped:
        if child.poll() is None:
            again = "press Ctrl-C again" if stopped.args == (signal.SIGINT,) else "send SIGTERM again"
            click.echo(f"stopping the worker: its jobs have up to {_GRACE}; {again} to stop at once")
        raise
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Drain the worker. A signal meanwhile makes it hand back at once."""
    until = time.monotonic() + _LONGEST_GOODBYE
    while child.poll() is None:
        child.terminate()
        try:
            child.wait(max(0.0, until - time.monotonic()))
        except _StopSignal:
            click.echo("stopping at once")
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
