"""`holdfast workers`: list and show them, ask one to drain."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from holdfast.app import Holdfast
from holdfast.cli.options import (
    ask,
    json_option,
    moment,
    print_json,
    print_pairs,
    print_table,
    readable,
    rough,
    url_option,
)
from holdfast.kernel.records import DutyRow, WorkerRow
from holdfast.kernel.sightings import Change
from holdfast.kernel.workers import lines_of


@click.group()
def command() -> None:
    """List, show and drain workers."""


@command.command()
@click.option("--all", "every", is_flag=True, help="Also workers that stopped or were lost lately.")
@url_option
@json_option
def ls(every: bool, url: str | None, as_json: bool) -> None:
    """List workers, newest first."""

    async def listed(app: Holdfast) -> tuple[Sequence[WorkerRow], Sequence[DutyRow]]:
        return await app.workers.list(all=every), await app.workers.duties()

    rows, duties = ask(url, listed)
    if as_json:
        print_json([{**_as_dict(row), "duties": _held(row, duties)} for row in rows])
        return
    print_table(
        ["WORKER", "NAME", "HOST", "PID", "STATUS", "BUSY", "HEARTBEAT", "PRESENCE", "DUTIES"],
        [
            (
                row.id,
                row.name,
                row.hostname,
                row.pid,
                row.status,
                _busy(row),
                f"{rough(row.now - row.heartbeat_at)} ago",
                "yes" if row.presence else "no",
                ",".join(_held(row, duties)) or "-",
            )
            for row in rows
        ],
        empty="no workers",
    )


@command.command()
@click.argument("id")
@url_option
@json_option
def show(id: str, url: str | None, as_json: bool) -> None:
    """Show one worker, the jobs it holds and its duties."""

    async def found(app: Holdfast) -> tuple[WorkerRow, Sequence[Change], Sequence[DutyRow]]:
        row = await app.workers.get(id)
        return row, await app.workers.held(row), await app.workers.duties()

    row, jobs, duties = ask(url, found)
    if as_json:
        holds = [{"id": job.id, "kind": job.kind, "queue": job.queue, "claimed_at": moment(job.at)} for job in jobs]
        print_json({**_as_dict(row), "duties": _held(row, duties), "jobs": holds})
        return
    shown = _as_dict(row)
    shown["capabilities"] = ", ".join(shown["capabilities"])
    shown["lines"] = _busy(row)
    shown["queues"] = "every queue" if shown["queues"] is None else ", ".join(shown["queues"])
    print_pairs({**shown, "duties": ", ".join(_held(row, duties))})
    print_table(
        ["JOB", "KIND", "QUEUE", "CLAIMED"],
        [(job.id, job.kind, job.queue, moment(job.at)) for job in jobs],
        empty="it holds no job",
    )


@command.command()
@click.argument("id")
@url_option
@json_option
def drain(id: str, url: str | None, as_json: bool) -> None:
    """Ask a worker to drain: it takes nothing more, finishes or hands back what it has, and leaves."""
    ask(url, lambda app: app.workers.drain(id))
    if as_json:
        print_json({"id": id, "status": "draining"})
    else:
        click.echo(f"worker {id} was asked to drain")


def _busy(row: WorkerRow) -> str:
    """What is taken of the slots of each line that it serves, as of its last heartbeat."""
    lines = [f"{name} {taken}/{slots}" for name, (slots, taken) in lines_of(row).items()]
    return " · ".join(lines) or f"{row.leases}/{row.slots}"


def _held(row: WorkerRow, duties: Sequence[DutyRow]) -> list[str]:
    return [duty.name for duty in duties if duty.holder == row.seq]


def _as_dict(row: WorkerRow) -> dict[str, Any]:
    shown = readable(row._asdict(), json.loads, texts=("capabilities", "queues"))
    shown["presence"] = bool(row.presence)
    shown["lines"] = {name: {"slots": slots, "active": taken} for name, (slots, taken) in lines_of(row).items()}
    del shown["now"]
    return shown
