"""Lists: ask the store, print a table that names the database, and say what to do when there is nothing."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from holdfast.app import Holdfast, core_of
from holdfast.cli.options import ask, print_json, print_page, say_more
from holdfast.cli.short_ids import shortest
from holdfast.cli.tables import Column, Row, TableLook, heading, on_terminal, print_table, terminal_width
from holdfast.cli.target import database_label
from holdfast.kernel import queries
from holdfast.kernel.ids import is_id
from holdfast.values import Page

T = TypeVar("T")

_NO_MATCH = "Nothing matches all of these options; leave some out."

wide_option = click.option(
    "--wide", is_flag=True, help="On a terminal: every column, whole ids and absolute times, however long the lines."
)


@dataclass(frozen=True, slots=True)
class Listing:
    """What a list is of. `advice` says how to get something into it, for who finds it empty."""

    title: str
    advice: str
    columns: Sequence[Column]
    empty: str = ""  # what an empty list says; "no …" with the title unless given


def print_list(
    url: str | None,
    question: Callable[[Holdfast], Coroutine[Any, Any, Sequence[T]]],
    listing: Listing,
    cells: Callable[[T], Row],
    *,
    filtered: bool = False,
    as_json: bool,
    wide: bool,
) -> Sequence[T]:
    """Ask for a list and print it, as JSON or as a table. `filtered`: the options leave some out."""

    async def looked(app: Holdfast) -> tuple[Sequence[T], list[Row], TableLook]:
        rows = await question(app)
        shown = [] if as_json else [cells(row) for row in rows]
        return rows, shown, TableLook() if as_json else await look_at(app, listing.columns, shown, wide=wide)

    rows, shown, look = ask(url, looked)
    if as_json:
        print_page(rows) if isinstance(rows, Page) else print_json(rows)
        return rows
    print_listed(listing, shown, look, filtered=filtered)
    if isinstance(rows, Page):
        say_more(rows)
    return rows


def print_listed(listing: Listing, rows: Sequence[Row], look: TableLook, *, filtered: bool = False) -> None:
    """Print a list below a line that names the database."""
    if rows and look.terminal:
        click.secho(heading(listing.title, look), dim=True)
    print_table(listing.columns, rows, look, empty=heading(listing.empty or f"no {listing.title}", look))
    if not rows:
        click.echo(_NO_MATCH if filtered else listing.advice, err=True)


async def look_at(app: Holdfast, columns: Sequence[Column], rows: Sequence[Row], *, wide: bool = False) -> TableLook:
    """How to show these rows: on a terminal, with ids as short as this database allows."""
    if not on_terminal():
        return TableLook()
    wanted: dict[str, list[str]] = {}
    for at, column in enumerate(columns):
        if column.of and not wide:
            wanted.setdefault(column.of, []).extend(str(row[at]) for row in rows if is_id(row[at]))
    return TableLook(
        terminal=True,
        wide=wide,
        width=terminal_width(),
        now=await core_of(app).runtime().database.transact(queries.now),
        database=database_label(app.settings),
        ids={noun: await shortest(app, noun, ids) for noun, ids in wanted.items()},
    )
