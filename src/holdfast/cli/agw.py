"""`holdfast agw`: the Unix-tool worker. It needs no database, only the gateway's address and a key."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click

from holdfast.agw.execution import CARD_CAP, UnixTools, find_text_tools, find_tools, read_card
from holdfast.agw.link import GatewayAddress
from holdfast.agw.processes import ProcessLimits, ToolCall, hide_from_tools, run_tool
from holdfast.agw.worker import AgwWorker, WorkerOptions
from holdfast.cli.introduction import always_show, say
from holdfast.cli.logs import LogFormat, set_up
from holdfast.clock import Ports
from holdfast.errors import UsageError
from holdfast.threads import StopNotice, again, jobs_awaited

log = logging.getLogger("holdfast.agw")

_DESCRIBE_SECONDS = 10


@click.command()
@click.option("--connect", default="127.0.0.1:6380", show_default=True, metavar="HOST:PORT", help="The gateway.")
@click.option("--unix", type=click.Path(path_type=Path), help="The gateway's Unix socket, instead of --connect.")
@click.option("--tls", is_flag=True, help="Connect with TLS.")
@click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Certificates to trust instead of the system's; with TLS.",
)
@click.option("--key-env", default="HOLDFAST_AGW_KEY", show_default=True, metavar="NAME", help="Variable with the key.")
@click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the key, instead of a variable.",
)
@click.option("--id", "worker_id", help="Worker id; default: worker-HOSTNAME.")
@click.option(
    "--tools",
    help="Tools that plans may use, as sort,uniq,grep: found on PATH at start. Default: the usual text tools that are "
    "there, without those that can write files or run programs, as sort and uniq.",
)
@click.option("--units", default="", help="Agentic units: tools that answer --describe with a card.")
@click.option("--queues", default="ready", show_default=True, help="Queues to take jobs from, the first first.")
@click.option("--max-jobs", default=1, show_default=True, type=click.IntRange(1, 1_000), help="Jobs at once.")
@click.option("--tag", "tags", multiple=True, metavar="NAME=VALUE", help="A tag, by which actions choose workers.")
@click.option(
    "--sandbox",
    type=click.Choice(["auto", "bwrap", "none"]),
    default="auto",
    show_default=True,
    help="bwrap: tools run in bubblewrap; auto: where that works; none: without a sandbox.",
)
@click.option(
    "--show",
    "shown",
    multiple=True,
    type=click.Path(exists=True, resolve_path=True),
    metavar="PATH",
    help="What tools may read in the sandbox besides the system's programs.",
)
@click.option("--drain", default=300.0, show_default=True, help="Seconds that jobs may take after SIGTERM.")
@click.option("--log-level", default="info", show_default=True, help="debug, info, warning or error.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", help="How log lines look.")
def command(  # noqa: PLR0913, PLR0917  the options of the command
    connect: str,
    unix: Path | None,
    tls: bool,
    ca: Path | None,
    key_env: str,
    key_file: Path | None,
    worker_id: str | None,
    tools: str | None,
    units: str,
    queues: str,
    max_jobs: int,
    tags: tuple[str, ...],
    sandbox: str,
    shown: tuple[str, ...],
    drain: float,
    log_level: str,
    log_format: LogFormat,
) -> None:
    """Run plans of Unix tools for a gateway, without a shell. SIGTERM or Ctrl-C lets the jobs under way
    finish; a second one hands them back at once.
    """
    set_up(log_level, log_format)
    always_show()
    hide_from_tools()
    key = _key(key_env, key_file)
    host, separator, port = connect.rpartition(":")
    if not separator or not port.isdigit():
        raise UsageError(f"--connect must be HOST:PORT; got {connect!r}.")
    options = WorkerOptions(
        GatewayAddress(host.strip("[]"), int(port), tls or ca is not None, ca, unix),
        key,
        worker_id or f"worker-{socket.gethostname()}"[:64].replace(".", "-"),
        queues=_names(queues),
        max_jobs=max_jobs,
        tags=dict(_tag(each) for each in tags),
        drain_seconds=drain,
    )
    if unix is not None and (tls or ca is not None):
        raise UsageError("--unix takes neither --tls nor --ca: a Unix socket does not leave this machine.")
    _check_trust(ca)
    chosen = find_text_tools() if tools is None else find_tools(_names(tools))
    if tools is None:
        log.info("without --tools plans may use %s", ", ".join(chosen) or "nothing: none of the text tools is on PATH")
    asyncio.run(_work(options, chosen, _names(units), sandbox, shown))


async def _work(
    options: WorkerOptions, tools: Mapping[str, str], units: tuple[str, ...], sandbox: str, shown: tuple[str, ...]
) -> None:
    ports = Ports()
    paths = {**tools, **find_tools(units)}
    limits = await _limits(sandbox, shown, ports)
    cards = {unit: await _describe(unit, paths[unit], limits, ports) for unit in units}
    worker = AgwWorker(options, UnixTools(paths, units, cards), limits, ports)
    signals = 0
    notice = StopNotice(lambda: jobs_awaited(worker.active), say=say)

    def stop(number: int) -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            notice.begin(again(number), options.drain_seconds)
            worker.stop()
        elif signals == 2:
            notice.hurry()
            worker.hurry()
        else:
            os._exit(130)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    await worker.run()


async def _describe(unit: str, path: str, limits: ProcessLimits, ports: Ports) -> object:
    with tempfile.TemporaryDirectory(prefix="holdfast-agw-") as folder:
        call = ToolCall(path, ["--describe"], None, Path(folder), _DESCRIBE_SECONDS)
        return read_card(unit, (await run_tool(call, limits, ports.clock)).stdout[:CARD_CAP])


def _check_trust(ca: Path | None) -> None:
    """A file without certificates would look like a gateway that is away, for ever."""
    try:
        ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as problem:
        raise UsageError(f"the certificates {ca} cannot be used: {problem}.") from problem


def _key(variable: str, file: Path | None) -> str:
    if file is not None:
        key = file.read_text("utf-8").strip()
        if not key:
            raise UsageError(f"{file} is empty; it holds the worker's key.")
        return key
    if not (key := os.environ.pop(variable, "")):
        raise UsageError(f"the environment variable {variable} is not set; it holds the worker's key.")
    return key


async def _limits(wanted: str, shown: tuple[str, ...], ports: Ports) -> ProcessLimits:
    """With bubblewrap where it works. A worker that must have it does not start without; another says why not."""
    if wanted == "none":
        return ProcessLimits()
    limits = ProcessLimits(sandbox=shutil.which("bwrap"), shown=shown)
    if limits.sandbox is None:
        why = "needs bubblewrap, and there is no bwrap on PATH"
    elif (said := await _try_sandbox(limits, ports)) is not None:
        why = f"does not work on this system: {said}"
    else:
        return limits
    if wanted == "bwrap":
        raise UsageError(f"--sandbox bwrap {why}.")
    log.warning("tools have no sandbox, and can read and change what this user can: --sandbox bwrap %s", why)
    return ProcessLimits()


async def _try_sandbox(limits: ProcessLimits, ports: Ports) -> str | None:
    """Why every job would fail in it, if so: a system may forbid namespaces."""
    with tempfile.TemporaryDirectory(prefix="holdfast-agw-") as folder:
        call = ToolCall(find_tools(["true"])["true"], [], None, Path(folder), _DESCRIBE_SECONDS)
        tried = await run_tool(call, limits, ports.clock)
    if tried.exit_code == 0:
        return None
    return tried.stderr.decode(errors="replace").strip().partition("\n")[0] or f"exit code {tried.exit_code}"


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _tag(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise UsageError(f"--tag must be NAME=VALUE; got {text!r}.")
    return name, value
