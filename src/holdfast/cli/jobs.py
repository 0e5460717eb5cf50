"""`holdfast jobs`: list and show them, say why one is not run, enqueue one again, cancel, follow."""

from __future__ import annotations

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
    progress,
    readable,
    url_option,
)
from holdfast.cli.tail import tail
from holdfast.errors import UsageError
from holdfast.kernel import encoding
from holdfast.kernel.records import AttemptRow, JobRow
from holdfast.kernel.states import TERMINAL, State

_STORED = ("payload", "metadata", "progress", "result", "error")


@click.group()
def command() -> None:
    """List, show, explain, retry, cancel and follow jobs."""


command.add_command(tail)


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
    rows = _list(url, filters)
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

    async def found(app: Holdfast) -> tuple[JobRow, Sequence[AttemptRow]]:
        return await app.jobs.get(id), await app.jobs.attempts(id)

    row, attempts = ask(url, found)
    if as_json:
        print_json({**as_dict(row), "attempts": [_attempt(attempt) for attempt in attempts]})
        return
    print_pairs(as_dict(row))
    print_table(
        ["TOKEN", "WORKER", "OUTCOME", "STARTED", "ENDED"],
        [(f"{a.epoch}.{a.token}", a.worker, a.outcome, moment(a.started_at), moment(a.ended_at)) for a in attempts],
        empty="no attempt has ended yet",
    )


@command.command()
@click.argument("id")
@click.option("--worker", help="Why this worker, of this id, does not take it; default: any.")
@url_option
@json_option
def why(id: str, worker: str | None, url: str | None, as_json: bool) -> None:
    """Say what keeps a job from being run."""
    reasons = ask(url, lambda app: app.jobs.why(id, worker=worker))
    if as_json:
        print_json([{"gate": r.gate, "sentence": r.sentence, "until": moment(r.until)} for r in reasons])
        return
    for reason in reasons:
        click.echo(reason.sentence)
    if not reasons:
        click.echo("nothing stands in its way: a worker will take it")


@command.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All jobs that the options below select, each one once.")
@click.option(
    "--state",
    type=click.Choice([str(state) for state in State if state in TERMINAL]),
    default=str(State.FAILED),
    show_default=True,
    help="With --all: jobs that ended so.",
)
@click.option("--queue", help="With --all: only jobs of this queue.")
@click.option("--kind", help="With --all: only jobs of this kind.")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=1_000,
    show_default=True,
    help="With --all: at most this many, the newest.",
)
@url_option
@json_option
def retry(ids: tuple[str, ...], every: bool, url: str | None, as_json: bool, **filters: Any) -> None:
    """Enqueue ended jobs again, each as a new job that names the old one.

    The new job has the same kind, queue, payload, metadata, priority and limits. With --all, a job that was enqueued
    again by --all before is left alone, so the command may be repeated.
    """
    if bool(ids) == every:
        raise UsageError("name the jobs to enqueue again, or select them with --all.")

    async def enqueue_again(app: Holdfast) -> list[tuple[str, str]]:
        if not every:
            return [(id, (await app.jobs.retry(id)).id) for id in ids]
        rows = await app.jobs.list(**filters)
        made: list[tuple[str, str]] = []
        with progress(rows[::-1], "enqueuing again") as bar:
            for row in bar:
                if (job := await app.jobs.retry_once(row.id)) is not None:
                    made.append((row.id, job.id))
        return made

    made = ask(url, enqueue_again)
    if as_json:
        print_json([{"id": new, "retry_of": old} for old, new in made])
        return
    for old, new in made:
        click.echo(f"{old} is enqueued again as {new}")
    if every:
        click.echo(f"{len(made)} jobs enqueued again")


@command.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--reason", default="cancelled by hand", show_default=True, help="Kept with the job.")
@url_option
@json_option
def cancel(ids: tuple[str, ...], reason: str, url: str | None, as_json: bool) -> None:
    """Cancel jobs and their families; what has ended stays as it is."""

    async def cancelled(app: Holdfast) -> list[tuple[str, str]]:
        return [(id, await app.jobs[id].cancel(reason)) for id in ids]

    states = ask(url, cancelled)
    if as_json:
        print_json([{"id": id, "state": state} for id, state in states])
        return
    for id, state in states:
        click.echo(f"{id} {_CANCELLED.get(state, f'had ended before, as {state}')}")


_CANCELLED: dict[str, str] = {State.CANCELLED: "is cancelled", State.RUNNING: "runs: its worker was asked to stop it"}


def as_dict(row: JobRow) -> dict[str, Any]:
    shown = readable(row._asdict(), encoding.decode, texts=_STORED)
    token = f"{shown.pop('epoch')}.{shown.pop('token')}"
    return {**shown, "token": token}


def _attempt(row: AttemptRow) -> dict[str, Any]:
    return readable(row._asdict(), encoding.decode, texts=("error",))


def _list(url: str | None, filters: dict[str, Any]) -> Sequence[JobRow]:
    return ask(url, lambda app: app.jobs.list(**filters))
