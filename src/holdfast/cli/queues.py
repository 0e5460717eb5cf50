"""`holdfast queues`: what is in each, what holds it up, pause and resume."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from holdfast.app import Holdfast
from holdfast.cli.options import (
    ask,
    counted,
    json_option,
    moment,
    print_json,
    print_pairs,
    print_table,
    rough,
    url_option,
)
from holdfast.durations import show as show_duration
from holdfast.errors import NotFound
from holdfast.kernel import reading, watch
from holdfast.kernel.queues import QueueStats
from holdfast.kernel.records import WorkerRow
from holdfast.kernel.records_flow import LaneRow

_COUNTS = ("pending", "blocked", "running", "later", "succeeded", "failed", "cancelled")


@click.group()
def command() -> None:
    """List, show, pause and resume queues."""


@command.command()
@url_option
@json_option
def ls(url: str | None, as_json: bool) -> None:
    """List queues and how much is in each; what ended is of the last minute, and counts stop at 10,000."""
    rows = ask(url, lambda app: app.queues.stats())
    if as_json:
        print_json([as_dict(row) for row in rows])
        return
    print_table(
        ["QUEUE", "PENDING", "BLOCKED", "RUNNING", "LATER", "DONE/MIN", "FAILED/MIN", "PAUSED"],
        [
            (
                row.queue.name,
                *(counted(getattr(row, name)) for name in _COUNTS[:-1]),
                _paused(row),
            )
            for row in rows
        ],
        empty="no queues",
    )


class QueueView(NamedTuple):
    """One queue from all sides."""

    stats: QueueStats
    lanes: Sequence[LaneRow]
    workers: Sequence[WorkerRow]
    oldest_at: int | None
    now: int


@command.command()
@click.argument("name")
@url_option
@json_option
def show(name: str, url: str | None, as_json: bool) -> None:
    """Show one queue: its policy, its counts, its lanes, how long its oldest job waits, and who serves it."""
    view = ask(url, lambda app: _view(app, name))
    waits = None if view.oldest_at is None else view.now - view.oldest_at
    if as_json:
        lanes = [
            {**lane._asdict(), "opens_at": moment(lane.opens_at), "free_at": moment(lane.free_at)}
            for lane in view.lanes
        ]
        workers = [worker.id for worker in view.workers]
        print_json(
            {**as_dict(view.stats), "oldest_pending_at": moment(view.oldest_at), "lanes": lanes, "workers": workers}
        )
        return
    counts = {name: counted(getattr(view.stats, name)) for name in _COUNTS[:4]}
    ended = {f"{name}_last_minute": counted(getattr(view.stats, name)) for name in _COUNTS[4:]}
    policy = {k: v for k, v in as_dict(view.stats).items() if k not in _COUNTS and k != "fair"}
    print_pairs(
        {
            **policy,
            "fair": "yes" if view.stats.queue.fair else "no",
            **counts,
            **ended,
            "oldest_pending": None if waits is None else f"waits for {rough(waits)}",
            "workers": ", ".join(worker.id for worker in view.workers) or "none serves it",
        }
    )
    if view.lanes:
        print_table(
            ["LANE", "RUNNING", "BLOCKED", "RATE", "OPENS"],
            [
                (
                    lane.name,
                    lane.running if lane.concurrency is None else f"{lane.running}/{lane.concurrency}",
                    counted(lane.blocked),
                    "-" if lane.interval_us is None else f"one every {show_duration(lane.interval_us)}",
                    moment(lane.opens_at) or "-",
                )
                for lane in view.lanes
            ],
            empty="",
        )


@command.command()
@click.argument("name")
@click.option("--reason", default="", help="Shown to whoever asks why nothing runs.")
@url_option
@json_option
def pause(name: str, reason: str, url: str | None, as_json: bool) -> None:
    """Claim nothing of a queue from now on, on any worker; what runs goes on."""
    ask(url, lambda app: app.queues.pause(name, reason=reason))
    if as_json:
        print_json({"name": name, "paused": True, "changed": True})
    else:
        click.echo(f"queue {name} is paused; `holdfast queues resume {name}` lets it go on")


@command.command()
@click.argument("name")
@url_option
@json_option
def resume(name: str, url: str | None, as_json: bool) -> None:
    """Let a paused queue be claimed again."""
    resumed = ask(url, lambda app: app.queues.resume(name))
    if as_json:
        print_json({"name": name, "paused": False, "changed": resumed})
    else:
        click.echo(f"queue {name} goes on" if resumed else f"queue {name} was not paused")


def as_dict(row: QueueStats) -> dict[str, Any]:
    queue = row.queue
    return {
        "name": queue.name,
        "paused_at": moment(queue.paused_at),
        "pause_reason": queue.pause_reason,
        "on_orphan": queue.on_orphan,
        "fair": bool(queue.fair),
        "keep": None if queue.keep_us is None else show_duration(queue.keep_us),
        "keep_jobs": queue.keep_jobs,
        **{name: getattr(row, name) for name in _COUNTS},
    }


async def _view(app: Holdfast, name: str) -> QueueView:
    stats = await app.queues.stats()
    found = next((row for row in stats if row.queue.name == name), None)
    if found is None:
        known = ", ".join(row.queue.name for row in stats)
        raise NotFound(f"there is no queue {name!r}; there are {known or 'none yet'}.")
    database = app.runtime().database
    backlogs = [b for b in await database.transact(watch.backlogs) if b.queue == name]
    oldest = min((b.oldest_at for b in backlogs if b.oldest_at is not None), default=None)
    workers = [row for row in await app.workers.list() if (served := json.loads(row.queues)) is None or name in served]
    now = await database.transact(reading.now)
    return QueueView(found, await app.queues.lanes(queue=name), workers, oldest, now)


def _paused(row: QueueStats) -> str:
    if row.queue.paused_at is None:
        return "-"
    return f"since {moment(row.queue.paused_at)}" + (f": {row.queue.pause_reason}" if row.queue.pause_reason else "")
