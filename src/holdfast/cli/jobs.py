"""`holdfast jobs`: list and show them, say why one is not run, enqueue one again, cancel, follow."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from holdfast import values
from holdfast.app import Holdfast, core_of
from holdfast.cli.options import (
    after_option,
    app_for,
    as_tenant_option,
    ask,
    json_option,
    limit_option,
    moment,
    print_json,
    print_pairs,
    progress,
    reason_option,
    run_until_interrupted,
    url_option,
)
from holdfast.cli.queues import require_queue, say_if_absent
from holdfast.cli.short_ids import whole
from holdfast.cli.tables import (
    Column,
    Listing,
    Row,
    TableStyle,
    look_at,
    on_terminal,
    print_list,
    print_table,
    wide_option,
)
from holdfast.durations import duration
from holdfast.errors import NotFound, UsageError
from holdfast.kernel import codec, queries, watch
from holdfast.kernel.cancel import LIVE, Cancelled
from holdfast.kernel.rows import Change
from holdfast.kernel.states import TERMINAL, State
from holdfast.text import first_line, plural, shown, shown_lines
from holdfast.values.jobs import AttemptRecord, JobRecord, Why, change_of
from holdfast.workers.context import Child

# Failures on a terminal: what was raised, as text, with the user's lines last.


def print_failure(title: str, error: Any) -> None:
    """A stored error: its type and message in one line, then the traceback; nothing when there is no error."""
    if not isinstance(error, dict):
        return
    message = str(error.get("message", ""))
    click.echo(f"\n{title}: {shown(error.get('type', ''))}: {shown(first_line(message))}")
    if rest := error.get("trace") or (message if "\n" in message else ""):
        click.echo(shown_lines(rest))


def print_attempts_failures(error: Any, attempts: Sequence[AttemptRecord]) -> None:
    """Why a job failed, and why earlier attempts failed where their reason was another one."""
    last = error if isinstance(error, dict) else None
    for attempt in reversed(attempts):
        if isinstance(attempt.error, dict) and (last is None or attempt.error != last):
            print_failure(f"attempt {attempt.token} {attempt.outcome}", attempt.error)
            last = attempt.error
    print_failure("error", error)


async def raised_by(app: Holdfast, job: str) -> Any:
    """The stored error of the job behind a run or a call; None when it has none, or retention removed it."""
    try:
        return (await app.jobs.get(job)).error
    except NotFound:
        return None


# `holdfast jobs tail`: the jobs of a store as they change, until Ctrl-C.
#
# The store keeps no log of changes. New jobs are found by their number, claimed and ended ones by their time, and
# those
# seen before are asked after; a job that changes twice between two looks is seen once.


_OVERLAP_US = 5_000_000  # who commits late has an earlier time
_REMEMBERED = 10_000
_FOLLOWED = 1_000


@click.command()
@click.option("--queue", help="Only jobs of this queue.")
@click.option("--kind", help="Only jobs of this kind.")
@click.option("--state", type=click.Choice([str(state) for state in State]), help="Only changes to this state.")
@click.option(
    "--lines", type=click.IntRange(0, 1_000), default=10, show_default=True, help="How many recent jobs to show first."
)
@click.option("--interval", default="500ms", show_default=True, help="Pause between polls.")
@url_option
@json_option
def tail(
    *,
    queue: str | None,
    kind: str | None,
    state: str | None,
    lines: int,
    interval: str,
    url: str | None,
    as_json: bool,
) -> None:
    """Follow jobs as they change; Ctrl-C stops following."""
    pause = duration(interval).total_seconds()
    app = app_for(url)

    async def follow() -> None:
        async with app:
            await require_queue(app, queue)
            await say_if_absent(app, kind)
            watcher = Watcher(app, queue, lines)
            while True:
                for change in await watcher.look():
                    if kind in (None, change.kind) and state in (None, change.state):
                        click.echo(_as_json(change) if as_json else _as_line(change, today=on_terminal()))
                await asyncio.sleep(pause)

    run_until_interrupted(follow())


class Watcher:
    """What has been seen so far."""

    def __init__(self, app: Holdfast, queue: str | None, lines: int) -> None:
        self._app = app
        self._queue = queue
        self._lines = lines
        self._newest = 0
        self._since = 0
        self._seen: dict[int, str] = {}  # the state each job was last seen in, oldest first
        self._begun = False

    async def look(self) -> list[Change]:
        """What has changed since the last look, oldest first."""
        database = core_of(self._app).runtime().database
        now = await database.transact(queries.now)
        if not self._begun:
            self._begun = True
            newest = await self._app.jobs.list(limit=1, system=True)
            rows = await self._app.jobs.list(queue=self._queue, limit=self._lines) if self._lines else []
            self._newest = newest[0].seq if newest else 0
            self._since = now
            found = await database.transact(
                watch.changes, after=self._newest, since=now, known=[row.seq for row in rows], queue=self._queue
            )
            return list(self._news(found))
        found = await database.transact(
            watch.changes, after=self._newest, since=self._since, known=self._followed(), queue=self._queue
        )
        self._since = now - _OVERLAP_US
        self._newest = max([self._newest, *(change.seq for change in found)])
        return list(self._news(found))

    def _news(self, found: list[Change]) -> Iterator[Change]:
        for change in found:
            if self._queue not in (None, change.queue):
                continue
            if self._seen.pop(change.seq, None) != change.state:
                yield change
            self._seen[change.seq] = change.state
        while len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]

    def _followed(self) -> list[int]:
        live = [seq for seq, state in self._seen.items() if state not in TERMINAL]
        return live[-_FOLLOWED:]


def _as_line(change: Change, *, today: bool = False) -> str:
    """One change. `today`: a person who watches knows the date, so the line has the time only and fits 80 columns."""
    error = codec.decode(change.error) if change.state == State.FAILED else None
    at = moment(change.at) or ""
    words = [at[len("2026-01-01T") :][:8] if today else at, change.id, f"{change.state:9}", change.queue, change.kind]
    return shown("  ".join([*words, first_line(error.get("message", ""))] if error else words))


def _as_json(change: Change) -> str:
    return json.dumps(values.as_json(change_of(change)), ensure_ascii=False)


_JOBS = Listing(
    "jobs",
    "Enqueue one: `holdfast enqueue KIND`, or `await your_job.enqueue(…)` in your program.",
    (
        Column("ID", "id", of="job"),
        Column("KIND", "name"),
        Column("QUEUE", rank=3, least=7),
        Column("TENANT", rank=1, least=7, sparse=True),
        Column("STATE", "state"),
        Column("ATTEMPTS", "number", rank=2),
        Column("RESCUES", "number", rank=4),
        Column("CREATED", "time", rank=1),
    ),
)
_ATTEMPTS = (
    Column("TOKEN", "number"),
    Column("WORKER", "number", rank=2),
    Column("OUTCOME", "state"),
    Column("STARTED", "time", rank=1),
    Column("ENDED", "time"),
)
_CHILDREN = (Column("CHILD", "id", of="job"), Column("KIND", "name"), Column("STATE", "state"))
_SHOWN_CHILDREN = 20
_MOST = 2_000_000  # jobs that are counted before they are cancelled


@click.group()
def command() -> None:
    """List, show, explain, retry, cancel and follow jobs."""


command.add_command(tail)


@command.command()
@click.option("--state", type=click.Choice([str(state) for state in State]), help="Only jobs in this state.")
@click.option("--queue", help="Only jobs of this queue.")
@click.option("--kind", help="Only jobs of this kind, or of a pattern such as 'mail.*'.")
@click.option("--tenant", help="Only jobs of this tenant.")
@click.option("--since", metavar="TIME", help="Only jobs created since then: 1h, 30m, or a time with its zone.")
@click.option("--key", help="Only the job with this idempotency key, of --tenant if it has one.")
@click.option("--system", is_flag=True, help="Also the runtime's own jobs.")
@limit_option
@after_option
@url_option
@wide_option
@json_option
def ls(url: str | None, as_json: bool, wide: bool, **filters: Any) -> None:
    """List jobs, newest first.

    One call reads at most 100,000 jobs to find those that match, and then says where to continue.
    """
    narrowed = any(filters[name] for name in ("state", "queue", "kind", "tenant", "since", "key", "after"))
    print_list(
        url,
        lambda app: app.jobs.list(**filters),
        _JOBS,
        lambda row: (
            *(row.id, row.kind, row.queue, row.tenant, row.state),
            *(f"{row.attempts}/{row.max_attempts}", row.rescues, row.created_at),
        ),
        filtered=narrowed,
        as_json=as_json,
        wide=wide,
    )


@command.command()
@click.argument("id")
@url_option
@json_option
def show(id: str, url: str | None, as_json: bool) -> None:
    """Show one job with all its details, attempts and children."""

    async def found(app: Holdfast) -> tuple[JobRecord, Sequence[AttemptRecord], Sequence[Child], list[Row], TableStyle]:
        row = await app.jobs.get(await whole(app, id, "job"))
        attempts = await app.jobs.attempts(row.id)
        rows: list[Row] = [(a.token, a.worker, a.outcome, a.started_at, a.ended_at) for a in attempts]
        children = await app.jobs.children(row.id)
        return row, attempts, children, rows, await look_at(app, _ATTEMPTS, rows)

    row, attempts, children, ended, look = ask(url, found)
    if as_json:
        print_json({**values.as_json(row), "attempts": attempts, **({"children": children} if children else {})})
        return
    print_pairs({name: value for name, value in values.as_json(row).items() if name != "error"})
    print_table(_ATTEMPTS, ended, look, empty="no attempt has ended yet")
    if children:
        some = [(each.id, each.kind, each.state) for each in children[:_SHOWN_CHILDREN]]
        print_table(_CHILDREN, some, look, empty="")
        if len(children) > len(some):
            click.echo(f"and {plural(len(children) - len(some), 'more child', 'more children')}")
    print_attempts_failures(row.error, attempts)


@command.command()
@click.argument("id")
@click.option("--worker", help="Explain for the worker with this id; default: any worker.")
@as_tenant_option
@url_option
@json_option
def why(id: str, worker: str | None, tenant: str | None, url: str | None, as_json: bool) -> None:
    """Explain why a job is not running: what it waits for, who runs it, or how it ended."""

    async def asked(app: Holdfast) -> Why:
        named = (await app.jobs.get(await whole(app, id, "job"))).id
        if tenant is not None:
            return await app.tenant(tenant).jobs.why(named)
        return await app.jobs.why(named, worker=None if worker is None else await whole(app, worker, "worker"))

    if tenant is not None and worker is not None:
        raise UsageError("--worker names a worker, and a tenant sees none: give one of --worker and --tenant.")
    print_why(ask(url, asked), as_json=as_json)


def print_why(reasons: Why, *, as_json: bool) -> None:
    """What keeps a job or a run, one sentence a line."""
    if as_json:
        print_json(reasons)
        return
    for reason in reasons:
        click.echo(shown(reason.sentence))
    if not reasons:
        click.echo("nothing holds it back: a worker will take it")


@command.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Retry every job that the options below select, each once.")
@click.option(
    "--state",
    type=click.Choice([str(state) for state in State if state in TERMINAL]),
    default=str(State.FAILED),
    show_default=True,
    help="With --all: only jobs that ended in this state.",
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
@reason_option
@url_option
@json_option
def retry(ids: tuple[str, ...], every: bool, url: str | None, as_json: bool, **filters: Any) -> None:
    """Enqueue ended jobs again, each as a new job that names the old one.

    The new job has the same kind, queue, payload, metadata, priority and limits. With --all, a job that was enqueued
    again by --all before is skipped, so you can repeat the command.
    """
    if bool(ids) == every:
        raise UsageError("name the jobs to enqueue again, or select them with --all.")

    async def enqueue_again(app: Holdfast) -> list[tuple[str, str]]:
        if not every:
            named = [await whole(app, id, "job") for id in ids]
            return [(id, (await app.jobs.retry(id)).id) for id in named]
        await require_queue(app, filters["queue"])
        await say_if_absent(app, filters["kind"])
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
        click.echo(f"{plural(len(made), 'job')} enqueued again")


@command.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Cancel every live job that the options below select.")
@click.option("--queue", help="With --all: only jobs of this queue.")
@click.option("--kind", help="With --all: only jobs of this kind.")
@click.option("--tenant", help="With --all: only jobs of this tenant.")
@click.option("--state", type=click.Choice(LIVE), help="With --all: only jobs in this state.")
@click.option("--yes", is_flag=True, help="With --all: do not ask first.")
@click.option("--dry-run", is_flag=True, help="With --all: only count the jobs; the count stops at 2,000,000.")
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
    """Cancel jobs and their families; jobs that have ended do not change.

    Running jobs are asked to stop. --all cancels a thousand jobs at a time; you can interrupt and repeat it.
    """
    if bool(ids) == every:
        raise UsageError("name the jobs to cancel, or select them with --all.")
    if not every and (yes or dry_run or any(conditions.values())):
        raise UsageError("--queue, --kind, --tenant, --state, --yes and --dry-run select jobs for --all; add it.")
    if every:
        _cancel_all(url, conditions, reason, yes=yes, dry_run=dry_run, as_json=as_json)
        return

    async def cancelled(app: Holdfast) -> list[tuple[str, str]]:
        named = [await whole(app, id, "job") for id in ids]
        return [(id, await app.jobs[id].cancel(reason)) for id in named]

    states = ask(url, cancelled)
    if as_json:
        print_json([{"id": id, "state": state} for id, state in states])
        return
    for id, state in states:
        click.echo(f"{id} {_CANCELLED.get(state, f'had already ended as {state}')}")


async def _newest(app: Holdfast, *, limit: int, **filters: Any) -> list[JobRecord]:
    """So many jobs that fit, however far back they are."""
    page = await app.jobs.list(limit=limit, **filters)
    rows = list(page)
    while page.next is not None and len(rows) < limit:
        page = await app.jobs.list(after=page.next, limit=limit - len(rows), **filters)
        rows += page
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
    async def check(app: Holdfast) -> None:
        await require_queue(app, conditions["queue"])
        await say_if_absent(app, conditions["kind"])

    ask(url, check, changes=False)
    watched = sys.stderr.isatty()
    count = 0
    if dry_run or watched or not yes:  # else nobody reads it
        count = ask(url, lambda app: app.jobs.count_cancellable(cap=_MOST, all=True, **conditions), changes=False)
    shown = plural(count, "job", more="+" if count >= _MOST else "")
    if dry_run:
        print_json({"cancellable": count}) if as_json else click.echo(f"{shown} would be cancelled")
        return
    if count and not yes and not _sure(f"cancel {shown} and {'its family' if count == 1 else 'their families'}?"):
        raise UsageError("nothing was cancelled: you did not confirm. With --yes it does not ask.")

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
    click.echo(f"{plural(ended, 'job is', 'jobs are')} cancelled")
    if asked:
        click.echo(f"{plural(asked, 'job is', 'jobs are')} running: the workers were asked to stop")


_CANCELLED: dict[str, str] = {
    State.CANCELLED: "is cancelled",
    State.RUNNING: "is running: its worker was asked to stop it",
}
