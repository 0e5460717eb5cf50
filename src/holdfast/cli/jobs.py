"""`holdfast jobs`: list and show them, say why one is not run, enqueue one again, cancel, follow."""

from __future__ import annotations

import sys
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
from holdfast.kernel.cancel import Cancelled
from holdfast.kernel.cancel_many import LIVE
from holdfast.kernel.reading import LOOK, NEWEST
from holdfast.kernel.records import AttemptRow, JobRow
from holdfast.kernel.states import TERMINAL, State

_MOST = 2_000_000  # jobs that are counted before they are cancelled
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
@click.option("--before", type=click.IntRange(1), metavar="SEQ", help="Only jobs older than the one of this number.")
@url_option
@json_option
def ls(url: str | None, as_json: bool, before: int | None, **filters: Any) -> None:
    """List jobs, newest first.

    One call looks at no more than 100,000 jobs for those that fit, and then says where to go on.
    """
    rows = ask(url, lambda app: app.jobs.list(before=NEWEST if before is None else before, **filters))
    if rows.before is not None and len(rows) < filters["limit"]:
        click.echo(f"looked at {LOOK:,} jobs; --before {rows.before} goes on with older ones", err=True)
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
        rows = await _newest(app, **filters)
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
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All live jobs that the options below select.")
@click.option("--queue", help="With --all: only jobs of this queue.")
@click.option("--kind", help="With --all: only jobs of this kind.")
@click.option("--tenant", help="With --all: only jobs of this tenant.")
@click.option("--state", type=click.Choice(LIVE), help="With --all: only jobs in this state.")
@click.option("--yes", is_flag=True, help="With --all: do not ask first.")
@click.option("--dry-run", is_flag=True, help="With --all: only say how many there are; the count stops at 2,000,000.")
@click.option("--reason", default="cancelled by hand", show_default=True, help="Kept with the job.")
@url_option
@json_option
def cancel(
    *,
    ids: tuple[str, ...],
    every: bool,
    yes: bool,
    dry_run: bool,
    reason: str,
    url: str | None,
    as_json: bool,
    **conditions: str | None,
) -> None:
    """Cancel jobs and their families; what has ended stays as it is.

    What runs is asked to stop. --all works a thousand jobs at a time; it may be interrupted and repeated.
    """
    if bool(ids) == every:
        raise UsageError("name the jobs to cancel, or select them with --all.")
    if not every and (yes or dry_run or any(conditions.values())):
        raise UsageError("--queue, --kind, --tenant, --state, --yes and --dry-run select jobs for --all; add it.")
    if every:
        _cancel_all(url, conditions, reason, yes=yes, dry_run=dry_run, as_json=as_json)
        return

    async def cancelled(app: Holdfast) -> list[tuple[str, str]]:
        return [(id, await app.jobs[id].cancel(reason)) for id in ids]

    states = ask(url, cancelled)
    if as_json:
        print_json([{"id": id, "state": state} for id, state in states])
        return
    for id, state in states:
        click.echo(f"{id} {_CANCELLED.get(state, f'had ended before, as {state}')}")


async def _newest(app: Holdfast, *, limit: int, **filters: Any) -> list[JobRow]:
    """So many jobs that fit, however far back they are."""
    rows: list[JobRow] = []
    before: int | None = NEWEST
    while before is not None and len(rows) < limit:
        page = await app.jobs.list(before=before, limit=limit - len(rows), **filters)
        rows += page
        before = page.before
    return rows


def _sure(question: str) -> bool:
    try:
        return click.confirm(question, err=True)
    except click.Abort:  # nobody is there to answer
        click.echo(err=True)
        return False


def _cancel_all(
    url: str | None, conditions: dict[str, str | None], reason: str, *, yes: bool, dry_run: bool, as_json: bool
) -> None:
    watched = sys.stderr.isatty()
    count = 0
    if dry_run or watched or not yes:  # else nobody reads it
        count = ask(url, lambda app: app.jobs.count_cancellable(cap=_MOST, all=True, **conditions))
    told = f"{count:,}+" if count >= _MOST else f"{count:,}"
    if dry_run:
        print_json({"cancellable": count}) if as_json else click.echo(f"{told} jobs would be cancelled")
        return
    if count and not yes and not _sure(f"cancel {told} jobs and their families?"):
        raise UsageError("nothing is cancelled: nobody said yes. --yes does not ask.")

    async def cancelled(app: Holdfast) -> Cancelled:
        total = 0

        def done(part: Cancelled) -> None:
            nonlocal total
            total += sum(part)
            bar.length = max(count, total)  # some came meanwhile, or the count stopped
            bar.update(sum(part))

        with click.progressbar(length=count, label="cancelling", file=sys.stderr, hidden=not watched) as bar:
            return await app.jobs.cancel(all=True, reason=reason, done=done, **conditions)

    ended, asked = ask(url, cancelled)
    if as_json:
        print_json({"cancelled": ended, "asked": asked})
        return
    click.echo(f"{ended:,} jobs are cancelled")
    if asked:
        click.echo(f"{asked:,} jobs run: their workers were asked to stop them")


_CANCELLED: dict[str, str] = {State.CANCELLED: "is cancelled", State.RUNNING: "runs: its worker was asked to stop it"}


def as_dict(row: JobRow) -> dict[str, Any]:
    shown = readable(row._asdict(), encoding.decode, texts=_STORED)
    token = f"{shown.pop('epoch')}.{shown.pop('token')}"
    return {**shown, "token": token}


def _attempt(row: AttemptRow) -> dict[str, Any]:
    return readable(row._asdict(), encoding.decode, texts=("error",))
