"""`holdfast pool`: as many worker processes as there is work for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal

import click

from holdfast.app import Holdfast, core_of
from holdfast.cli.introduction import always_show, say
from holdfast.cli.logs import LogFormat, log_format_option, log_level_option, set_up
from holdfast.cli.options import changed, set_option, url_option
from holdfast.cli.target import app_argument, app_with_code, database_label
from holdfast.cli.worker import LOOPS, names_in
from holdfast.errors import UsageError
from holdfast.pools.launchers import Subprocesses
from holdfast.pools.pool import Pool
from holdfast.pools.size import WorkerPool
from holdfast.settings import warn_of_unknown_variables
from holdfast.text import plural
from holdfast.threads import StopNotice, again, workers_awaited

log = logging.getLogger("holdfast.cli.worker")


@click.command()
@click.argument("target", metavar="[MODULE:APP]", required=False)
@click.option("--name", default="default", show_default=True, help="Name of the pool; processes may share it.")
@click.option("--min", "least", type=int, default=1, show_default=True, help="Fewest workers; 0: none without work.")
@click.option("--max", "most", type=int, default=4, show_default=True, help="Most workers.")
@click.option(
    "--scale-up-threshold", type=int, default=5, show_default=True, help="Grow when so many jobs can be claimed."
)
@click.option("--scale-down-idle", default="300s", show_default=True, help="How long an unneeded worker may be idle.")
@click.option("--slots", type=int, help="How many jobs each worker runs at once; default: the setting concurrency.")
@click.option("--boot", default="60s", show_default=True, help="How long a worker may take to start.")
@click.option("--queues", help="Only these queues, separated by commas; default: every queue.")
@click.option("--capabilities", help="Extra capabilities of the workers, separated by commas.")
@url_option
@click.option("--loop", default="auto", show_default=True, type=click.Choice(LOOPS), help="Event loop of the workers.")
@log_level_option
@log_format_option
@set_option
def command(  # noqa: PLR0913, PLR0917  the options of the command
    target: str | None,
    name: str,
    least: int,
    most: int,
    scale_up_threshold: int,
    scale_down_idle: str,
    slots: int | None,
    boot: str,
    queues: str | None,
    capabilities: str | None,
    url: str | None,
    loop: str,
    log_level: str,
    log_format: LogFormat,
    changes: tuple[str, ...],
) -> None:
    """Run the jobs of the app MODULE:APP in worker processes, as many as there is work for, until you stop it.

    SIGTERM or Ctrl-C drains the workers that this process started. A second signal makes them return their jobs at
    once. If this process is killed, they drain by themselves.
    """
    policy = WorkerPool(
        min=least,
        max=most,
        scale_up_threshold=scale_up_threshold,
        scale_down_idle=scale_down_idle,
        slots=slots,
        boot=boot,
        queues=names_in(queues),
        capabilities=names_in(capabilities) or (),
    )
    set_up(log_level, log_format)
    always_show()
    warn_of_unknown_variables()
    app = app_with_code(target, url, answers=False)
    app.settings = changed(app.settings, changes)
    if not core_of(app).registry.definitions:
        raise UsageError("this app declares no jobs; decorate a function with @hf.job.")
    passed = ["--loop", loop, "--log-level", log_level, "--log-format", log_format]
    passed += ["--url", url] if url else []
    passed += [word for change in changes for word in ("--set", change)]
    pool = Pool(core_of(app), name, policy, Subprocesses(target or app_argument(), passed))
    asyncio.run(keep(app, pool))


async def keep(app: Holdfast, pool: Pool) -> None:
    """Keep a pool until a signal, then drain it; a second signal hands back at once."""
    keeping = asyncio.create_task(pool.run(started=lambda: _introduce(app, pool)), name="pool")
    signals = 0
    notice = StopNotice(lambda: workers_awaited(pool.size), repeats=False, say=say)

    def stop(number: int) -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            notice.begin(again(number), app.settings.drain_grace.total_seconds())
            keeping.cancel()
        elif signals == 2:
            notice.hurry()
            pool.hurry()
        else:
            os._exit(130)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    with contextlib.suppress(asyncio.CancelledError):
        await keeping
    await app.close()


def _introduce(app: Holdfast, pool: Pool) -> None:
    policy, where = pool.policy, database_label(app.settings)
    log.info(
        "pool %s keeps %d to %s with %s slots each on %s",
        *(pool.name, policy.min, plural(policy.max, "worker"), policy.slots, where),
        extra={"pool": pool.name, "min": policy.min, "max": policy.max, "slots": policy.slots},
    )
