"""`holdfast schedules`: what the clock enqueues, pause and resume, run now, delete."""

from __future__ import annotations

import click

from holdfast.cli.options import all_of, ask, json_option, moment, print_json, reason_option, url_option
from holdfast.cli.tables import Column, DualCell, Listing, print_list, wide_option
from holdfast.cli.target import repeated
from holdfast.text import shown
from holdfast.values.queues import ScheduleRecord

_SCHEDULES = Listing(
    "schedules",
    "A worker stores the schedules that its program declares when it starts: `holdfast worker MODULE:APP`.",
    (
        Column("SCHEDULE", "name"),
        Column("CRON", least=10),
        Column("TIME ZONE", rank=3),
        Column("KIND", "name", rank=2, sparse=True),
        Column("QUEUE", rank=4),
        Column("NEXT", "time", late="due"),
        Column("LAST", "time", rank=1),
    ),
)


def _kind(row: ScheduleRecord) -> object:
    """On a terminal only where it is not the schedule's own name."""
    return DualCell(row.kind, [""]) if row.kind == row.name else row.kind


@click.group()
def command() -> None:
    """List, pause, resume, run and delete schedules."""


@command.command()
@url_option
@wide_option
@json_option
def ls(url: str | None, as_json: bool, wide: bool) -> None:
    """List schedules by name."""
    rows = print_list(
        url,
        lambda app: all_of(app.schedules.list),
        _SCHEDULES,
        lambda row: (
            *(row.name, row.cron, row.timezone, _kind(row), row.queue),
            *("paused" if row.paused_at is not None else row.next_at, row.last_at),
        ),
        as_json=as_json,
        wide=wide,
    )
    if as_json:
        return
    for row in rows:
        if row.error is not None and row.paused_at is None:
            click.echo(f"{row.name} cannot be fired: {shown(row.error)} Next try at {moment(row.retry_at)}.")


@command.command()
@click.argument("name")
@reason_option
@url_option
@json_option
def pause(name: str, url: str | None, as_json: bool) -> None:
    """Pause a schedule: it enqueues nothing until you resume it."""
    ask(url, lambda app: app.schedules.pause(name))
    if as_json:
        print_json({"name": name, "paused": True})
    else:
        click.echo(f"schedule {name} is paused; `holdfast schedules resume {name}{repeated(url)}` resumes it")


@command.command()
@click.argument("name")
@reason_option
@url_option
@json_option
def resume(name: str, url: str | None, as_json: bool) -> None:
    """Resume a paused schedule with its next tick."""
    following = moment(ask(url, lambda app: app.schedules.resume(name)))
    if as_json:
        print_json({"name": name, "paused": False, "next_at": following})
    else:
        click.echo(f"schedule {name} is resumed; its next tick is at {following}")


@command.command()
@click.argument("name")
@reason_option
@url_option
@json_option
def run(name: str, url: str | None, as_json: bool) -> None:
    """Enqueue a schedule's job once, now, in addition to its ticks."""
    job = ask(url, lambda app: app.schedules.run(name))
    if as_json:
        print_json({"name": name, "job": job.id})
    else:
        click.echo(f"schedule {name} enqueued job {job.id}")


@command.command()
@click.argument("name")
@reason_option
@url_option
@json_option
def delete(name: str, url: str | None, as_json: bool) -> None:
    """Delete a schedule. A worker whose program still declares it stores it again when it starts."""
    ask(url, lambda app: app.schedules.delete(name))
    if as_json:
        print_json({"name": name, "deleted": True})
    else:
        click.echo(f"schedule {name} is deleted")
