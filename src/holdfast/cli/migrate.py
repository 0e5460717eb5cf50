"""`holdfast migrate`: the database's tables, up, down, or as SQL for someone else to run."""

from __future__ import annotations

import asyncio
from functools import partial

import click

from holdfast.cli.options import json_option, print_json, url_option
from holdfast.cli.target import Target, database_label, file_is_there, find, settings_of
from holdfast.clock import Ports
from holdfast.errors import UsageError
from holdfast.kernel import migrate, row_security
from holdfast.kernel.database import Database
from holdfast.kernel.drivers import connect
from holdfast.kernel.row_security import Switch
from holdfast.settings import Settings


@click.command()
@click.option("--to", "target", type=int, help="Schema version to migrate to, up or down; default: this code's own.")
@click.option("--dump-sql", is_flag=True, help="Print the SQL instead of running it; needs no database.")
@click.option(
    "--from", "source", type=int, default=0, help="With --dump-sql: the version to start from; default: none."
)
@click.option("--check", is_flag=True, help="Only check whether a migration is needed; exit code 1 if so.")
@click.option("--drop", is_flag=True, help="Remove all tables and the work in them.")
@click.option("--yes", is_flag=True, help="Confirm --drop.")
@click.option("--force", is_flag=True, help="Migrate even if live workers could not use the new tables.")
@click.option(
    "--row-security/--no-row-security",
    "secured",
    default=None,
    help="PostgreSQL: hide the rows of other tenants from a tenant's requests, or stop that.",
)
@url_option
@json_option
@click.pass_context
def command(  # noqa: PLR0913, PLR0917  the options of the command
    ctx: click.Context,
    target: int | None,
    dump_sql: bool,
    source: int,
    check: bool,
    drop: bool,
    yes: bool,
    force: bool,
    secured: bool | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Migrate the database's tables to this version, or to another."""
    if drop and not yes:
        raise UsageError("--drop removes all jobs permanently; add --yes to confirm.")
    if secured is not None and (check or drop or target is not None):
        raise UsageError("--row-security goes with no other change: leave out --check, --drop and --to.")
    switch: Switch | None = None if secured is None else "on" if secured else "off"
    place = find(url)
    settings = settings_of(place)
    database, label = connect(settings.url, settings, Ports()), database_label(settings)
    if dump_sql:
        goal = migrate.code_version(database.dialect) if target is None else target
        click.echo(migrate.dump(source, goal, database.dialect, settings.schema), nl=False)
        click.echo(row_security.dump(switch, database.dialect, settings.schema), nl=False)
    elif check:
        have, code = asyncio.run(_versions(database, settings))
        if as_json:
            print_json({"schema": have, "code": code, "database": label})
        else:
            click.echo(f"{label} has schema {have}, this code has schema {code}")
        ctx.exit(0 if have >= code else 1)
    elif drop and not file_is_there(settings):  # connecting would make it
        if as_json:
            print_json({"done": [], "database": label})
        else:
            click.echo(f"database: {label}{_default_note(place)}\nthere is no such file, so there is nothing to remove")
    else:
        done = asyncio.run(_migrate(database, settings.schema, target, drop=drop, force=force, switch=switch))
        if as_json:
            print_json({"done": done, "database": label})
            return
        click.echo(f"database: {label}{_default_note(place)}")
        for line in [*done, "all tables of Holdfast are removed"] if drop else done or ["nothing to do"]:
            click.echo(line)


def _default_note(place: Target) -> str:
    return " (the default, because nothing names an app or another database)" if place.is_default else ""


async def _versions(database: Database, settings: Settings) -> tuple[int, int]:
    """What the tables are, and what this code is. A file that is not there is not made."""
    if not file_is_there(settings):
        return 0, migrate.code_version(database.dialect)
    await database.connect()
    try:
        stored = await database.stored_schema()
    finally:
        await database.close()
    return stored.version if stored else 0, migrate.code_version(database.dialect)


async def _migrate(
    database: Database, schema: str, target: int | None, *, drop: bool, force: bool, switch: Switch | None
) -> list[str]:
    row_security.check(switch, database.dialect)
    await database.connect()
    try:
        if drop:
            return await migrate.drop(database, schema)
        done = await migrate.migrate(database, schema, target, force=force, say=partial(click.echo, err=True))
        return done if switch is None else [*done, *await row_security.turn(switch, database, schema)]
    finally:
        await database.close()
