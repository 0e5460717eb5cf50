"""`holdfast resp`: the Redis-protocol gateway, and the keys of its clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from holdfast.app import Holdfast, core_of
from holdfast.cli.logs import LogFormat, set_up
from holdfast.cli.options import ask, json_option, print_json, url_option
from holdfast.cli.tables import Column, Listing, print_list, wide_option
from holdfast.cli.target import app_that_creates
from holdfast.durations import duration
from holdfast.errors import UsageError
from holdfast.resp import DEFAULT_BIND, client, keys
from holdfast.resp.client import KeyPrincipal, PopForm, check_worker_id, digest_of, new_key
from holdfast.resp.keys import StoredKey
from holdfast.resp.options import RespOptions
from holdfast.resp.server import RespServer
from holdfast.values import moment

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_KEYS = Listing(
    "keys",
    "Make one with `holdfast resp keys add WORKER`.",
    (
        Column("NAME"),
        Column("WORKERS", rank=2),
        Column("QUEUES", rank=1),
        Column("TENANT", rank=3, sparse=True),
        Column("CREATED", "time"),
        Column("REVOKED", "time"),
    ),
)


@click.group(invoke_without_command=True)
@click.option(
    "--bind", metavar="HOST:PORT", help=f"Address to listen on; default: {DEFAULT_BIND}, or none if there is --unix."
)
@click.option("--unix", type=click.Path(path_type=Path), help="Unix socket to listen on, for this user alone.")
@click.option("--workers-file", type=_FILE, help="TOML file: [workers], and in it a key for each worker.")
@click.option("--shared-key-env", metavar="NAME", help="Environment variable with a key that all workers share.")
@click.option("--tls-cert", type=_FILE, help="Certificate; needed on an address that other machines reach.")
@click.option("--tls-key", type=_FILE, help="Key of the certificate.")
@click.option("--pop-form", type=click.Choice(["bulk", "array"]), default="bulk", help="How BRPOP replies by default.")
@click.option(
    "--dead-after", default="90s", show_default=True, help="How long a worker may be silent before it is dead."
)
@click.option("--log-level", default="warning", show_default=True, help="debug, info, warning or error.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", help="How log lines look.")
@url_option
@click.pass_context
def command(  # noqa: PLR0913, PLR0917  the options of the command
    ctx: click.Context,
    bind: str | None,
    unix: Path | None,
    workers_file: Path | None,
    shared_key_env: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    pop_form: PopForm,
    dead_after: str,
    log_level: str,
    log_format: LogFormat,
    url: str | None,
) -> None:
    """Serve Redis clients: any program with one can be a worker, and gets leases for it. Ctrl-C or SIGTERM stops it."""
    if ctx.invoked_subcommand is not None:
        return
    set_up(log_level, log_format)
    options = RespOptions(
        bind=bind or (DEFAULT_BIND if unix is None else None),
        unix=unix,
        principals=client.from_file(workers_file) if workers_file else (),
        shared=_shared(shared_key_env),
        tls_cert=tls_cert,
        tls_key=tls_key,
        pop_form=pop_form,
        dead_after=duration(dead_after),
    )
    app = app_that_creates(url)
    asyncio.run(_serve(app, options))


async def _serve(app: Holdfast, options: RespOptions) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(app.close)
        server = await stack.enter_async_context(RespServer(core_of(app), options))
        address = [] if options.bind is None else [f"{options.address[0]}:{server.port}"]
        where = " and ".join([*address, *([] if options.unix is None else [str(options.unix)])])
        click.echo(f"serving Redis clients on {where}; press Ctrl-C to stop")
        await stopped.wait()


def _shared(name: str | None) -> KeyPrincipal | None:
    if name is None:
        return None
    if not (key := os.environ.get(name)):
        raise UsageError(f"the environment variable {name} is not set.")
    return client.shared(key)


@command.group("keys")
def keys_group() -> None:
    """Add, list and revoke the keys of clients."""


@keys_group.command("add")
@click.argument("name")
@click.option("--worker", "workers", multiple=True, help="A worker id that it may register; default: NAME. * is any.")
@click.option("--queue", "queues", multiple=True, help="A queue that it may use; default: all.")
@click.option("--command", "commands", multiple=True, help="A command that it may call; default: all.")
@click.option("--tenant", default="", help="Whose plans, actions and data it sees; default: nobody's.")
@url_option
@json_option
def add(  # noqa: PLR0917  the options of the command
    name: str,
    workers: tuple[str, ...],
    queues: tuple[str, ...],
    commands: tuple[str, ...],
    tenant: str,
    url: str | None,
    as_json: bool,
) -> None:
    """Make a key for the worker NAME, and print it. It is shown once: only its digest is stored."""
    check_worker_id(name)
    key = new_key()
    limits: dict[str, Any] = {"queues": queues or None, "commands": tuple(map(str.upper, commands)) or None}
    principal = KeyPrincipal(name, digest_of(key.encode()), workers or (name,), **limits, tenant=tenant)

    async def store(app: Holdfast) -> None:
        await core_of(app).runtime().database.transact(keys.add_key, principal)

    ask(url, store, creates=True)
    print_json({"name": name, "key": key}) if as_json else click.echo(key)


@keys_group.command("ls")
@click.option("--all", "revoked_too", is_flag=True, help="Revoked keys too.")
@url_option
@wide_option
@json_option
def listed(revoked_too: bool, url: str | None, wide: bool, as_json: bool) -> None:
    """List the keys, without the keys themselves."""

    async def question(app: Holdfast) -> list[StoredKey]:
        return await core_of(app).runtime().database.transact(keys.show_keys, all=revoked_too)

    if as_json:
        print_json([_as_json(each) for each in ask(url, question)])
        return
    print_list(url, question, _KEYS, _cells, as_json=False, wide=wide)


@keys_group.command("revoke")
@click.argument("name")
@url_option
def revoke(name: str, url: str | None) -> None:
    """Revoke the key of NAME. Its connections end within a second."""

    async def store(app: Holdfast) -> None:
        await core_of(app).runtime().database.transact(keys.revoke_key, name)

    ask(url, store)
    click.echo(f"the key of {name} is revoked")


def _cells(key: StoredKey) -> tuple[object, ...]:
    queues = "all" if key.queues is None else ", ".join(key.queues)
    return key.name, ", ".join(key.workers), queues, key.tenant, _time(key.created_at), _time(key.revoked_at)


def _as_json(key: StoredKey) -> dict[str, object]:
    times = {"created_at": _time(key.created_at), "revoked_at": _time(key.revoked_at)}
    return {**key._asdict(), **times}


def _time(us: int | None) -> datetime | None:
    return None if us is None else moment(us)
