"""`holdfast schedules`: what the clock enqueues, pause and resume, run now, remove."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.options import ask, json_option, moment, plain, print_json, print_table, url_option
from holdfast.errors import NotFound
from holdfast.kernel.records_flow import ScheduleRow


@click.group()
def command() -> None:
    """List, pause, resume, run and remove schedules."""


@command.command()
@url_option
@json_option
def ls(url: str | None, as_json: bool) -> None:
    """List schedules by name."""
    rows = ask(url, lambda app: app.schedules.list())
    if as_json:
        print_json([_as_dict(row) for row in rows])
        return
    print_table(
        ["SCHEDULE", "CRON", "TIME ZONE", "KIND", "QUEUE", "NEXT", "LAST"],
        [
            (
                row.name,
                row.cron,
                row.timezone,
                row.kind,
                row.queue,
                "paused" if row.paused_at is not None else moment(row.next_at),
                moment(row.last_at) or "-",
            )
            for row in rows
        ],
        empty="no schedules",
    )
    for row in rows:
        if row.error is not None and row.paused_at is None:
            click.echo(f"{row.name} cannot be fired: {plain(row.error)} It is tried again at {moment(row.retry_at)}.")


@command.command()
@click.argument("name")
@url_option
@json_option
def pause(name: str, url: str | None, as_json: bool) -> None:
    """Let a schedule enqueue nothing until it is resumed."""
    ask(url, lambda app: app.schedules.pause(name))
    if as_json:
        print_json({"name": name, "paused": True})
    else:
        click.echo(f"schedule {name} is paused; `holdfast schedules resume {name}` lets it go on")


@command.command()
@click.argument("name")
@url_option
@json_option
def resume(name: str, url: str | None, as_json: bool) -> None:
    """Let a paused schedule go on with its next tick."""
    following = moment(ask(url, lambda app: app.schedules.resume(name)))
    if as_json:
        print_json({"name": name, "paused": False, "next_at": following})
    else:
        click.echo(f"schedule {name} goes on at {following}")


@command.command()
@click.argument("name")
@url_option
@json_option
def run(name: str, url: str | None, as_json: bool) -> None:
    """Enqueue a schedule's job once, now, beside its rhythm."""
    job = ask(url, lambda app: app.schedules.run(name))
    if as_json:
        print_json({"name": name, "job": job.id})
    else:
        click.echo(f"schedule {name} enqueued job {job.id}")


@command.command()
@click.argument("name")
@url_option
@json_option
def rm(name: str, url: str | None, as_json: bool) -> None:
    """Remove a schedule. A worker whose program still declares it writes it down again when it starts."""
    if not ask(url, lambda app: app.schedules.remove(name)):
        raise NotFound(f"there is no schedule {name!r}; `holdfast schedules ls` lists them.")
    if as_json:
        print_json({"name": name, "removed": True})
    else:
        click.echo(f"schedule {name} is removed")


def _as_dict(row: ScheduleRow) -> dict[str, Any]:
    shown = {**row._asdict(), "paused": row.paused_at is not None}
    for name in ("next_at", "last_at", "paused_at", "retry_at"):
        shown[name] = moment(shown[name])
    del shown["now"], shown["job"]
    return shown
