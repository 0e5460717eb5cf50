"""`holdfast triggers`: run what is due, and let cron do so every minute."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from holdfast.cli.machine import bind_option
from holdfast.cli.options import url_option
from holdfast.cli.target import find, program_for, settings_of
from holdfast.errors import UsageError
from holdfast.facades.flatagents.environment import BACKENDS, named_backends, take_environment
from holdfast.facades.flatagents.triggers import Triggers, read_triggers
from holdfast.kernel.drivers.addresses import without_password
from holdfast.machines.run import import_hooks, named_pair
from holdfast.pools.launchers import without_url
from holdfast.settings import GIVEN_URL
from holdfast.text import plural

_MARK = "# holdfast triggers"
_PASSWORD = re.compile(r"//[^/\s\"]*:[^/\s\"]*@|password")
file_argument = click.argument("file", type=click.Path(dir_okay=False), default="trigger_registry.yml")


def _read_secrets(_context: click.Context, _option: click.Parameter, file: str | None) -> None:
    if file is not None:
        take_environment(Path(file))


@click.group()
def command() -> None:
    """Run the machines that triggers start, and let cron do so."""


@command.command()
@file_argument
@click.option("--hooks", "hooks", multiple=True, metavar="MODULE:OBJECT", help="The hooks of the machines.")
@bind_option
@click.option(
    "--secrets",
    type=click.Path(exists=True, dir_okay=False),
    callback=_read_secrets,
    expose_value=False,
    is_eager=True,
    help="The file in which `install` put what has a password.",
)
@url_option
def tick(file: str, hooks: Sequence[str], bound: Sequence[str], url: str | None) -> None:
    """Run what is due and start the processes that are missing, then exit. At one time, twice runs once."""
    app = program_for(url)
    imported = import_hooks(hooks)
    made = imported[0]() if imported else None
    triggers = Triggers(file, app=app, hooks=made, machines=dict(map(named_pair, bound)))

    async def ticking() -> None:
        try:
            await triggers.tick()
        finally:
            await app.close()

    asyncio.run(ticking())


@command.command()
@file_argument
@click.option("--hooks", "hooks", multiple=True, metavar="MODULE:OBJECT", help="The hooks of the machines.")
@bind_option
@url_option
def install(file: str, hooks: Sequence[str], bound: Sequence[str], url: str | None) -> None:
    """Let your crontab run `holdfast triggers tick` every minute; again, it changes that line.

    The line names the app, the database and the backends that this command finds: cron has no environment of yours.
    """
    count, path = len(read_triggers(file)), Path(file).absolute()
    options = [part for each in hooks for part in ("--hooks", each)]
    options += [part for each in bound for part in ("--bind", each)]
    options += _found_again(url)
    options, secrets = _without_secrets(options, path)
    tick = shlex.join([sys.executable, "-m", "holdfast", "triggers", "tick", str(path), *options])
    told = "" if secrets else _environment()
    line = f"* * * * * cd {shlex.quote(str(Path.cwd()))} && {told}{tick} {_MARK} {path}".replace("%", "\\%")
    _write([*_other_lines(path), line])
    click.echo(f"{plural(count, 'trigger')} of {file}: cron looks every minute")


@command.command()
@file_argument
def remove(file: str) -> None:
    """Take the line out of your crontab."""
    path = Path(file).absolute()
    _write(_other_lines(path))
    path.with_name(f".{path.name}.secrets").unlink(missing_ok=True)
    click.echo(f"cron does not look at {file} any more")


def _found_again(url: str | None) -> list[str]:
    """What tick is told, so that it works on what this command would work on."""
    found = find(url)
    if found.app and found.named_by not in ("--app", "HOLDFAST_APP"):
        return []  # it stands in pyproject.toml, and tick looks there too
    app = ["--app", found.app] if found.app else []
    return [*app, "--url", settings_of(found).url]


def _without_secrets(options: Sequence[str], path: Path) -> tuple[list[str], bool]:
    """The options for a line of cron, which everybody can read while it runs; whether there was a secret in them.

    What has a password goes into a file that only this user reads, beside the registry. The line names that file.
    """
    shown, url = without_url(options)
    backends = named_backends()
    told = {GIVEN_URL: url, BACKENDS: backends}
    if (url is None or without_password(url) == url) and (backends is None or _PASSWORD.search(backends) is None):
        return list(options), False
    file = path.with_name(f".{path.name}.secrets")
    with open(file, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as made:
        os.fchmod(made.fileno(), 0o600)
        json.dump({name: value for name, value in told.items() if value is not None}, made)
    return [*shown, "--secrets", str(file)], True


def _environment() -> str:
    backends = named_backends()
    return "" if backends is None else f"{BACKENDS}={shlex.quote(backends)} "


def _other_lines(path: Path) -> list[str]:
    listed = _crontab("-l")
    lines = listed.stdout.splitlines() if listed.returncode == 0 else []
    return [line for line in lines if not line.endswith(f"{_MARK} {path}")]


def _write(lines: Sequence[str]) -> None:
    written = _crontab("-", "".join(f"{line}\n" for line in lines))
    if written.returncode:
        raise UsageError(f"crontab refused it: {written.stderr.strip()}")


def _crontab(option: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["crontab", option], input=text, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UsageError("there is no crontab here: let another scheduler run `holdfast triggers tick`.") from None
