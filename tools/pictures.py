"""Draws the pictures of the docs: commands on a small shop's database, as a terminal of 80 columns shows them.

`make pictures` writes docs/images/terminal-….svg, `--check` says whether they are current. The shop's clock and ids are
fixed, so the pictures change only when the output of a command does. The other pictures there are drawn by hand.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from html import escape
from pathlib import Path

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.text import Text

from holdfast import Holdfast, Retry
from holdfast.app import core_of
from holdfast.cli import group
from holdfast.cli.tables import ansi
from holdfast.cli.top import FrameView, frame, sampler_for
from holdfast.clock import Ports, SystemClock
from holdfast.models import Script, call, calls, say
from holdfast.workers.role import Role

FOLDER = Path(__file__).parent.parent / "docs" / "images"
MADE = "terminal-{}.svg"
WIDTH = 80
CELL, ROW, EDGE = 8.4, 18, 16
COMMANDS = {
    "jobs": ("jobs", "ls"),
    "runs": ("runs", "ls"),
    "inquiries": ("runs", "inquiries"),
    "queues": ("queues", "ls"),
    "budgets": ("budgets", "ls"),
    "usage": ("usage", "--by", "agent", "--by", "model"),
}
# Each colour on a light and on a dark page.
COLOURS = {
    "page": ("#f6f8fa", "#0d1117"),
    "plain": ("#1f2328", "#d0d7de"),
    "dim": ("#6e7781", "#7d8590"),
    "red": ("#cf222e", "#f85149"),
    "green": ("#1a7f37", "#3fb950"),
    "yellow": ("#9a6700", "#d29922"),
    "cyan": ("#1b7c83", "#56d4dd"),
}
START = 1_794_816_000_000_000  # 2026-11-16 08:00 UTC
MINUTE = 60_000_000


class ShopClock:
    """The time of the shop."""

    now = START


def shop_time(_: SystemClock) -> int:
    """The time for everything in this process that asks for it."""
    return ShopClock.now


async def open_shop(url: str) -> None:
    """A morning in the shop: letters, a feed that fails, and an agent at the desk that waits for a person."""
    hf = Holdfast(url, ports=Ports(random=random.Random(7)), embedded=False)

    @hf.job(name="mail.send", queue="mail")
    async def send(to: str) -> str:
        return f"sent to {to}"

    @hf.job(name="feeds.fetch", queue="feeds", retry=Retry(attempts=1))
    async def fetch(url: str) -> None:
        raise ConnectionError(f"{url} does not answer")

    @hf.job(name="reports.print", queue="reports")
    async def report(month: str) -> str:
        return month

    @hf.tool(effect="read")
    def find_order(number: str) -> str:
        """Find an order."""
        return f"order {number}: one lamp, 80 euros, lost on its way"

    @hf.tool(effect="once", approve=lambda call: call.input["euros"] > 50)
    def refund(number: str, euros: int) -> str:
        """Refund an order."""
        return f"{euros} euros for {number}"

    # Scripts answer in the place of the models; the prices are the models' own.
    hf.script("claude-haiku-4-5", Script(say("Take bus 5 from the station.")))
    asks = calls(call("find_order", number="A1")), calls(call("refund", number="A1", euros=80))
    hf.script("claude-sonnet-5-5", Script(*asks, say("You get 80 euros back.")))
    guide = hf.agent("guide", model="claude-haiku-4-5", description="Knows the town.")
    desk = hf.agent("desk", model="claude-sonnet-5-5", tools=[find_order, refund])

    async def work() -> None:
        await core_of(hf).make_worker(Role(id="mill-1", name="mill", until="empty")).run()
        ShopClock.now += 11_123_000

    async with hf:
        await hf.budgets.set("25.00", tenant="acme", per="1d")
        await hf.budgets.set("400.00", per="30d", policy="ask")
        for name in ("Ann", "Ben"):
            await send.enqueue(name)
            await work()
            ShopClock.now += 11 * MINUTE
        await guide.enqueue("How do I get to the harbour?", session="ann")
        await work()
        ShopClock.now += 11 * MINUTE
        await fetch.enqueue("https://example.org/news")
        await work()
        ShopClock.now += 9 * MINUTE
        await report.options(delay="6h").enqueue("2026-10")
        await hf.queues.pause("reports", reason="no paper")
        ShopClock.now += 2 * MINUTE
        await desk.enqueue("My lamp A1 never came.", tenant="acme", session="acme-1")
        await work()
        await send.enqueue("Cleo")
        await work()
        await guide.enqueue("And back?", session="ann")
        await work()
        await send.enqueue("Dora")
        ShopClock.now += 3_000_000


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def in_the_shop() -> Iterator[str]:
    """The URL of the shop's database, with its folder as the working directory."""
    before, real = Path.cwd(), SystemClock.wall_us
    SystemClock.wall_us = shop_time  # type: ignore[assignment, method-assign]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            asyncio.run(open_shop("sqlite:///shop.db"))
            yield "sqlite:///shop.db"
        finally:
            os.chdir(before)
            SystemClock.wall_us = real  # type: ignore[method-assign]


def said(words: tuple[str, ...], url: str, width: int = WIDTH) -> str:
    """What a command prints on a terminal so wide."""
    out = Terminal()
    os.environ.update(COLUMNS=str(width), TERM="xterm-256color")
    os.environ.pop("NO_COLOR", None)
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        group.main([*words, "--url", url], prog_name="holdfast", standalone_mode=False)
    return out.getvalue()


async def top(url: str) -> str:
    async with Holdfast(url, embedded=False) as app:
        sample = await sampler_for(app).sample()
    return "\n".join(ansi(line) for line in frame(sample, FrameView(WIDTH, 24)))


def svg(title: str, lines: list[Text]) -> str:
    console = Console(width=WIDTH, color_system="standard", force_terminal=True)
    width, height = WIDTH * CELL + 2 * EDGE, (len(lines) + 2) * ROW + 2 * EDGE
    light, dark = ("".join(f".{name}{{fill:{pair[at]}}}" for name, pair in COLOURS.items()) for at in (0, 1))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" font-size="14"',
        ' font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace">',
        f"<title>{escape(title)}</title>",
        f"<style>{light}@media (prefers-color-scheme: dark){{{dark}}}</style>",
        f'<rect class="page" width="{width:.0f}" height="{height}" rx="8"/>',
        f'<text class="dim" x="{EDGE}" y="{EDGE + 14}" xml:space="preserve">$ {escape(title)}</text>',
    ]
    for number, line in enumerate(lines, 2):
        at = 0
        for segment in line.render(console):
            length = Text(segment.text).cell_len
            if segment.text.strip():
                style = segment.style
                colour = style.color.name if style is not None and style.color is not None else ""
                shade = colour or ("dim" if style is not None and style.dim else "")
                bold = ' font-weight="bold"' if style is not None and style.bold else ""
                parts.append(
                    f'<text class="{shade or "plain"}" x="{EDGE + at * CELL:.1f}" y="{EDGE + number * ROW + 14}"'
                    f' textLength="{length * CELL:.1f}"{bold} xml:space="preserve">{escape(segment.text)}</text>'
                )
            at += length
    return "\n".join([*parts, "</svg>", ""])


def drawn() -> dict[str, str]:
    """Every picture, by the name of its file."""
    with in_the_shop() as url:
        made = {
            MADE.format(name): svg(f"holdfast {' '.join(words)}", list(AnsiDecoder().decode(said(words, url))))
            for name, words in COMMANDS.items()
        }
        made[MADE.format("top")] = svg("holdfast top", list(AnsiDecoder().decode(asyncio.run(top(url)))))
    return made


def main(words: list[str]) -> int:
    logging.disable()  # a job of the shop fails, as it should
    made = drawn()
    if "--check" in words:
        there = {file.name: file.read_text() for file in FOLDER.glob(MADE.format("*"))}
        stale = sorted(name for name in {*made, *there} if made.get(name) != there.get(name))
        for name in stale:
            sys.stderr.write(f"docs/images/{name} is not current: run `make pictures`.\n")
        return 1 if stale else 0
    for file in FOLDER.glob(MADE.format("*")):
        file.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
