"""`holdfast workers`: list them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import click

from holdfast.cli.options import app_for, json_option, print_json, print_table, readable, url_option
from holdfast.durations import show
from holdfast.kernel.records import DutyRow, WorkerRow


@click.group()
def command() -> None:
    """List workers."""


@command.command()
@click.option("--all", "every", is_flag=True, help="Also workers that stopped or were lost lately.")
@url_option
@json_option
def ls(every: bool, url: str | None, as_json: bool) -> None:
    """List workers, newest first."""
    rows, duties = asyncio.run(_list(url, every))
    held: dict[int, list[str]] = {}
    for duty in duties:
        held.setdefault(duty.holder, []).append(duty.name)
    if as_json:
        print_json([{**_as_dict(row), "duties": held.get(row.seq, [])} for row in rows])
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
                f"{row.leases}/{row.slots}",
                f"{show((row.now - row.heartbeat_at) // 1_000_000 * 1_000_000)} ago",
                "yes" if row.presence else "no",
                ",".join(held.get(row.seq, [])) or "-",
            )
            for row in rows
        ],
        empty="no workers",
    )


def _as_dict(row: WorkerRow) -> dict[str, Any]:
    shown = readable(row._asdict(), json.loads, texts=("capabilities", "queues"))
    shown["presence"] = bool(row.presence)
    del shown["now"]
    return shown


async def _list(url: str | None, every: bool) -> tuple[list[WorkerRow], list[DutyRow]]:
    async with app_for(url) as app:
        return list(await app.workers.list(all=every)), list(await app.workers.duties())
