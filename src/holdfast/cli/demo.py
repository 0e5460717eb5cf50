"""`holdfast demo`: three workers, one killed with -9 in the middle, and every job finished all the same."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click

from holdfast.cli.demo_jobs import STEPS, hf, picture
from holdfast.kernel.records import JobRow
from holdfast.kernel.states import TERMINAL, State

_JOBS = 60
_WORKERS = 3
_SLOTS = 4
_BAR = 40


@click.command()
@click.option("--url", help="Database to use; default: a SQLite file that is thrown away.")
def command(url: str | None) -> None:
    """Watch jobs survive the death of their worker."""
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        hf.url = url or f"sqlite:///{Path(folder) / 'demo.db'}"
        crew: list[subprocess.Popen[bytes]] = []
        try:
            asyncio.run(Demo(Path(folder), crew).play())
        finally:
            for process in crew:
                _end(process)


class Demo:
    def __init__(self, folder: Path, crew: list[subprocess.Popen[bytes]]) -> None:
        self._witness = folder / "witness.txt"
        self._witness.touch()
        self._log = folder / "workers.log"
        self._crew = crew

    async def play(self) -> None:
        await hf.migrate()
        click.echo(f"database   {hf.url}")
        begun = time.monotonic()
        jobs = await picture.enqueue_many({"number": n, "witness": str(self._witness)} for n in range(_JOBS))
        click.echo(f"enqueued   {len(jobs)} jobs of {len(STEPS)} steps: committed before any worker exists")
        for _ in range(_WORKERS):
            self._crew.append(self._start_worker())
        pids = ", ".join(str(process.pid) for process in self._crew)
        click.echo(f"started    {_WORKERS} workers with {_SLOTS} slots each: pids {pids}")
        await self._watch(until=_JOBS // 3)
        victim = self._crew[0]
        held = await self._held_by(victim.pid)
        victim.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        self._say(f"kill -9    worker {victim.pid}, in the middle of {held} jobs")
        rows = await self._watch(until=_JOBS)
        rescued = [row for row in rows if row.rescues]
        self._report(rows, rescued, killed, begun)
        await hf.close()

    def _start_worker(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "holdfast", "worker", "holdfast.cli.demo_jobs:hf"]
        options = ["--url", hf.url, "--concurrency", str(_SLOTS), "--log-level", "warning", "--set", "prefetch=0"]
        with self._log.open("ab") as log:
            return subprocess.Popen([*command, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    async def _watch(self, *, until: int) -> list[JobRow]:
        """Draw progress until so many jobs have ended."""
        while True:
            rows = list(await hf.jobs.list(limit=_JOBS))
            states = Counter(row.state for row in rows)
            ended = sum(count for state, count in states.items() if state in TERMINAL)
            self._draw(ended, states[State.RUNNING])
            if ended >= until:
                return rows
            if all(process.poll() is not None for process in self._crew):
                raise click.ClickException(f"every worker ended:\n{self._log.read_text()}")
            await asyncio.sleep(0.1)

    @staticmethod
    def _draw(ended: int, running: int) -> None:
        if sys.stdout.isatty():
            filled = ended * _BAR // _JOBS
            bar = "#" * filled + "." * (_BAR - filled)
            click.echo(f"\r[{bar}] {ended}/{_JOBS} done, {running} running ", nl=False)

    @staticmethod
    def _say(text: str) -> None:
        """A line of its own, in place of the progress bar."""
        click.echo(f"\r{text:<{_BAR + 30}}" if sys.stdout.isatty() else text)

    async def _held_by(self, pid: int) -> int:
        return sum(worker.leases for worker in await hf.workers.list() if worker.pid == pid)

    def _report(self, rows: list[JobRow], rescued: list[JobRow], killed: float, begun: float) -> None:
        done = sum(row.state == State.SUCCEEDED for row in rows)
        lines = Counter(line.rsplit(" ", 1)[0] for line in self._witness.read_text().splitlines())
        missing = _JOBS * len(STEPS) - len(lines)
        again = sum(count - 1 for count in lines.values())
        taken = time.monotonic() - begun
        self._say(f"finished   {done} of {_JOBS} jobs succeeded, {taken:.1f} s after the first was enqueued")
        click.echo(f"rescued    {len(rescued)} jobs of the dead worker, finished by the others")
        click.echo(f"witness    {len(lines)} steps seen from outside: {missing} missing, {again} repeated")
        click.echo("           (a step cut off before it was stored runs again; a stored one never does)")
        if done != _JOBS or missing or again > len(rescued):
            raise click.ClickException("the demo did not end as it should; please report this.")
        click.echo(f"nothing was lost, {time.monotonic() - killed:.1f} s after the kill")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
        return
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
