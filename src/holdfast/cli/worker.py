"""`holdfast worker`: a worker process, or several under one parent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable

import click

from holdfast.app import Holdfast
from holdfast.cli.loops import LOOPS, loop_factory
from holdfast.cli.options import changed, load_app, set_option
from holdfast.errors import UsageError
from holdfast.workers.role import Role, Until

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s %(message)s"


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.option("--queues", help="Only these queues, separated by commas; default: every queue.")
@click.option("--agents", help="Serve only these agents, separated by commas; default: all that it can.")
@click.option("--capabilities", help="What this worker can do beyond its handlers, separated by commas.")
@click.option("--concurrency", type=click.IntRange(1, 10_000), help="Jobs run at once in each process.")
@click.option("--processes", type=click.IntRange(1, 512), default=1, show_default=True, help="Worker processes.")
@click.option("--name", default="", help="Name of this worker, which others may share; default: the host's.")
@click.option("--id", "worker_id", default="", help="Id of this worker, such as a pod's name; default: a new one.")
@click.option("--once", is_flag=True, help="Run one job, if there is one, and leave.")
@click.option("--until-empty", is_flag=True, help="Leave when there is nothing more to claim.")
@click.option("--poll-interval", help="Pause between looks for work, such as 500ms.")
@click.option("--url", help="Database URL, in place of the app's.")
@click.option(
    "--loop",
    default="auto",
    show_default=True,
    type=click.Choice(LOOPS),
    help="Event loop; auto: uvloop if it is installed, by 'holdfast[fast]' for example.",
)
@click.option(
    "--log-level", default="info", show_default=True, type=click.Choice(["debug", "info", "warning", "error"])
)
@click.option("--leash", is_flag=True, hidden=True, help="Drain when standard input closes: the parent is gone.")
@set_option
def command(  # noqa: PLR0913, PLR0917  the options of the command
    target: str,
    queues: str | None,
    agents: str | None,
    capabilities: str | None,
    concurrency: int | None,
    processes: int,
    name: str,
    worker_id: str,
    once: bool,
    until_empty: bool,
    poll_interval: str | None,
    url: str | None,
    loop: str,
    log_level: str,
    leash: bool,
    changes: tuple[str, ...],
) -> None:
    """Run the jobs of the app that MODULE:APP names, until stopped.

    SIGTERM or Ctrl-C drains: running jobs finish or are handed back. A second one stops at once.
    """
    if once and until_empty:
        raise UsageError("--once and --until-empty exclude each other.")
    logging.basicConfig(level=log_level.upper(), format=_FORMAT)
    app = load_app(target)
    app.url = url or app.url
    app.settings = changed(app.settings, changes)
    if concurrency is not None:
        app.settings = app.settings.override({"concurrency": str(concurrency)})
    if poll_interval is not None:
        app.settings = app.settings.override({"poll_interval": poll_interval})
    if not app.registry.definitions:
        raise UsageError(
            f"{target!r} declares no jobs; decorate a function with @{target.partition(':')[2] or 'hf'}.job."
        )
    if processes > 1:  # what a child would refuse was refused above, once
        from holdfast.cli.processes import supervise

        sys.exit(asyncio.run(supervise(processes, worker_id)))
    until: Until = "one" if once else "empty" if until_empty else "stopped"
    role = Role(name, worker_id, _names(queues), _names(capabilities) or (), until, _names(agents))
    with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
        runner.run(serve(app, role, leash=leash))
        # Not closed: a handler or a thread that never ends must not keep a drained worker from leaving.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


async def serve(app: Holdfast, role: Role, *, leash: bool) -> None:
    """Work until a signal, then drain; a second signal hands back at once."""
    await app.runtime().open()
    worker = app.make_worker(role)
    working = asyncio.create_task(worker.run(), name="worker")
    signals = 0

    def stop() -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            working.cancel()
        elif signals == 2:
            worker.hurry()
        else:
            os._exit(130)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    if leash:
        _watch_parent(loop, stop)
    with contextlib.suppress(asyncio.CancelledError):
        await working
    await app.close()


def _watch_parent(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    def on_input() -> None:
        if not os.read(0, 1024):
            loop.remove_reader(0)
            stop()

    loop.add_reader(0, on_input)


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(name for part in text.split(",") if (name := part.strip()))
