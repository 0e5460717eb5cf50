"""`holdfast worker`: a worker process, or several under one parent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import ModuleType

import click

from holdfast.app import Holdfast, core_of
from holdfast.cli.introduction import (
    ProcessNumber,
    always_show,
    introduce,
    say,
    say_goodbye,
    say_ready,
    which,
)
from holdfast.cli.logs import LogFormat, log_format_option, log_level_option, name_worker, set_up
from holdfast.cli.options import changed, set_option, url_option
from holdfast.cli.target import app_with_code, require_app
from holdfast.errors import MissingExtra, UsageError
from holdfast.pools.launchers import KeptProcess, supervise
from holdfast.pools.leash import ChildEnd, Drain
from holdfast.settings import warn_of_unknown_variables
from holdfast.threads import StopNotice, again, jobs_awaited, workers_awaited
from holdfast.validation import did_you_mean
from holdfast.workers.role import Role, Until

# The event loop of a worker process: uvloop where it is installed, else asyncio's own.
#
# Only `holdfast worker` chooses. A worker in somebody's program runs on the loop of that program.


log = logging.getLogger("holdfast.worker")

LOOPS = ("auto", "asyncio", "uvloop")


def loop_factory(wanted: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the wanted loop, one of `LOOPS`; None is asyncio's own. `MissingExtra` when it is not installed."""
    uvloop = None if wanted == "asyncio" else _uvloop()
    if uvloop is None:
        if wanted == "uvloop":
            raise MissingExtra("fast", "--loop uvloop")
        log.info("this worker runs on asyncio's own event loop")
        return None
    log.info("this worker runs on uvloop %s", uvloop.__version__)
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _uvloop() -> ModuleType | None:
    try:
        import uvloop
    except ImportError:  # also one that is installed for another Python: a worker works without it
        return None
    found: ModuleType = uvloop
    return found


_ALONE = "1/1"  # the part of a worker that no parent with --processes has started


@click.command()
@click.argument("target", metavar="[MODULE:APP]", required=False)
@click.option("--queues", help="Only these queues, separated by commas; default: every queue.")
@click.option("--agents", help="Serve only these agents, separated by commas; default: every agent it can serve.")
@click.option("--capabilities", help="Extra capabilities of this worker, separated by commas.")
@click.option("--concurrency", type=click.IntRange(1, 10_000), help="How many jobs each process runs at once.")
@click.option("--processes", type=click.IntRange(1, 512), default=1, show_default=True, help="How many processes.")
@click.option("--name", default="", help="Name of this worker; others may share it; default: the host name.")
@click.option("--id", "worker_id", default="", help="Id of this worker, such as a pod's name; default: a new one.")
@click.option("--once", is_flag=True, help="Run one job, if there is one, and exit.")
@click.option("--until-empty", is_flag=True, help="Exit when there are no more jobs to claim.")
@click.option("--poll-interval", help="Pause between polls for work, such as 500ms.")
@url_option
@click.option(
    "--loop",
    default="auto",
    show_default=True,
    type=click.Choice(LOOPS),
    help="Event loop; auto: uvloop if it is installed, by the extra fast for example.",
)
@log_level_option
@log_format_option
@click.option("--part", hidden=True, default=_ALONE, help="Which of several processes this is.")
@click.option("--pool", hidden=True, default="", help="The pool in which a place was opened for this worker.")
@click.option("--leash", is_flag=True, hidden=True, help="Drain when standard input closes: the parent is gone.")
@set_option
def command(  # noqa: PLR0913, PLR0917  the options of the command
    target: str | None,
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
    log_format: LogFormat,
    part: str,
    pool: str,
    leash: bool,
    changes: tuple[str, ...],
) -> None:
    """Run the jobs of the app MODULE:APP until you stop it. Without MODULE:APP, --app, HOLDFAST_APP or pyproject.toml
    names the app.

    SIGTERM or Ctrl-C drains: running jobs finish or are returned to the store. A second signal stops at once.
    """
    held = ChildEnd() if leash else None
    if once and until_empty:
        raise UsageError("use either --once or --until-empty, not both.")
    set_up(log_level, log_format)
    always_show()
    warn_of_unknown_variables()
    app = app_with_code(target, url, answers=False)
    app.settings = changed(app.settings, changes)
    if concurrency is not None:
        app.settings = app.settings.override({"concurrency": str(concurrency)})
    if poll_interval is not None:
        app.settings = app.settings.override({"poll_interval": poll_interval})
    if not core_of(app).registry.definitions:
        found = require_app(url, target).app
        raise UsageError(
            f"{found!r} declares no jobs; decorate a function with @{found.partition(':')[2] or 'hf'}.job."
        )
    if part == _ALONE:  # once, not in each of several processes
        _warn_of_names(app, names_in(queues) or (), names_in(agents) or ())
    if processes > 1:  # what a child would refuse was refused above, once
        crew = [KeptProcess(number, _command(number, processes, worker_id)) for number in range(1, processes + 1)]
        sys.exit(asyncio.run(_supervise(crew, app.settings.drain_grace.total_seconds())))
    until: Until = "one" if once else "empty" if until_empty else "stopped"
    only = {} if agents is None else {"agent": names_in(agents) or ()}
    role = Role(name, worker_id, names_in(queues), names_in(capabilities) or (), until, only, pool)
    with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
        runner.run(serve(app, role, ProcessNumber(*map(int, part.split("/"))), held))
        # Not closed: a handler or a thread that never ends must not keep a drained worker from leaving.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


async def _supervise(crew: Sequence[KeptProcess], grace: float) -> int:
    """Several workers. Each says what it waits for, this process what a second signal does."""
    notice = StopNotice(lambda: workers_awaited(sum(child.is_running for child in crew)), repeats=False, say=say)
    signals = 0

    def heard(number: int) -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            notice.begin(again(number), grace)
        elif signals == 2:
            notice.hurry()

    return await supervise(crew, heard)


async def serve(app: Holdfast, role: Role, part: ProcessNumber, held: ChildEnd | None) -> None:
    """Work until a signal, or until the parent that holds this process is gone; then drain.

    A second signal hands back at once.
    """
    await core_of(app).awaited_store()
    worker = core_of(app).make_worker(role)
    name_worker(worker.id)
    introducing, saying_ready = partial(introduce, app, role, part), partial(say_ready, part, worker.id)
    working = asyncio.create_task(worker.run(introducing, saying_ready), name="worker")
    signals, grace = 0, app.settings.drain_grace.total_seconds()

    notice = StopNotice(lambda: jobs_awaited(worker.running()), which=which(part), say=say)

    def stop(number: int | None = None) -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            notice.begin(None if held is not None or number is None else again(number), grace)
            if not worker.press():
                working.cancel()
        elif signals == 2:
            notice.hurry()
            worker.hurry()
        else:
            os._exit(130)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    if held is not None:
        held.works(Drain(loop, stop, grace))
    with contextlib.suppress(asyncio.CancelledError):
        await working
    await app.close()
    say_goodbye(worker.telemetry.tally, part)


def _warn_of_names(app: Holdfast, queues: Iterable[str], agents: Iterable[str]) -> None:
    """Say which queues and agents this app does not declare: others may, but a name may also be misspelt."""
    core = core_of(app)
    used = {*core.policies, *(definition.queue for definition in core.registry.definitions.values())}
    for option, names, known in (("--queues", queues, used), ("--agents", agents, core.defined)):
        for name in names:
            if name not in known:
                log.warning("%s %s: this app declares nothing of that name.%s", option, name, did_you_mean(name, known))


def _command(number: int, count: int, worker_id: str) -> list[str]:
    """Our own command line, for one process that watches us."""
    given = sys.argv[1:]
    kept: list[str] = []
    skip = False
    for word in given:
        if skip:
            skip = False
        elif word in ("--processes", "--id"):
            skip = True
        elif not word.startswith(("--processes=", "--id=")):
            kept.append(word)
    identity = ["--id", f"{worker_id}-{number}"] if worker_id else []
    return [sys.executable, "-m", "holdfast", *kept, "--leash", *identity, "--part", f"{number}/{count}"]


def names_in(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(name for part in text.split(",") if (name := part.strip()))
