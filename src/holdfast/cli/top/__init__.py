"""`holdfast top`: queues, agents, workers, rates, money and failures, live."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, replace

import click

from holdfast.agents.money.budgets import usd
from holdfast.agents.values.lanes import closed_lane_of
from holdfast.app import Holdfast, core_of
from holdfast.cli.options import app_for, json_option, print_json, url_option
from holdfast.cli.target import database_label
from holdfast.cli.top.cells import ASCII, UNICODE, Glyphs
from holdfast.cli.top.frame import PANELS, FrameLook, frame, plain_frame
from holdfast.cli.top.sample import StoreSample, StoreSampler
from holdfast.cli.top.screen import Screen
from holdfast.durations import duration
from holdfast.errors import Unavailable
from holdfast.kernel.migrate import code_version
from holdfast.values import as_json as json_of
from holdfast.values.queues import counts_of, lane_of
from holdfast.values.workers import worker_of


@click.command()
@click.option("--interval", default="1s", show_default=True, help="Pause between reads of the store.")
@click.option("--once", is_flag=True, help="Print one frame as plain text; the default without a terminal.")
@url_option
@json_option
def command(interval: str, once: bool, url: str | None, as_json: bool) -> None:
    """Watch queues, agents, workers, rates, money and failures live.

    q quits, p pauses the refresh, tab selects the panel that gets the free space, arrows scroll it. It asks the
    store only bounded questions, so you can leave it open.
    """
    pause = duration(interval).total_seconds()
    app = app_for(url)
    if as_json:
        print_json(_as_dict(asyncio.run(_sample(app))))
    elif once or not sys.stdout.isatty():
        width = 100 if not sys.stdout.isatty() else Screen().size[0]
        click.echo(plain_frame(asyncio.run(_sample(app)), width, _glyphs()))
    else:
        asyncio.run(_watch(app, max(0.1, pause)))


async def _sample(app: Holdfast) -> StoreSample:
    async with app:
        return await sampler_for(app).sample()


async def _watch(app: Holdfast, interval: float) -> None:
    async with app:
        sampler = sampler_for(app)
        sample = await sampler.sample()  # what is wrong from the start is said on the usual screen
        screen = Screen()
        with screen.taken():
            await Watching(sampler, screen, interval, sample).run()


@dataclass
class Watching:
    """A person at a terminal, and what the store showed last."""

    sampler: StoreSampler
    screen: Screen
    interval: float
    sample: StoreSample

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        look = FrameLook(*self.screen.size, interval=self.interval, glyphs=_glyphs())
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


def pressed(look: FrameLook, key: str) -> FrameLook:
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


def sampler_for(app: Holdfast) -> StoreSampler:
    dialect = core_of(app).runtime().database.dialect
    schema = f"{code_version(dialect)}" if dialect == "sqlite" else f"{app.settings.schema} {code_version(dialect)}"
    return StoreSampler(app, database_label(app.settings), schema)


def _glyphs() -> Glyphs:
    return UNICODE if (sys.stdout.encoding or "").lower().startswith("utf") else ASCII


def _as_dict(sample: StoreSample) -> dict[str, object]:
    return {
        "database": sample.database,
        "epoch": sample.epoch,
        "queues": [
            {**json_of(counts_of(row)), "history": sample.history.get(row.queue.name, [])} for row in sample.queues
        ],
        "workers": [worker_of(row) for row in sample.workers],
        "lanes": [lane_of(lane) for lane in sample.lanes],
        "closed_lanes": [closed_lane_of(lane) for lane in sample.closed],
        "agents": [{**row._asdict(), "cost": usd(row.cost_nano)} for row in sample.agents],
        "open_inquiries": sample.inquiries.n,
        "failures": [failure.id for failure in sample.failures],
    }
