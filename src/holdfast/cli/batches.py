"""`holdfast batches`: what goes to the provider together, and what became of each part of it."""

from __future__ import annotations

from typing import Any

import click

from holdfast.agents.batches.records import BatchRow, RequestRow
from holdfast.agents.states import BATCH_STATES
from holdfast.app import Holdfast
from holdfast.cli.options import (
    ask,
    json_option,
    moment,
    plain,
    print_json,
    print_pairs,
    print_table,
    readable,
    rough,
    url_option,
)
from holdfast.kernel import encoding


@click.group()
def command() -> None:
    """List and show batches."""


@command.command()
@click.option("--state", type=click.Choice(BATCH_STATES), help="Only batches in this state.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most this many.")
@url_option
@json_option
def ls(state: str | None, limit: int, url: str | None, as_json: bool) -> None:
    """List batches, newest first; one that is `searching` waits to learn whether the provider has it."""
    rows = ask(url, lambda app: app.batches.list(state=state, limit=limit))
    if as_json:
        print_json([_as_dict(row) for row in rows])
        return
    print_table(
        ["ID", "STATE", "MODEL", "REQUESTS", "APPLIED", "PROVIDER'S ID", "POLLS", "AGE"],
        [
            (
                row.id,
                row.state,
                row.model,
                f"{row.size:,}",
                f"{row.applied:,}",
                row.provider_id or "-",
                row.polls,
                rough(row.now - row.created_at),
            )
            for row in rows
        ],
        empty="no batches",
    )


@command.command()
@click.argument("id")
@click.option("--limit", type=click.IntRange(0, 100_000), default=20, show_default=True, help="So many requests.")
@url_option
@json_option
def show(id: str, limit: int, url: str | None, as_json: bool) -> None:
    """Show one batch: what it waits for, and its requests."""

    async def found(app: Holdfast) -> tuple[BatchRow, list[RequestRow]]:
        return await app.batches.get(id), list(await app.batches.requests(id, limit=limit)) if limit else []

    row, requests = ask(url, found)
    if as_json:
        print_json({**_as_dict(row), "requests": [each._asdict() for each in requests]})
        return
    held = encoding.decode(row.held) or {}
    counts = encoding.decode(row.counts) or {}
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
            "error": row.error and plain(row.error),
        }
    )
    if requests:
        click.echo()
        print_table(
            ["CUSTOM ID", "RUN", "TURN", "ATTEMPT", "STATE", "OUTCOME"],
            [(r.custom_id, r.run, r.turn, r.attempt, r.state, r.outcome or "-") for r in requests],
            empty="no requests",
        )


def _as_dict(row: BatchRow) -> dict[str, Any]:
    return readable(row._asdict(), encoding.decode, texts=("held", "counts"))
