"""`holdfast lanes`: lanes to model providers that are closed, and opening one that waits for a person."""

from __future__ import annotations

from datetime import datetime

import click

from holdfast.agents.values import ClosedLaneRecord
from holdfast.cli.options import all_of, ask, counted, json_option, print_json, reason_option, url_option
from holdfast.cli.tables import Column, Listing, print_list, wide_option
from holdfast.text import plural

_LANES = Listing(
    "closed lanes",
    "Every model provider can be called.",
    (
        Column("LANE", least=16),
        Column("WAITING", "number"),
        Column("CLOSED", "time", rank=1),
        Column("OPENS", "time"),
        Column("REASON", least=20),
    ),
    empty="no lane is closed",
)


@click.group()
def command() -> None:
    """Show lanes to model providers that are closed, and open them."""


@command.command()
@url_option
@wide_option
@json_option
def ls(url: str | None, as_json: bool, wide: bool) -> None:
    """List the lanes that the provider's answers have closed."""
    print_list(
        url,
        lambda app: all_of(app.lanes.list),
        _LANES,
        lambda row: (row.name, counted(row.waiting), row.closed_at, _opens(row), row.reason),
        as_json=as_json,
        wide=wide,
    )


@command.command("open")
@click.argument("name")
@reason_option
@url_option
@json_option
def open_(name: str, url: str | None, as_json: bool) -> None:
    """Open a lane: the runs that wait behind it try again now."""
    woken = ask(url, lambda app: app.lanes.open(name))
    if as_json:
        print_json({"name": name, "open": True, "woken": woken})
    else:
        click.echo(f"lane {name} is open; {plural(woken, 'waiting run continues', 'waiting runs continue')}")


def _opens(row: ClosedLaneRecord) -> datetime | str | None:
    return "when a person opens it" if row.person else row.closed_until
