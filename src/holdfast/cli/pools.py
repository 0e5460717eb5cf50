"""`holdfast pools`: what each pool of workers has and does, and why it does not grow."""

from __future__ import annotations

import click

from holdfast.cli.options import all_of, counted, json_option, rough, url_option
from holdfast.cli.tables import Column, Listing, Row, print_list, wide_option
from holdfast.pools.stats import PoolStats

_POOLS = Listing(
    "pools",
    "Start one with `holdfast pool module:app`.",
    (
        Column("POOL", "name"),
        Column("WORKERS", "number"),
        Column("DESIRED", "number"),
        Column("LIMITS", rank=2),
        Column("STARTING", "number", rank=4),
        Column("IDLE", "number", rank=3),
        Column("BUSY", "number", rank=3),
        Column("DRAINING", "number", rank=5),
        Column("PENDING", "number"),
        Column("RUNNING", "number", rank=1),
        Column("KEEPERS", "number", rank=6),
        Column("PROBLEM", least=20),
    ),
)


@click.group()
def command() -> None:
    """List pools of workers."""


@command.command()
@click.option("--all", "every", is_flag=True, help="Include pools that nobody keeps and that have no workers.")
@url_option
@wide_option
@json_option
def ls(every: bool, url: str | None, as_json: bool, wide: bool) -> None:
    """List pools: how many workers each has and should have, and why workers do not start."""
    print_list(url, lambda app: all_of(app.pools.list, all=every), _POOLS, _cells, as_json=as_json, wide=wide)


def _cells(pool: PoolStats) -> Row:
    counts = (pool.starting, pool.idle, pool.processing, pool.draining)
    return (
        *(pool.name, pool.total, pool.desired, f"{pool.min}-{pool.max}", *counts),
        *(counted(pool.pending), counted(pool.running), pool.keepers, _problem(pool)),
    )


def _problem(pool: PoolStats) -> str:
    if pool.failures and pool.retry_in is not None:
        return f"{pool.failures} starts failed, next in {rough(pool.retry_in)}: {pool.problem}"
    return "" if pool.keepers else "nobody keeps it: start `holdfast pool`"
