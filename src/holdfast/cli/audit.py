"""`holdfast audit`: what was changed through the web and by commands, and whether the record is whole."""

from __future__ import annotations

import click

from holdfast.access.audit import AuditCheck
from holdfast.app import Holdfast
from holdfast.cli.options import after_option, ask, json_option, limit_option, print_json, url_option
from holdfast.cli.tables import Column, Listing, print_list, wide_option
from holdfast.text import plural

_AUDIT = Listing(
    "changes",
    "Nobody has changed anything through the web yet.",
    (
        Column("SEQ", "number"),
        Column("AT", "time"),
        Column("BY"),
        Column("PHASE", rank=2),
        Column("ACTION"),
        Column("SUBJECT", least=20),
        Column("STATUS", "number", rank=1),
    ),
)


@click.group()
def command() -> None:
    """List the audit, and verify that nobody has changed it."""


@command.command()
@limit_option
@after_option
@url_option
@wide_option
@json_option
def ls(limit: int, after: str | None, url: str | None, as_json: bool, wide: bool) -> None:
    """List what was changed, and by whom, newest first."""
    print_list(
        url,
        lambda app: app.access.audit.list(limit=limit, after=after),
        _AUDIT,
        lambda row: (row.seq, row.at, row.actor, row.phase, row.action, row.subject, row.status),
        filtered=after is not None,
        as_json=as_json,
        wide=wide,
    )


@command.command()
@url_option
@json_option
@click.pass_context
def verify(ctx: click.Context, url: str | None, as_json: bool) -> None:
    """Verify the chain of hashes; exit code 1 if a row was changed or removed."""

    async def verified(app: Holdfast) -> AuditCheck:
        return await app.access.audit.verify()

    found = ask(url, verified)
    if as_json:
        print_json(found)
    else:
        click.echo(
            f"{plural(found.rows, 'row is as it was', 'rows are as they were')} written"
            + (f"; {found.problem}" if found.problem else "")
        )
    ctx.exit(0 if found.broken is None else 1)
