"""`holdfast tokens`: who may reach the web with a token of their own."""

from __future__ import annotations

from typing import Any

import click

from holdfast.access.principals import ROLES, SCOPES
from holdfast.access.tokens import NewToken, TokenRecord
from holdfast.app import Holdfast
from holdfast.cli.options import all_of, ask, caller, json_option, print_json, url_option
from holdfast.cli.short_ids import whole
from holdfast.cli.tables import Column, Listing, print_list, wide_option

_TOKENS = Listing(
    "tokens",
    "Make one with `holdfast tokens create NAME --role operator`.",
    (
        Column("ID", "id", of="token"),
        Column("NAME", "name"),
        Column("ROLE"),
        Column("TENANT", rank=2, sparse=True),
        Column("SCOPES", rank=3),
        Column("STATE", "state"),
        Column("EXPIRES", "time", rank=1),
    ),
)


@click.group()
def command() -> None:
    """Create, list, rotate and revoke tokens for the web."""


@command.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="viewer", show_default=True, help="What it may do.")
@click.option("--tenant", help="Only what this tenant has; default: everything.")
@click.option("--scope", "scopes", type=click.Choice(SCOPES), multiple=True, help="What it reaches; default: api.")
@click.option("--lasts", metavar="DURATION", help="When it ends, such as 90d; default: when it is revoked.")
@url_option
@json_option
def create(name: str, scopes: tuple[str, ...], url: str | None, as_json: bool, **given: Any) -> None:
    """Create a token; it is printed once, and nobody can read it again."""

    async def made(app: Holdfast) -> NewToken:
        return await app.access.tokens.create(name, scopes=scopes or ("api",), by=caller().name, **given)

    _show(ask(url, made, creates=True), as_json)


@command.command()
@url_option
@wide_option
@json_option
def ls(url: str | None, as_json: bool, wide: bool) -> None:
    """List tokens, with those that have ended."""

    def cells(row: TokenRecord) -> tuple[Any, ...]:
        return row.id, row.name, row.role, row.tenant, ",".join(row.scopes), row.state, row.expires_at

    print_list(url, lambda app: all_of(app.access.tokens.list), _TOKENS, cells, as_json=as_json, wide=wide)


@command.command()
@click.argument("id")
@click.option("--overlap", default="1h", show_default=True, help="How long the old one still works.")
@url_option
@json_option
def rotate(id: str, overlap: str, url: str | None, as_json: bool) -> None:
    """Create a token like this one; the old one ends after the overlap."""

    async def rotated(app: Holdfast) -> NewToken:
        return await app.access.tokens.rotate(await whole(app, id, "token"), overlap=overlap, by=caller().name)

    _show(ask(url, rotated), as_json)


@command.command()
@click.argument("id")
@url_option
@json_option
def revoke(id: str, url: str | None, as_json: bool) -> None:
    """End a token now, with the logins that were made with it."""

    async def revoked(app: Holdfast) -> TokenRecord:
        return await app.access.tokens.revoke(await whole(app, id, "token"))

    token = ask(url, revoked)
    print_json(token) if as_json else click.echo(f"token {token.id} is {token.state}")


def _show(token: NewToken, as_json: bool) -> None:
    if as_json:
        print_json(token)
        return
    click.echo(token.secret)
    click.echo(f"token {token.id}, {token.role}; it is not shown again", err=True)
