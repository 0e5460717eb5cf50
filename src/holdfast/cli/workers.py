"""`holdfast workers`: list and show them, ask one to drain, forget one that is dead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import click

from holdfast import values
from holdfast.app import Holdfast
from holdfast.cli.options import (
    all_of,
    ask,
    json_option,
    moment,
    print_json,
    print_pairs,
    reason_option,
    rough,
    url_option,
)
from holdfast.cli.short_ids import whole
from holdfast.cli.tables import (
    Column,
    DualCell,
    Listing,
    Row,
    TableStyle,
    look_at,
    print_listed,
    print_table,
    wide_option,
)
from holdfast.kernel.states import WorkerState
from holdfast.values.jobs import JobChange
from holdfast.values.workers import DutyRecord, WorkerRecord

_WORKERS = Listing(
    "workers",
    "Start one with `holdfast worker MODULE:APP`.",
    (
        Column("WORKER", "id", of="worker"),
        Column("NAME", rank=3),
        Column("HOST", rank=2, least=8),
        Column("PID", "number", rank=5),
        Column("STATUS", "state"),
        Column("BUSY", least=20),
        Column("HEARTBEAT", "time"),
        Column("PRESENCE", rank=6, least=8),
        Column("DUTIES", rank=4),
    ),
)
_JOBS = (
    Column("JOB", "id", of="job"),
    Column("KIND", "name"),
    Column("QUEUE", rank=1),
    Column("CLAIMED", "time"),
)


class WorkerReport(NamedTuple):
    """A worker, what it runs and who has which duty."""

    row: WorkerRecord
    jobs: Sequence[JobChange]
    duties: Sequence[DutyRecord]


@click.group()
def command() -> None:
    """List, show, drain and forget workers."""


@command.command()
@click.option("--all", "every", is_flag=True, help="Include workers that stopped or were lost recently.")
@url_option
@wide_option
@json_option
def ls(every: bool, url: str | None, as_json: bool, wide: bool) -> None:
    """List workers, newest first."""

    async def listed(app: Holdfast) -> tuple[Sequence[WorkerRecord], Sequence[DutyRecord], list[Row], TableStyle]:
        rows, duties = await all_of(app.workers.list, all=every), await app.workers.duties()
        shown = [_cells(row, duties) for row in rows]
        return rows, duties, shown, await look_at(app, _WORKERS.columns, shown, wide=wide)

    rows, duties, shown, look = ask(url, listed)
    if as_json:
        print_json([{**values.as_json(row), "duties": _held(row, duties)} for row in rows])
        return
    print_listed(_WORKERS, shown, look)


@command.command()
@click.argument("id")
@url_option
@json_option
def show(id: str, url: str | None, as_json: bool) -> None:
    """Show one worker, the jobs it holds and its duties."""

    async def found(app: Holdfast) -> tuple[WorkerReport, list[Row], TableStyle]:
        row = await app.workers.get(await whole(app, id, "worker"))
        jobs, duties = await app.workers.held(row), await app.workers.duties()
        shown: list[Row] = [(job.id, job.kind, job.queue, job.at) for job in jobs]
        return WorkerReport(row, jobs, duties), shown, await look_at(app, _JOBS, shown)

    (row, jobs, duties), held, look = ask(url, found)
    if as_json:
        holds = [{"id": job.id, "kind": job.kind, "queue": job.queue, "claimed_at": moment(job.at)} for job in jobs]
        print_json({**values.as_json(row), "duties": _held(row, duties), "jobs": holds})
        return
    shown = values.as_json(row)
    shown["capabilities"] = ", ".join(shown["capabilities"])
    shown["lines"] = _busy(row)
    shown["loop_held"] = _loop_held(row)
    shown["queues"] = "every queue" if shown["queues"] is None else ", ".join(shown["queues"])
    print_pairs({**shown, "duties": ", ".join(_held(row, duties))})
    print_table(_JOBS, held, look, empty="it is not running any job")


@command.command()
@click.argument("id")
@reason_option
@url_option
@json_option
def drain(id: str, url: str | None, as_json: bool) -> None:
    """Ask a worker to drain: it claims no more jobs, finishes or returns the ones it has, and exits."""

    async def drained(app: Holdfast) -> str:
        named = await whole(app, id, "worker")
        await app.workers.drain(named)
        return named

    id = ask(url, drained)
    if as_json:
        print_json({"id": id, "status": WorkerState.DRAINING})
    else:
        click.echo(f"worker {id} was asked to drain")


@command.command()
@click.argument("id")
@url_option
@json_option
def forget(id: str, url: str | None, as_json: bool) -> None:
    """Remove a worker that has left or died from the lists. Refused while it lives."""

    async def forgotten(app: Holdfast) -> str:
        named = await whole(app, id, "worker")
        await app.workers.forget(named)
        return named

    id = ask(url, forgotten)
    if as_json:
        print_json({"id": id, "status": "forgotten"})
    else:
        click.echo(f"worker {id} is forgotten")


def _cells(row: WorkerRecord, duties: Sequence[DutyRecord]) -> Row:
    return (
        *(row.id, row.name, row.hostname, row.pid, "silent" if row.silent else row.status, _busy(row)),
        DualCell(f"{rough(row.now - row.heartbeat_at)} ago", [row.heartbeat_at]),
        "yes" if row.presence else "no",
        ",".join(_held(row, duties)),
    )


def _busy(row: WorkerRecord) -> str:
    """What is taken of each group of its slots, as of its last heartbeat."""
    groups = [f"{name} {group.active}/{group.slots}" for name, group in row.lines.items()]
    return " · ".join(groups) or f"{row.leases}/{row.slots}"


def _loop_held(row: WorkerRecord) -> str | None:
    if (held := row.loop_held) is None:
        return None
    return f"by {held.by} for {rough(held.lasted)}, " + (f"until {moment(held.until)}" if held.until else "still")


def _held(row: WorkerRecord, duties: Sequence[DutyRecord]) -> list[str]:
    return [duty.name for duty in duties if duty.holder == row.seq]
