"""`holdfast lanes`: lanes to model providers that are closed, and opening one that waits for a person."""

from __future__ import annotations

import click

from holdfast.agents.reading import list_lanes, open_lane
from holdfast.agents.records import LaneRow
from holdfast.cli.options import ask, json_option, moment, print_json, print_table, url_option
from holdfast.errors import NotFound


@click.group()
def command() -> None:
    """Show lanes to model providers that are closed, and open them."""


@command.command()
@url_option
@json_option
def ls(url: str | None, as_json: bool) -> None:
    """List the lanes that an answer of the provider has closed."""
    rows = ask(url, lambda app: app.runtime().transact(list_lanes))
    if as_json:
        print_json([row._asdict() for row in rows])
        return
    print_table(
        ["LANE", "OPENS", "REASON"], [(row.name, _opens(row), row.reason) for row in rows], empty="no lane is closed"
    )


@command.command("open")
@click.argument("name")
@url_option
@json_option
def open_(name: str, url: str | None, as_json: bool) -> None:
    """Open a lane now: its runs are tried again when they are next due."""
    if name not in {row.name for row in ask(url, lambda app: app.runtime().transact(list_lanes))}:
        raise NotFound(f"lane {name} is not closed; `holdfast lanes ls` shows those that are.")
    ask(url, lambda app: app.runtime().transact(open_lane, name))
    if as_json:
        print_json({"name": name, "open": True})
    else:
        click.echo(f"lane {name} is open")


def _opens(row: LaneRow) -> str:
    if row.person:
        return "when a person opens it"
    return moment(row.closed_until) or "-"
