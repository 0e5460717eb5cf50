"""`holdfast usage`: what models have used and cost."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from holdfast.agents.money.budgets import usd
from holdfast.cli.options import json_option, url_option
from holdfast.cli.tables import Column, Listing, print_list, wide_option

_USED = (
    Column("TURNS", "number"),
    Column("INPUT", "number"),
    Column("OUTPUT", "number"),
    Column("CACHE WRITES", "number", rank=2),
    Column("CACHE READS", "number", rank=1),
    Column("USD", "money"),
)
_PARTS = ("tenant", "agent", "model", "mode", "day")


@click.command()
@click.option("--by", multiple=True, type=click.Choice(_PARTS), help="Group by this; may be repeated.")
@click.option("--since", type=click.DateTime(["%Y-%m-%d"]), help="From this day, UTC; default: thirty days ago.")
@click.option("--until", type=click.DateTime(["%Y-%m-%d"]), help="Before this day.")
@click.option("--tenant", help="Only of this tenant.")
@url_option
@wide_option
@json_option
def command(
    *,
    by: tuple[Any, ...],
    since: datetime | None,
    until: datetime | None,
    tenant: str | None,
    url: str | None,
    as_json: bool,
    wide: bool,
) -> None:
    """Show what models have used and cost, including compactions and answers that no run waited for."""
    parts = tuple(Column(part.upper(), least=18 if part == "model" else 10) for part in by)
    print_list(
        url,
        lambda app: app.budgets.used(*by, since=_utc(since), until=_utc(until), tenant=tenant),
        Listing(
            "usage", "Turns of models are counted here when they have ended.", (*parts, *_USED), "nothing was used"
        ),
        lambda row: (
            *(getattr(row, part) for part in by),
            *(f"{row.turns:,}", f"{row.input_tokens:,}", f"{row.output_tokens:,}"),
            *(f"{row.cache_write_tokens:,}", f"{row.cache_read_tokens:,}", usd(row.cost_nano)),
        ),
        filtered=any((since, until, tenant)),
        as_json=as_json,
        wide=wide,
    )


def _utc(day: datetime | None) -> datetime | None:
    return None if day is None else day.replace(tzinfo=UTC)
