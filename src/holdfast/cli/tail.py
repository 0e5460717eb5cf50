"""`holdfast jobs tail`: the jobs of a store as they change, until Ctrl-C.

The store keeps no log of changes. New jobs are found by their number, claimed and ended ones by their time, and those
seen before are asked after; a job that changes twice between two looks is seen once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import click

from holdfast.app import Holdfast
from holdfast.cli.options import app_for, json_option, moment, plain, run_until_interrupted, url_option
from holdfast.durations import duration
from holdfast.kernel import encoding, reading, watch
from holdfast.kernel.sightings import Change
from holdfast.kernel.states import TERMINAL, State

_OVERLAP_US = 5_000_000  # who commits late has an earlier time
_REMEMBERED = 10_000
_FOLLOWED = 1_000


@click.command()
@click.option("--queue", help="Only jobs of this queue.")
@click.option("--kind", help="Only jobs of this kind.")
@click.option("--state", type=click.Choice([str(state) for state in State]), help="Only changes to this state.")
@click.option(
    "--lines", type=click.IntRange(0, 1_000), default=10, show_default=True, help="Latest jobs to begin with."
)
@click.option("--interval", default="500ms", show_default=True, help="Pause between looks.")
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
    """Follow jobs as they change; Ctrl-C ends it."""
    pause = duration(interval).total_seconds()

    async def follow() -> None:
        async with app_for(url) as app:
            watcher = Watcher(app, queue, lines)
            while True:
                for change in await watcher.look():
                    if kind in (None, change.kind) and state in (None, change.state):
                        click.echo(_as_json(change) if as_json else _as_line(change))
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
        database = self._app.runtime().database
        now = await database.transact(reading.now)
        if not self._begun:
            self._begun = True
            newest = await self._app.jobs.list(limit=1)
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


def _as_line(change: Change) -> str:
    error = encoding.decode(change.error) if change.state == State.FAILED else None
    words = [moment(change.at) or "", change.id, f"{change.state:9}", change.queue, change.kind]
    return plain("  ".join([*words, error.get("message", "").partition("\n")[0]] if error else words))


def _as_json(change: Change) -> str:
    shown = {**change._asdict(), "at": moment(change.at), "error": encoding.decode(change.error)}
    return json.dumps(shown, ensure_ascii=False)
