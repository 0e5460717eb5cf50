"""`holdfast top`: queues, workers, rates and failures, live."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, replace

import click

from holdfast.app import Holdfast
from holdfast.cli.options import app_for, json_option, print_json, url_option
from holdfast.cli.queues import as_dict
from holdfast.cli.top.cells import ASCII, UNICODE, Glyphs
from holdfast.cli.top.frame import PANELS, Look, frame, plain_frame
from holdfast.cli.top.sample import Sample, Sampler
from holdfast.cli.top.screen import Screen
from holdfast.durations import duration
from holdfast.errors import Unavailable
from holdfast.kernel.drivers import describe_url
from holdfast.kernel.migrate import code_version
from holdfast.kernel.workers import lines_of


@click.command()
@click.option("--interval", default="1s", show_default=True, help="Pause between looks at the store.")
@click.option("--once", is_flag=True, help="Print one frame as plain text, as also when the output is no terminal.")
@url_option
@json_option
def command(interval: str, once: bool, url: str | None, as_json: bool) -> None:
    """Watch queues, workers, rates and failures live.

    q quits, p pauses the refresh, tab chooses the panel that gets the room there is, arrows scroll it. It asks the
    store bounded questions only, so it may be left open.
    """
    pause = duration(interval).total_seconds()
    if as_json:
        print_json(_as_dict(asyncio.run(_sample(url))))
    elif once or not sys.stdout.isatty():
        width = 100 if not sys.stdout.isatty() else Screen().size[0]
        click.echo(plain_frame(asyncio.run(_sample(url)), width, _glyphs()))
    else:
        asyncio.run(_watch(url, max(0.1, pause)))


async def _sample(url: str | None) -> Sample:
    async with app_for(url) as app:
        return await sampler_for(app).sample()


async def _watch(url: str | None, interval: float) -> None:
    async with app_for(url) as app:
        sampler = sampler_for(app)
        sample = await sampler.sample()  # what is wrong from the start is said on the usual screen
        screen = Screen()
        with screen.taken():
            await Watching(sampler, screen, interval, sample).run()


@dataclass
class Watching:
    """A person at a terminal, and what the store showed last."""

    sampler: Sampler
    screen: Screen
    interval: float
    sample: Sample

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        look = Look(*self.screen.size, interval=self.interval, glyphs=_glyphs())
        due = loop.time() + self.interval
        while True:
            width, height = self.screen.size
            look = replace(look, width=width, height=height)
            self.screen.draw(frame(self.sample, look))
            key = await self.screen.key(None if look.paused else max(0.0, due - loop.time()))
            if key == "q":
                return
            look = pressed(look, key)
            if not look.paused and loop.time() >= due:
                look = replace(look, trouble=await self._refresh())
                due = loop.time() + self.interval

    async def _refresh(self) -> str:
        """Look again; why that was impossible, if it was: then the last look stays."""
        try:
            self.sample = await self.sampler.sample()
        except Unavailable as problem:
            return str(problem)
        return ""


def pressed(look: Look, key: str) -> Look:
    """What a key does."""
    match key:
        case "p" | " ":
            return replace(look, paused=not look.paused)
        case "tab":
            return replace(look, chosen=(look.chosen + 1) % len(PANELS), offset=0)
        case "back":
            return replace(look, chosen=(look.chosen - 1) % len(PANELS), offset=0)
        case "down" | "j":
            return replace(look, offset=look.offset + 1)
        case "up" | "k":
            return replace(look, offset=max(0, look.offset - 1))
        case _:
            return look


def sampler_for(app: Holdfast) -> Sampler:
    dialect = app.runtime().database.dialect
    schema = f"{code_version(dialect)}" if dialect == "sqlite" else f"{app.settings.schema} {code_version(dialect)}"
    return Sampler(app, describe_url(app.url), schema)


def _glyphs() -> Glyphs:
    return UNICODE if (sys.stdout.encoding or "").lower().startswith("utf") else ASCII


def _as_dict(sample: Sample) -> dict[str, object]:
    return {
        "database": sample.database,
        "epoch": sample.epoch,
        "queues": [{**as_dict(row), "history": sample.history.get(row.queue.name, [])} for row in sample.queues],
        "workers": [
            {"id": row.id, "status": row.status, "leases": row.leases, "slots": row.slots, "lines": lines_of(row)}
            for row in sample.workers
        ],
        "lanes": [lane._asdict() for lane in sample.lanes],
        "failures": [failure.id for failure in sample.failures],
    }
