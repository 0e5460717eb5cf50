"""`holdfast usage`: what models have used and cost."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from holdfast.agents.money.budgets import usd
from holdfast.agents.money.face import Used
from holdfast.cli.options import ask, json_option, print_json, print_table, url_option

_PARTS = ("tenant", "agent", "model", "mode", "day")


@click.command()
@click.option("--by", multiple=True, type=click.Choice(_PARTS), help="Tell apart by this; may be repeated.")
@click.option("--since", type=click.DateTime(["%Y-%m-%d"]), help="From this day on, UTC; default: thirty days ago.")
@click.option("--until", type=click.DateTime(["%Y-%m-%d"]), help="Before this day.")
@click.option("--tenant", help="Of this tenant alone.")
@url_option
@json_option
def command(
    *,
    by: tuple[Any, ...],
    since: datetime | None,
    until: datetime | None,
    tenant: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Say what models have used and cost, compactions and answers that nobody waited for included."""
    rows = ask(url, lambda app: app.used(*by, since=_utc(since), until=_utc(until), tenant=tenant))
    if as_json:
        print_json([_as_dict(row, by) for row in rows])
        return
    print_table(
        [*(part.upper() for part in by), "TURNS", "INPUT", "OUTPUT", "CACHE WRITES", "CACHE READS", "USD"],
        [
            (
                *(getattr(row, part) or "-" for part in by),
                f"{row.turns:,}",
                f"{row.input_tokens:,}",
                f"{row.output_tokens:,}",
                f"{row.cache_write_tokens:,}",
                f"{row.cache_read_tokens:,}",
                usd(row.cost_nano),
            )
            for row in rows
        ],
        empty="nothing was used",
    )


def _utc(day: datetime | None) -> datetime | None:
    return None if day is None else day.replace(tzinfo=UTC)


def _as_dict(row: Used, by: tuple[str, ...]) -> dict[str, Any]:
    parts = {part: str(getattr(row, part)) if part == "day" else getattr(row, part) for part in by}
    tokens = ("turns", "input_tokens", "output_tokens", "cache_write_tokens", "cache_read_tokens", "cost_nano")
    return {**parts, **{name: getattr(row, name) for name in tokens}, "cost": str(row.cost)}
