"""`holdfast jobs`: list and show them."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from holdfast.cli.options import app_for, json_option, moment, print_json, print_table, readable, url_option
from holdfast.kernel import encoding
from holdfast.kernel.records import AttemptRow, JobRow
from holdfast.kernel.states import State

_STORED = ("payload", "metadata", "progress", "result", "error")


@click.group()
def command() -> None:
    """List and show jobs."""


@command.command()
@click.option("--state", type=click.Choice([str(state) for state in State]), help="Only jobs in this state.")
@click.option("--queue", help="Only jobs of this queue.")
@click.option("--kind", help="Only jobs of this kind.")
@click.option("--tenant", help="Only jobs of this tenant.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most this many.")
@url_option
@json_option
def ls(url: str | None, as_json: bool, **filters: Any) -> None:
    """List jobs, newest first."""
    rows = asyncio.run(_list(url, filters))
    if as_json:
        print_json([as_dict(row) for row in rows])
        return
    print_table(
        ["ID", "KIND", "QUEUE", "STATE", "ATTEMPTS", "RESCUES", "CREATED"],
        [
            (
                row.id,
                row.kind,
                row.queue,
                row.state,
                f"{row.attempts}/{row.max_attempts}",
                row.rescues,
                moment(row.created_at),
            )
            for row in rows
        ],
        empty="no jobs",
    )


@command.command()
@click.argument("id")
@url_option
@json_option
def show(id: str, url: str | None, as_json: bool) -> None:
    """Show one job, whole, with its attempts."""
    row, attempts = asyncio.run(_show(url, id))
    shown = as_dict(row)
    if as_json:
        print_json({**shown, "attempts": [_attempt(attempt) for attempt in attempts]})
        return
    for name, value in shown.items():
        if value not in (None, "", {}):
            click.echo(f"{name:20} {value}")
    print_table(
        ["TOKEN", "WORKER", "OUTCOME", "STARTED", "ENDED"],
        [(f"{a.epoch}.{a.token}", a.worker, a.outcome, moment(a.started_at), moment(a.ended_at)) for a in attempts],
        empty="no attempt has ended yet",
    )


def as_dict(row: JobRow) -> dict[str, Any]:
    shown = readable(row._asdict(), encoding.decode, texts=_STORED)
    token = f"{shown.pop('epoch')}.{shown.pop('token')}"
    return {**shown, "token": token}


def _attempt(row: AttemptRow) -> dict[str, Any]:
    return readable(row._asdict(), encoding.decode, texts=("error",))


async def _list(url: str | None, filters: dict[str, Any]) -> list[JobRow]:
    async with app_for(url) as app:
        return list(await app.jobs.list(**filters))


async def _show(url: str | None, id: str) -> tuple[JobRow, list[AttemptRow]]:
    async with app_for(url) as app:
        return await app.jobs.get(id), list(await app.jobs.attempts(id))
