"""`holdfast batches`: what goes to the provider together, and what became of each part of it."""

from __future__ import annotations

from typing import Any

import click

from holdfast import values
from holdfast.agents.states import BATCH
from holdfast.agents.values import BatchRecord, RequestRecord
from holdfast.app import Holdfast
from holdfast.cli.options import (
    after_option,
    ask,
    json_option,
    limit_option,
    moment,
    print_json,
    print_pairs,
    url_option,
)
from holdfast.cli.short_ids import whole
from holdfast.cli.tables import Column, Listing, Row, TableStyle, look_at, print_list, print_table, wide_option

_BATCHES = Listing(
    "batches",
    'Runs with mode="batch" are gathered into batches.',
    (
        Column("ID", "id", of="batch"),
        Column("STATE", "state"),
        Column("MODEL", least=18),
        Column("REQUESTS", "number"),
        Column("APPLIED", "number", rank=1),
        Column("PROVIDER'S ID", rank=3),
        Column("POLLS", "number", rank=4),
        Column("CREATED", "time", rank=2),
    ),
)
_REQUESTS = (
    Column("CUSTOM ID", rank=2),
    Column("RUN", "id", of="run"),
    Column("TURN", "number"),
    Column("ATTEMPT", "number", rank=1),
    Column("STATE", "state"),
    Column("OUTCOME", "state"),
)


@click.group()
def command() -> None:
    """List and show batches."""


@command.command()
@click.option("--state", type=click.Choice(BATCH.names), help="Only batches in this state.")
@limit_option
@after_option
@url_option
@wide_option
@json_option
def ls(url: str | None, as_json: bool, wide: bool, **filters: Any) -> None:
    """List batches, newest first. A `searching` batch waits to find out whether the provider has it."""
    print_list(
        url,
        lambda app: app.batches.list(**filters),
        _BATCHES,
        lambda row: (
            *(row.id, row.state, row.model, f"{row.size:,}", f"{row.applied:,}"),
            *(row.provider_id, row.polls, row.created_at),
        ),
        filtered=any(filters[name] for name in ("state", "after")),
        as_json=as_json,
        wide=wide,
    )


@command.command()
@click.argument("id")
@click.option("--limit", type=click.IntRange(0, 100_000), default=20, show_default=True, help="At most this many.")
@url_option
@json_option
def show(id: str, limit: int, url: str | None, as_json: bool) -> None:
    """Show one batch: its requests, and what it waits for."""

    async def found(app: Holdfast) -> tuple[BatchRecord, list[RequestRecord], list[Row], TableStyle]:
        row = await app.batches.get(await whole(app, id, "batch"))
        requests = list(await app.batches.requests(row.id, limit=limit)) if limit else []
        shown: list[Row] = [(r.custom_id, r.run, r.turn, r.attempt, r.state, r.outcome) for r in requests]
        return row, requests, shown, await look_at(app, _REQUESTS, shown)

    row, requests, shown, look = ask(url, found)
    if as_json:
        print_json({**values.as_json(row), "requests": requests})
        return
    held, counts = row.held or {}, row.counts or {}
    print_pairs(
        {
            **{name: getattr(row, name) for name in ("id", "state", "provider_id", "model", "lane", "size", "applied")},
            **{name: getattr(row, name) for name in ("attempts", "unknown", "polls")},
            "bytes": f"{row.bytes:,}",
            "counts": ", ".join(f"{count:,} {name}" for name, count in counts.items() if count),
            "may be one of": ", ".join(held.get("candidates", ())),
            "is none of": ", ".join(held.get("excluded", ())),
            "created_at": moment(row.created_at),
            "submitted_at": moment(row.submitted_at),
            "polled_at": moment(row.polled_at),
            "ended_at": moment(row.ended_at),
            "error": row.error,
        }
    )
    if requests:
        click.echo()
        print_table(_REQUESTS, shown, look, empty="no requests")
