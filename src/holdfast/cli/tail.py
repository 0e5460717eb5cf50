"""`holdfast jobs tail`: the jobs of a store as they change, until Ctrl-C.

The store keeps no log of changes. New jobs are found by their number, claimed and ended ones by their time, and those
seen before are asked after; a job that changes twice between two looks is seen once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import click

from holdfast import values
from holdfast.app import Holdfast, core_of
from holdfast.cli.options import app_for, json_option, moment, run_until_interrupted, url_option
from holdfast.cli.queues import require_queue, say_if_absent
from holdfast.cli.tables import on_terminal
from holdfast.durations import duration
from holdfast.kernel import codec, queries, watch
from holdfast.kernel.states import TERMINAL, State
from holdfast.kernel.watch_rows import Change
from holdfast.shown_text import first_line, shown
from holdfast.values.jobs import change_of

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
