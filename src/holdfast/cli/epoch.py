"""`holdfast epoch`: the part of a token that a restored backup cannot repeat."""

from __future__ import annotations

import click

from holdfast.app import core_of
from holdfast.cli.options import ask, json_option, print_json, url_option
from holdfast.kernel.epoch import bump


@click.group()
def command() -> None:
    """Raise the cluster epoch after restoring a backup."""


@command.command("bump")
@url_option
@json_option
def bump_command(url: str | None, as_json: bool) -> None:
    """Raise the epoch: new claims carry it, so no token from before the restore is issued again."""
    epoch = ask(url, lambda app: core_of(app).runtime().database.transact(bump)).epoch
    if as_json:
        print_json({"epoch": epoch})
    else:
        click.echo(f"the cluster epoch is now {epoch}")
