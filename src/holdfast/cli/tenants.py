"""`holdfast tenants`: what a tenant keeps, and its erasure."""

from __future__ import annotations

import sys
from typing import Any

import click

from holdfast.agents.retention.ages import KINDS, Ages
from holdfast.agents.retention.erasure import Erased
from holdfast.app import Holdfast
from holdfast.cli.options import ask, json_option, print_json, print_pairs, url_option
from holdfast.durations import microseconds, show


@click.group()
def command() -> None:
    """Erase tenants, and set how long their data is kept."""


@command.command()
@click.argument("id")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--within", default="2m", show_default=True, help="How long workers may take to stop their running jobs.")
@url_option
@json_option
def erase(id: str, yes: bool, within: str, url: str | None, as_json: bool) -> None:
    """Remove all data of a tenant; its costs stay counted.

    Open jobs and runs are cancelled first. You can kill the command at any time and run it again.
    """
    if not yes:
        click.confirm(f"Remove all data of tenant {id} permanently?", abort=True)

    def tell(so_far: Erased) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r{_words(so_far)}", nl=False, err=True)

    async def do(app: Holdfast) -> Erased:
        return await app.tenant(id).erase(within=within, progress=tell)

    erased = ask(url, do)
    if sys.stderr.isatty():
        click.echo(err=True)
    if as_json:
        print_json({"tenant": id, **erased._asdict()})
    elif any(erased):
        click.echo(f"tenant {id} is erased: {_words(erased)}")
    else:
        click.echo(f"nothing of tenant {id} is stored")


def _words(erased: Erased) -> str:
    return ", ".join(f"{number:,} {what}" for what, number in erased._asdict().items())


@command.command()
@click.argument("id")
@click.option("--deltas", metavar="AGE", help="How long to keep the streamed pieces of answers.")
@click.option("--events", metavar="AGE", help="How long to keep all events of runs.")
@click.option("--inquiries", metavar="AGE", help="How long to keep what people decided.")
@click.option("--turns", metavar="AGE", help="How long to keep raw usage, errors and request ids.")
@click.option("--sessions", metavar="AGE", help="How long to keep sessions after their last run.")
@click.option("--reset", is_flag=True, help="Reset this tenant to the general settings.")
@url_option
@json_option
def retention(id: str, url: str | None, as_json: bool, **given: Any) -> None:
    """Show or set how long a tenant's data is kept after a run; 0s means for ever."""
    ages = ask(url, lambda app: app.tenant(id).retention(**given))
    if as_json:
        print_json({"tenant": id, **ages._asdict()})
    else:
        print_pairs({kind: _age(ages, kind) for kind in KINDS})


def _age(ages: Ages, kind: str) -> str:
    us = microseconds(getattr(ages, kind))
    return show(us) if us else "for ever"
