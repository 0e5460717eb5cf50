"""`holdfast prune`: remove finished jobs now; workers do the same by themselves, as queues and settings say."""

from __future__ import annotations

import sys

import click

from holdfast.app import Holdfast, core_of
from holdfast.cli.options import ask, json_option, over_cap, print_json, url_option
from holdfast.cli.queues import require_queue
from holdfast.durations import microseconds
from holdfast.kernel.queues import CAP
from holdfast.kernel.retention import KeepRule, Pruner
from holdfast.settings import Settings
from holdfast.text import plural, shown

_FOR_EVER_US = 2**62
_ALL_JOBS = 2**62


@click.command()
@click.option("--older-than", metavar="AGE", help="Only jobs that finished longer ago than this, such as 7d.")
@click.option("--keep", type=click.IntRange(0), help="Keep this many jobs of each queue, the newest.")
@click.option("--queue", help="Only jobs of this queue.")
@click.option("--dry-run", is_flag=True, help="Only count the jobs; counts stop at 10,000.")
@url_option
@json_option
def command(
    *, older_than: str | None, keep: int | None, queue: str | None, dry_run: bool, url: str | None, as_json: bool
) -> None:
    """Remove finished jobs with their attempts and steps.

    Without --older-than and --keep, it removes the jobs that each queue's policy and the settings no longer keep. With
    them, it ignores the policies. A child is removed after its parent.
    """

    def pruner(app: Holdfast) -> Pruner:
        return Pruner(core_of(app).runtime().database, _kept(older_than, keep, app.settings))

    async def count(app: Holdfast) -> dict[str, int]:
        await require_queue(app, queue)
        return await pruner(app).prunable(cap=CAP, queue=queue)

    async def remove(app: Holdfast) -> int:
        total = sum((await count(app)).values())
        with click.progressbar(length=total, label="removing", file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
            removed = 0
            async for gone in pruner(app).thoroughly(queue=queue):
                removed += gone
                bar.length = max(total, removed)  # more than were counted: the count stops at a cap
                bar.update(gone)
        return removed

    if not dry_run:
        removed = ask(url, remove)
        print_json({"removed": removed}) if as_json else click.echo(f"{plural(removed, 'job')} removed")
        return
    found = ask(url, count)
    if as_json:
        print_json({"prunable": found})
        return
    for name, jobs in sorted(found.items()):
        click.echo(f"{plural(jobs, 'job', more=over_cap(jobs))} of queue {shown(name)} would be removed")
    if not found:
        click.echo("nothing would be removed")


def _kept(older_than: str | None, keep: int | None, settings: Settings) -> KeepRule:
    if older_than is None and keep is None:
        return KeepRule(microseconds(settings.retention), settings.retention_jobs)
    age = _FOR_EVER_US if older_than is None else microseconds(older_than)
    return KeepRule(age, _ALL_JOBS if keep is None else keep, firm=True)
