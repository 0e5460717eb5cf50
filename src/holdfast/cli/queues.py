"""`holdfast queues`: what is in each, what holds it up, pause and resume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import click

from holdfast import values
from holdfast.app import Holdfast, core_of
from holdfast.cli.options import (
    all_of,
    ask,
    counted,
    json_option,
    moment,
    print_json,
    print_pairs,
    reason_option,
    rough,
    url_option,
)
from holdfast.cli.tables import (
    Column,
    DualCell,
    Listing,
    Row,
    TableStyle,
    look_at,
    print_list,
    print_table,
    wide_option,
)
from holdfast.cli.target import repeated
from holdfast.durations import microseconds
from holdfast.durations import show as show_duration
from holdfast.errors import NotFound
from holdfast.kernel import queries, watch
from holdfast.kernel.queues import absent_queue
from holdfast.validation import did_you_mean
from holdfast.values.queues import LaneRecord, QueueCounts
from holdfast.values.workers import WorkerRecord

_QUEUES = Listing(
    "queues",
    "A queue is there with its first job: `holdfast enqueue KIND`.",
    (
        Column("QUEUE", "name"),
        Column("PENDING", "number"),
        Column("BLOCKED", "number", rank=2),
        Column("RUNNING", "number"),
        Column("LATER", "number", rank=3),
        Column("DONE/MIN", "number", rank=1),
        Column("FAILED/MIN", "number"),
        Column("PAUSED", least=20),
    ),
)
_LANES = (
    Column("LANE", least=16),
    Column("RUNNING", "number"),
    Column("BLOCKED", "number"),
    Column("RATE", rank=1),
    Column("OPENS", "time", rank=2),
)
_COUNTS = ("pending", "blocked", "running", "later", "succeeded", "failed", "cancelled")


@click.group()
def command() -> None:
    """List, show, pause and resume queues."""


@command.command()
@url_option
@wide_option
@json_option
def ls(url: str | None, as_json: bool, wide: bool) -> None:
    """List queues and their counts. Ended jobs are those of the last minute; counts stop at 10,000."""
    print_list(
        url,
        lambda app: app.queues.stats(),
        _QUEUES,
        lambda row: (row.name, *(counted(getattr(row, name)) for name in _COUNTS[:-1]), _paused(row)),
        as_json=as_json,
        wide=wide,
    )


class QueueReport(NamedTuple):
    """One queue from all sides."""

    stats: QueueCounts
    lanes: Sequence[LaneRecord]
    workers: Sequence[WorkerRecord]
    oldest_at: int | None
    now: int


@command.command()
@click.argument("name")
@url_option
@json_option
def show(name: str, url: str | None, as_json: bool) -> None:
    """Show one queue: its policy, its counts, its lanes, how long its oldest job waits, and who serves it."""

    async def viewed(app: Holdfast) -> tuple[QueueReport, list[Row], TableStyle]:
        view = await _view(app, name)
        shown = [_lane(lane) for lane in view.lanes]
        return view, shown, await look_at(app, _LANES, shown)

    view, shown, look = ask(url, viewed)
    waits = None if view.oldest_at is None else view.now - view.oldest_at
    if as_json:
        beside = {"lanes": list(view.lanes), "workers": [worker.id for worker in view.workers]}
        print_json({**values.as_json(view.stats), "oldest_pending_at": moment(view.oldest_at), **beside})
        return
    counts = {name: counted(getattr(view.stats, name)) for name in _COUNTS[:4]}
    ended = {f"{name}_last_minute": counted(getattr(view.stats, name)) for name in _COUNTS[4:]}
    policy = {k: v for k, v in values.as_json(view.stats).items() if k not in _COUNTS and k != "fair"}
    print_pairs(
        {
            **policy,
            "fair": "yes" if view.stats.fair else "no",
            **counts,
            **ended,
            "oldest_pending": None if waits is None else f"waits for {rough(waits)}",
            "workers": ", ".join(worker.id for worker in view.workers) or "no worker serves it",
        }
    )
    if view.lanes:
        print_table(_LANES, shown, look, empty="")


@command.command()
@click.argument("name")
@click.option("--reason", default="", help="The reason that `jobs why` shows.")
@click.option("--create", is_flag=True, help="Pause it even if there is no such queue yet.")
@url_option
@json_option
def pause(name: str, reason: str, create: bool, url: str | None, as_json: bool) -> None:
    """Pause a queue: no worker claims its jobs any more; running jobs continue."""

    async def paused(app: Holdfast) -> None:
        if not create:
            await require_queue(app, name, " To pause a queue before its first job, add --create.")
        await app.queues.pause(name, reason=reason)

    ask(url, paused)
    if as_json:
        print_json({"name": name, "paused": True, "changed": True})
    else:
        click.echo(f"queue {name} is paused; `holdfast queues resume {name}{repeated(url)}` resumes it")


@command.command()
@click.argument("name")
@reason_option
@url_option
@json_option
def resume(name: str, url: str | None, as_json: bool) -> None:
    """Resume a paused queue."""
    resumed = ask(url, lambda app: app.queues.resume(name))
    if as_json:
        print_json({"name": name, "paused": False, "changed": resumed})
    else:
        click.echo(f"queue {name} is resumed" if resumed else f"queue {name} was not paused")


async def require_queue(app: Holdfast, name: str | None, advice: str = "") -> None:
    """Refuse a queue that nobody has used: its name is probably misspelt. None is every queue."""
    known = [row.name for row in await all_of(app.queues.list)]
    if name is not None and name not in known:
        raise NotFound(absent_queue(name, known) + advice)


async def say_if_absent(app: Holdfast, kind: str | None) -> None:
    """Say on stderr that no stored job is of this kind: its name is probably misspelt."""
    if kind is None or await app.jobs.list(kind=kind, limit=1):
        return
    close = did_you_mean(kind, {row.kind for row in await app.jobs.list(limit=1_000)})
    click.echo(f"no stored job is of kind {kind!r}.{close}", err=True)


async def _view(app: Holdfast, name: str) -> QueueReport:
    stats = await app.queues.stats()
    found = next((row for row in stats if row.name == name), None)
    if found is None:
        raise NotFound(absent_queue(name, [row.name for row in stats]))
    database = core_of(app).runtime().database
    backlogs = [b for b in await database.transact(watch.backlogs) if b.queue == name]
    oldest = min((b.oldest_at for b in backlogs if b.oldest_at is not None), default=None)
    workers = [row for row in await all_of(app.workers.list) if row.queues is None or name in row.queues]
    now = await database.transact(queries.now)
    return QueueReport(found, await all_of(app.queues.lanes, queue=name), workers, oldest, now)


def _lane(lane: LaneRecord) -> Row:
    return (
        lane.name,
        lane.running if lane.concurrency is None else f"{lane.running}/{lane.concurrency}",
        counted(lane.blocked),
        None if lane.interval is None else f"one every {show_duration(microseconds(lane.interval))}",
        lane.opens_at,
    )


def _paused(row: QueueCounts) -> DualCell | None:
    if row.paused_at is None:
        return None
    reason = [f": {row.pause_reason}"] if row.pause_reason else []
    return DualCell(f"since {moment(row.paused_at)}{''.join(reason)}", [row.paused_at, *reason])
