"""`holdfast epoch`: the part of a token that a restored backup cannot repeat."""

from __future__ import annotations

import click

from holdfast.cli.options import ask, json_option, print_json, url_option
from holdfast.kernel.epoch import bump


@click.group()
def command() -> None:
    """Raise the cluster epoch after restoring a backup."""


@command.command("bump")
@url_option
@json_option
def bump_command(url: str | None, as_json: bool) -> None:
    """From now on claims carry a new epoch, so no token from before the restore can be given out again."""
    epoch = ask(url, lambda app: app.runtime().database.transact(bump)).epoch
    if as_json:
        print_json({"epoch": epoch})
    else:
        click.echo(f"the cluster epoch is now {epoch}")
