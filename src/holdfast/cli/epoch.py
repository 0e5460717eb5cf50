"""`holdfast epoch`: the part of a token that a restored backup cannot repeat."""

from __future__ import annotations

import asyncio

import click

from holdfast.cli.options import app_for, url_option
from holdfast.kernel.epoch import bump


@click.group()
def command() -> None:
    """Raise the cluster epoch after restoring a backup."""


@command.command("bump")
@url_option
def bump_command(url: str | None) -> None:
    """From now on claims carry a new epoch, so no token from before the restore can be given out again."""
    click.echo(f"the cluster epoch is now {asyncio.run(_bump(url))}")


async def _bump(url: str | None) -> int:
    async with app_for(url) as app:
        return (await app.runtime().database.transact(bump)).epoch
