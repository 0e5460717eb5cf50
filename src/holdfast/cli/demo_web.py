"""`holdfast demo --web`: the demo's store in the browser, with work under way and workers that a button kills."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import click

from holdfast.access.principals import Principal
from holdfast.app import core_of
from holdfast.cli.demo_agents import hf, writer
from holdfast.cli.serve import listen_on, stop_on_signals
from holdfast.errors import MissingExtra, NotFound
from holdfast.http.security.binds import LOCAL, Bind

if TYPE_CHECKING:
    import uvicorn

TOWNS = ("Kotor", "Nimes", "Porto", "Riga", "Siena", "Turku")
_WORKERS = 2
_OPEN = 3  # runs at once
_LOOK = 0.5
_LAST_WORDS = 1  # seconds that requests have when the server stops
_VISITOR = Principal("demo", "admin")


class DemoCrew:
    """The demo's worker processes. `start` adds one; there are two as long as the pages are open."""

    def __init__(self, processes: dict[int, subprocess.Popen[bytes]], start: Callable[[], None]) -> None:
        self._processes = processes
        self._start = start

    def pids(self) -> Collection[int]:
        return frozenset(pid for pid, process in self._processes.items() if process.poll() is None)

    def kill(self, pid: int) -> None:
        if pid not in self.pids():
            raise NotFound(f"process {pid} is not a live worker of this demo.")
        os.kill(pid, signal.SIGKILL)

    async def keep(self) -> None:
        while True:
            for _ in range(_WORKERS - len(self.pids())):
                self._start()
            await asyncio.sleep(_LOOK)


async def show_demo(crew: DemoCrew, journal: str, port: int) -> None:
    """Serve the pages on loopback until Ctrl-C, and keep a few runs under way."""
    core_of(hf).binding.embedded = False
    async with hf:
        with listen_on(Bind("127.0.0.1", port), socket.AF_INET) as listener:
            server = _server(crew)
            place = f"http://127.0.0.1:{listener.getsockname()[1]}"
            click.echo(f"\n{place}/login?link={await hf.access.logins.link(_VISITOR)}")
            click.echo("The link works once, for 15 minutes. The page of workers has a button that kills one with -9.")
            click.echo("Ctrl-C ends the demo.")
            helpers = [asyncio.create_task(crew.keep()), asyncio.create_task(_feed(journal))]
            stop_on_signals(server, _LAST_WORDS)
            try:
                await server._serve([listener])
            finally:
                for helper in helpers:
                    helper.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await helper


def need_web() -> None:
    """`MissingExtra` where the pages cannot be served."""
    try:
        import holdfast.http.app
        import holdfast.http.server  # noqa: F401
    except ModuleNotFoundError:
        raise MissingExtra("http", "`holdfast demo --web`") from None


def _server(crew: DemoCrew) -> uvicorn.Server:
    from holdfast.http.app import served
    from holdfast.http.security.gate import WebOptions
    from holdfast.http.server import server_for

    return server_for(served(hf, WebOptions(hosts=tuple(LOCAL), doomed=crew)), timeout_graceful_shutdown=_LAST_WORDS)


async def _feed(journal: str) -> None:
    towns = itertools.cycle(TOWNS)
    while True:
        unfinished = [run for run in await hf.runs.list(limit=20) if run.finalized_at is None]
        if len(unfinished) < _OPEN:
            await writer.enqueue(f"Write a note about {next(towns)}.", variables={"journal": journal})
        await asyncio.sleep(_LOOK)
